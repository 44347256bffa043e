"""Assertions, which check nothing here, and questions that have numbers for answers."""

from __future__ import annotations

import math
from typing import Any

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
def assertion(*_: Any, **__: Any) -> None:
    """Nothing: values are not known before a program runs, and shapes are."""


@torch_op("aten::sym_size.int")
def sym_size(x: Any, dim: int) -> int:
    """The size of a dimension."""
    return int(x.shape[dim])


@torch_op("aten::sym_size")
def sym_sizes(x: Any) -> list[int]:
    """The sizes of all dimensions."""
    return list(x.shape)


@torch_op("aten::sym_numel")
def sym_numel(x: Any) -> int:
    """How many elements a tensor has."""
    return math.prod(x.shape)


@torch_op("aten::sym_stride.int")
def sym_stride(x: Any, dim: int) -> int:
    """How many elements apart neighbours along a dimension lie, in the usual order."""
    return math.prod(x.shape[dim % x.ndim + 1 :])


@torch_op("aten::sym_storage_offset")
def sym_storage_offset(x: Any) -> int:
    """Where a tensor starts in its storage."""
    return 0
