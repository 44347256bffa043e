"""Arithmetic, comparisons and functions of one number after another.

What is one operation of `lax` stands in a table; functions are what takes more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import torch

from flint.frontends.torch_ops.lazy_jax import jnp, lax
from flint.frontends.torch_ops.registry import register_all, torch_op
from flint.frontends.torch_ops.types import (
    Number,
    Operand,
    broadcast,
    cast,
    floating,
    is_floating,
    jax_dtype,
    operands,
    result_type,
    scaled,
    torch_dtype,
)
from flint.ir.op_class import OpClass

if TYPE_CHECKING:
    from jax import Array

Function: TypeAlias = "Callable[..., Array]"


def _of_number(operation: str) -> Function:
    return lambda x: getattr(lax, operation)(x)


def _of_float(operation: str) -> Function:
    """Integers and truth values become floats before."""
    return lambda x: getattr(lax, operation)(floating(x))


def _of_fraction(operation: str) -> Function:
    """Integers and truth values stay what they are."""
    return lambda x: getattr(lax, operation)(x) if is_floating(x) else x


def _of_two(operation: str) -> Function:
    return lambda x, y: getattr(lax, operation)(*operands(x, y))


def _of_two_floats(operation: str) -> Function:
    return lambda x, y: getattr(lax, operation)(*_float_operands(x, y))


def _of_two_truths(operation: str) -> Function:
    return lambda x, y: getattr(lax, operation)(*operands(cast(x, torch.bool), cast(y, torch.bool)))


_NUMBERS = ("Tensor", "Scalar")
#: How operands are prepared, the overloads, and operators: ATen's name, or ATen's=lax's.
_OPERATIONS: tuple[tuple[Callable[[str], Function], tuple[str, ...], str], ...] = (
    (_of_number, ("default",), "neg abs bitwise_not"),
    (_of_float, ("default",), "sqrt rsqrt exp exp2 expm1 log log1p"),
    (_of_float, ("default",), "sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh"),
    (_of_float, ("default",), "erf erfc erfinv=erf_inv lgamma digamma sigmoid=logistic"),
    (_of_fraction, ("default",), "floor ceil"),
    (_of_two_floats, _NUMBERS, "div"),
    (_of_two_floats, ("default",), "atan2"),
    (_of_two, _NUMBERS, "fmod=rem eq ne lt le gt ge bitwise_and bitwise_or bitwise_xor"),
    (_of_two, ("default",), "maximum=max minimum=min nextafter"),
    (_of_two, ("Tensor", "Tensor_Scalar"), "bitwise_left_shift=shift_left"),
    (_of_two, _NUMBERS, "__lshift__=shift_left"),
    (_of_two_truths, ("default",), "logical_and=bitwise_and logical_or=bitwise_or"),
    (_of_two_truths, ("default",), "logical_xor=bitwise_xor"),
)
for _emitter, _overloads, _names in _OPERATIONS:
    for _name, _, _operation in (entry.partition("=") for entry in _names.split()):
        _function = _emitter(_operation or _name)
        register_all({" ".join(f"{_name}.{o}" for o in _overloads): _function})
for _order in ("i0e", "i1e"):  # modified Bessel functions, scaled by exp(-|x|)
    _function = _of_float(f"bessel_{_order}")
    torch_op(f"aten::special_{_order}", op_class=OpClass.FUNCTION)(_function)


@torch_op("aten::add.Tensor", "aten::add.Scalar")
def add(x: Array, y: Operand, alpha: Number = 1) -> Array:
    x, y = operands(x, y)
    if x.dtype == jnp.bool_:
        return lax.bitwise_or(x, y)
    return lax.add(x, scaled(y, alpha))


@torch_op("aten::sub.Tensor", "aten::sub.Scalar")
def sub(x: Array, y: Operand, alpha: Number = 1) -> Array:
    x, y = operands(x, y)
    return lax.sub(x, scaled(y, alpha))


@torch_op("aten::mul.Tensor", "aten::mul.Scalar")
def mul(x: Array, y: Operand) -> Array:
    x, y = operands(x, y)
    return lax.bitwise_and(x, y) if x.dtype == jnp.bool_ else lax.mul(x, y)


@torch_op("aten::div.Tensor_mode", "aten::div.Scalar_mode")
def div_mode(x: Array, y: Operand, *, rounding_mode: str | None) -> Array:
    if rounding_mode is None:
        return div(x, y)
    if rounding_mode == "floor":
        return floor_divide(x, y)
    return trunc(lax.div(*operands(x, y)))


def floor_divide(x: Array, y: Operand) -> Array:
    divisor = y
    x, y = operands(x, y)
    quotient = lax.div(x, y)
    if is_floating(x):
        return lax.floor(quotient)
    if jnp.issubdtype(x.dtype, jnp.unsignedinteger):
        return quotient
    remaining = lax.rem(x, y)
    if isinstance(divisor, int) and divisor > 0:
        too_large = lax.lt(remaining, lax.full_like(remaining, 0))
    else:
        too_large = _opposite_signs(remaining, y)
    return lax.sub(quotient, lax.convert_element_type(too_large, quotient.dtype))


@torch_op("aten::remainder.Tensor", "aten::remainder.Scalar", "aten::remainder.Scalar_Tensor")
def remainder(x: Operand, y: Operand) -> Array:
    x, y = operands(x, y)
    remaining = lax.rem(x, y)
    if jnp.issubdtype(x.dtype, jnp.unsignedinteger):
        return remaining
    return lax.select(_opposite_signs(remaining, y), lax.add(remaining, y), remaining)


@torch_op("aten::lerp.Scalar", "aten::lerp.Tensor")
def lerp(start: Array, end: Array, weight: Operand) -> Array:
    start, end, weight = operands(start, end, weight, dtype=torch_dtype(start))
    return lax.add(start, lax.mul(weight, lax.sub(end, start)))


@torch_op("aten::addcmul")
def addcmul(x: Array, y: Array, z: Array, *, value: Number = 1) -> Array:
    x, y, z = operands(x, y, z)
    return lax.add(x, scaled(lax.mul(y, z), value))


@torch_op("aten::addcdiv")
def addcdiv(x: Array, y: Array, z: Array, *, value: Number = 1) -> Array:
    x, y, z = operands(x, y, z)
    return lax.add(x, scaled(lax.div(y, z), value))


@torch_op("aten::hypot")
def hypot(x: Array, y: Array) -> Array:
    x, y = _float_operands(x, y)
    return lax.sqrt(lax.add(lax.mul(x, x), lax.mul(y, y)))


@torch_op("aten::pow.Tensor_Scalar")
def pow_scalar(x: Array, exponent: Number) -> Array:
    """Small whole powers are multiplications."""
    x = cast(x, result_type(x, exponent))
    if exponent == 1:
        return x
    if exponent == 0.5:
        return lax.sqrt(x)
    if exponent == -0.5:
        return lax.rsqrt(x)
    if not isinstance(exponent, complex) and exponent == int(exponent) and abs(exponent) <= 4:
        return lax.integer_pow(x, int(exponent))
    return _pow(x, exponent)


@torch_op("aten::sigmoid_backward")
def sigmoid_backward(grad: Array, output: Array) -> Array:
    grad, output = operands(grad, output)
    return lax.mul(grad, _conj(lax.mul(output, lax.sub(lax.full_like(output, 1), output))))


@torch_op("aten::tanh_backward")
def tanh_backward(grad: Array, output: Array) -> Array:
    grad, output = operands(grad, output)
    return lax.mul(grad, _conj(lax.sub(lax.full_like(output, 1), lax.mul(output, output))))


@torch_op("aten::signbit")
def signbit(x: Array) -> Array:
    return jnp.signbit(x) if is_floating(x) else lax.lt(x, lax.full_like(x, 0))


@torch_op("aten::copysign.Tensor", "aten::copysign.Scalar")
def copysign(x: Array, y: Operand) -> Array:
    x, y = _float_operands(x, y)
    size = lax.abs(x)
    return lax.select(signbit(y), lax.neg(size), size)


@torch_op("aten::trunc")
def trunc(x: Array) -> Array:
    if not is_floating(x):
        return x
    return lax.select(lax.lt(x, lax.full_like(x, 0)), lax.ceil(x), lax.floor(x))


def _round(x: Array) -> Array:
    return lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN) if is_floating(x) else x


def _right_shift(x: Array, y: Operand) -> Array:
    x, y = operands(x, y)
    unsigned = jnp.issubdtype(x.dtype, jnp.unsignedinteger)
    return (lax.shift_right_logical if unsigned else lax.shift_right_arithmetic)(x, y)


@torch_op("aten::where.self")
def where(condition: Array, x: Array, y: Array) -> Array:
    x, y = operands(x, y)
    shape = jnp.broadcast_shapes(condition.shape, x.shape)
    condition = broadcast(cast(condition, torch.bool), shape)
    return lax.select(condition, broadcast(x, shape), broadcast(y, shape))


@torch_op("aten::clamp", "aten::clamp.Tensor")
def clamp(x: Array, min: Operand | None = None, max: Operand | None = None) -> Array:
    low = None if isinstance(min, float) and min == -math.inf else min
    high = None if isinstance(max, float) and max == math.inf else max
    common = result_type(*(value for value in (x, min, max) if value is not None))
    x = cast(x, common)
    if low is not None:
        x = lax.max(*operands(x, low, dtype=common))
    return x if high is None else lax.min(*operands(x, high, dtype=common))


@torch_op("aten::angle")
def angle(x: Array) -> Array:
    """Of a real number 0, or pi if it is negative."""
    if _is_complex(x):
        return lax.atan2(lax.imag(x), lax.real(x))
    x = floating(x)
    return where(lax.lt(x, lax.full_like(x, 0)), math.pi, lax.full_like(x, 0))


@torch_op("aten::polar")
def polar(size: Array, angle: Array) -> Array:
    size, angle = operands(size, angle)
    return lax.complex(lax.mul(size, lax.cos(angle)), lax.mul(size, lax.sin(angle)))


@torch_op("aten::view_as_real")
def view_as_real(x: Array) -> Array:
    parts = [lax.expand_dims(part, (x.ndim,)) for part in (lax.real(x), lax.imag(x))]
    return lax.concatenate(parts, x.ndim)


@torch_op("aten::view_as_complex")
def view_as_complex(x: Array) -> Array:
    last = x.ndim - 1
    return lax.complex(*(lax.index_in_dim(x, i, last, keepdims=False) for i in (0, 1)))


@torch_op("aten::_to_copy", "prims::convert_element_type")
def to_copy(x: Array, dtype: torch.dtype | None = None, *_: object, **__: object) -> Array:
    """Where the copy lies plays no part."""
    return cast(x, dtype)


@torch_op("aten::view.dtype")
def view_dtype(x: Array, dtype: torch.dtype) -> Array:
    wanted = jax_dtype(dtype)
    ratio = wanted.itemsize // x.dtype.itemsize
    if ratio > 1:
        x = lax.reshape(x, (*x.shape[:-1], x.shape[-1] // ratio, ratio))
    y = lax.bitcast_convert_type(x, wanted)
    return lax.collapse(y, x.ndim - 1) if y.ndim > x.ndim else y


def _float_operands(x: Array, y: Operand) -> list[Array]:
    common = result_type(x, y)
    is_float = common.is_floating_point or common.is_complex
    return operands(x, y, dtype=common if is_float else torch.get_default_dtype())


def _opposite_signs(remaining: Array, divisor: Array) -> Array:
    zero = lax.full_like(remaining, 0)
    differ = lax.ne(lax.lt(remaining, zero), lax.lt(divisor, zero))
    return lax.bitwise_and(differ, lax.ne(remaining, zero))


def _number_of_two(choose: Function, x: Array, y: Array) -> Array:
    """What is chosen of two; a number if one is a number."""
    x, y = operands(x, y)
    chosen = choose(x, y)
    if not is_floating(x):
        return chosen
    return lax.select(_isnan(x), y, lax.select(_isnan(y), x, chosen))


def _is_complex(x: Array) -> bool:
    return bool(jnp.iscomplexobj(x))


def _pow(x: Operand, exponent: Operand) -> Array:
    x, exponent = operands(x, exponent)
    return lax.pow(x, exponent) if is_floating(x) else jnp.power(x, exponent)


def _conj(x: Array) -> Array:
    return lax.conj(x) if _is_complex(x) else x


def _isnan(x: Array) -> Array:
    return lax.ne(x, x)


def _round_decimals(x: Array, *, decimals: int = 0) -> Array:
    if decimals == 0:
        return _round(x)
    return div(_round(mul(x, 10.0**decimals)), 10.0**decimals)


div, _eq, _log = _of_two_floats("div"), _of_two("eq"), _of_float("log")
_RIGHT_SHIFTS = "bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar"
register_all(
    {
        "pow.Tensor_Tensor pow.Scalar": _pow,
        "reciprocal": lambda x: div(1, x),
        "log2": lambda x: mul(_log(x), 1 / math.log(2)),
        "log10": lambda x: mul(_log(x), 1 / math.log(10)),
        "sign": lambda x: x if x.dtype == jnp.bool_ else lax.sign(x),
        "round": _round,
        "round.decimals": _round_decimals,
        "isnan": _isnan,
        "isinf": lambda x: _eq(lax.abs(x), math.inf) if is_floating(x) else _isnan(x),
        "logical_not": lambda x: (
            lax.bitwise_not(x) if x.dtype == jnp.bool_ else lax.eq(x, lax.full_like(x, 0))
        ),
        f"{_RIGHT_SHIFTS} __rshift__.Tensor __rshift__.Scalar": _right_shift,
        "fmax": lambda x, y: _number_of_two(lax.max, x, y),
        "fmin": lambda x, y: _number_of_two(lax.min, x, y),
        "_conj _conj_physical": _conj,
        "complex": lambda real, imaginary: lax.complex(*operands(real, imaginary)),
        # arrays are never written to: clones are the array itself
        "alias clone lift_fresh lift_fresh_copy lift": lambda x, **_: x,
        "copy": lambda x, source, _=False: broadcast(cast(source, torch_dtype(x)), x.shape),
    }
)
