"""Assertions, which check nothing here."""

from __future__ import annotations

from flint.frontends.torch_ops.registry import torch_op


@torch_op(
    "aten::_assert_async",
    "aten::_assert_async.msg",
    "aten::_assert_scalar",
    "aten::_assert_tensor_metadata",
    "aten::_functional_assert_async.msg",
    "aten::sym_constrain_range",
    "aten::sym_constrain_range_for_size",
)
def assertion(*_: object, **__: object) -> None:
    """Nothing: values are not known before a program runs, and shapes are."""
