"""Operators on lists of tensors, as optimizers call them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from flint.frontends.torch_ops.registry import torch_op
from flint.frontends.torch_ops.tensors import elementwise, reductions
from flint.frontends.torch_ops.types import Number, Operand

if TYPE_CHECKING:
    from jax import Array


def _each(function: Callable[..., Any], lists: Sequence[Any], **options: object) -> tuple[Any, ...]:
    """`function` of the first entries, of the second ones, ...; a number stands for all."""
    length = next(len(part) for part in lists if isinstance(part, (list, tuple)))
    spread = [part if isinstance(part, (list, tuple)) else [part] * length for part in lists]
    return tuple(function(*entries, **options) for entries in zip(*spread, strict=True))


def _register(name: str, function: Callable[..., Any], *overloads: str) -> None:
    def on_lists(*lists: Sequence[Operand] | Number, **options: object) -> tuple[Any, ...]:
        return _each(function, lists, **options)

    on_lists.__doc__ = f"`{name}` of every tensor of a list."
    torch_op(*(f"aten::_foreach_{name}.{overload}" for overload in overloads))(on_lists)


def _weighted(function: Callable[..., Array]) -> Callable[..., Array]:
    """x, y, z and value, which the operator on one tensor has as a keyword."""
    return lambda x, y, z, value=1: function(x, y, z, value=value)


for _name in ("abs", "ceil", "cos", "erf", "exp", "expm1", "floor", "log", "log1p", "neg"):
    _found = elementwise.absolute if _name == "abs" else getattr(elementwise, _name)
    _register(_name, _found, "default")
for _name in ("reciprocal", "rsqrt", "sigmoid", "sign", "sin", "sqrt", "tanh", "trunc"):
    _register(_name, getattr(elementwise, _name), "default")
for _name in ("add", "sub", "mul", "div"):
    _register(_name, getattr(elementwise, _name), "List", "Scalar", "ScalarList")
_register("mul", elementwise.mul, "Tensor")
_register("div", elementwise.div, "Tensor")
_register("add", elementwise.add, "Tensor")
for _name in ("maximum", "minimum"):
    _register(_name, getattr(elementwise, _name), "List", "Scalar", "ScalarList")
for _name in ("clamp_max", "clamp_min"):
    _register(_name, getattr(elementwise, _name), "List", "Scalar", "ScalarList")
_register("pow", elementwise.pow_scalar, "Scalar", "ScalarList")
_register("pow", elementwise.pow_tensor, "List", "ScalarAndTensor")
_register("lerp", elementwise.lerp, "Scalar", "List", "ScalarList")
_register("addcmul", _weighted(elementwise.addcmul), "Scalar", "ScalarList")
_register("addcdiv", _weighted(elementwise.addcdiv), "Scalar", "ScalarList")
_register("copy", elementwise.copy, "default")
_register("norm", reductions.norm, "Scalar")
