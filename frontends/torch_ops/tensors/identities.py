"""Operators that compute nothing: assertions, and Flint's own that constrain shardings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flint.frontends.torch_graph.constraints import spec_of
from flint.frontends.torch_ops.registry import torch_op

if TYPE_CHECKING:
    from jax import Array


@torch_op("flint::constrain")
def constrain(x: Array, spec: str, gradient_spec: str) -> Array:
    """The same values, sharded as `spec` says on the mesh that is traced for."""
    import jax

    found = spec_of(spec)
    return x if found is None else jax.lax.with_sharding_constraint(x, found)


@torch_op("flint::identity")
def identity(x: Array) -> Array:
    return x


@torch_op("flint::gather_again")
def gather_again(x: Array, spec: str) -> Array:
    """A parameter as it is used, gathered once more: not shared with an earlier gathering."""
    import jax

    return constrain(jax.lax.optimization_barrier(x), spec, "")


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
