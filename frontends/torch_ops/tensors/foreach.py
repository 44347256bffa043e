"""Operators on lists of tensors, as optimizers call them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from flint.frontends.torch_ops.registry import find_op, torch_op
from flint.frontends.torch_ops.tensors import elementwise, reductions
from flint.frontends.torch_ops.types import Number, Operand

if TYPE_CHECKING:
    from jax import Array


def _each(function: Callable[..., Any], lists: Sequence[Any], **options: object) -> tuple[Any, ...]:
    """`function` of the first entries, of the second ones, ...; a number stands for all."""
    length = next(len(part) for part in lists if isinstance(part, (list, tuple)))
    spread = [part if isinstance(part, (list, tuple)) else [part] * length for part in lists]
    return tuple(function(*entries, **options) for entries in zip(*spread, strict=True))


def _register(name: str, overloads: str, function: Callable[..., Any] | None) -> None:
    assert function is not None, name

    def on_lists(*lists: Sequence[Operand] | Number, **options: object) -> tuple[Any, ...]:
        return _each(function, lists, **options)

    torch_op(*(f"aten::_foreach_{name}.{overload}" for overload in overloads.split()))(on_lists)


def _weighted(function: Callable[..., Array]) -> Callable[..., Array]:
    """x, y, z and value, which the operator on one tensor has as a keyword."""
    return lambda x, y, z, value=1: function(x, y, z, value=value)


_ONE = "abs ceil cos erf exp expm1 floor log log1p neg reciprocal rsqrt sigmoid sign sin sqrt tanh"
for _name in (*_ONE.split(), "trunc", "copy"):
    _register(_name, "default", find_op(f"aten::{_name}"))
for _name in ("add", "sub", "mul", "div"):
    _register(_name, "List Scalar ScalarList", find_op(f"aten::{_name}.Tensor"))
for _name in ("add", "mul", "div"):
    _register(_name, "Tensor", find_op(f"aten::{_name}.Tensor"))
for _names, _of_two in (("maximum clamp_min", "maximum"), ("minimum clamp_max", "minimum")):
    for _name in _names.split():
        _register(_name, "List Scalar ScalarList", find_op(f"aten::{_of_two}"))
_register("pow", "Scalar ScalarList", elementwise.pow_scalar)
_register("pow", "List ScalarAndTensor", find_op("aten::pow.Tensor_Tensor"))
_register("lerp", "Scalar List ScalarList", elementwise.lerp)
_register("addcmul", "Scalar ScalarList", _weighted(elementwise.addcmul))
_register("addcdiv", "Scalar ScalarList", _weighted(elementwise.addcdiv))
_register("norm", "Scalar", reductions.norm)
