"""Arithmetic, comparisons and functions of one number after another."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from flint.frontends.torch_ops.lazy_jax import jnp, lax
from flint.frontends.torch_ops.registry import torch_op
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
    torch_dtype,
)
from flint.ir.op_class import OpClass

if TYPE_CHECKING:
    from jax import Array

# sums and products ----------------------------------------------------------------------------


@torch_op("aten::add.Tensor", "aten::add.Scalar")
def add(x: Array, y: Operand, alpha: Number = 1) -> Array:
    """x + alpha y."""
    x, y = operands(x, y)
    if x.dtype == jnp.bool_:
        return lax.bitwise_or(x, y)
    return lax.add(x, _times(y, alpha))


@torch_op("aten::sub.Tensor", "aten::sub.Scalar")
def sub(x: Array, y: Operand, alpha: Number = 1) -> Array:
    """X - alpha y."""
    x, y = operands(x, y)
    return lax.sub(x, _times(y, alpha))


@torch_op("aten::mul.Tensor", "aten::mul.Scalar")
def mul(x: Array, y: Operand) -> Array:
    """X times y."""
    x, y = operands(x, y)
    return lax.bitwise_and(x, y) if x.dtype == jnp.bool_ else lax.mul(x, y)


@torch_op("aten::div.Tensor", "aten::div.Scalar")
def div(x: Array, y: Operand) -> Array:
    """X / y, floating also for integers."""
    return lax.div(*_float_operands(x, y))


@torch_op("aten::div.Tensor_mode", "aten::div.Scalar_mode")
def div_mode(x: Array, y: Operand, *, rounding_mode: str | None) -> Array:
    """X / y, and then rounded down or towards zero."""
    if rounding_mode is None:
        return div(x, y)
    if rounding_mode == "floor":
        return floor_divide(x, y)
    x, y = operands(x, y)
    quotient = lax.div(x, y)
    return trunc(quotient)


def floor_divide(x: Array, y: Operand) -> Array:
    """X / y rounded down."""
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


@torch_op("aten::fmod.Tensor", "aten::fmod.Scalar")
def fmod(x: Array, y: Operand) -> Array:
    """What remains of x / y rounded towards zero."""
    return lax.rem(*operands(x, y))


@torch_op("aten::remainder.Tensor", "aten::remainder.Scalar", "aten::remainder.Scalar_Tensor")
def remainder(x: Operand, y: Operand) -> Array:
    """What remains of x / y rounded down: it has the sign of y."""
    x, y = operands(x, y)
    remaining = lax.rem(x, y)
    if jnp.issubdtype(x.dtype, jnp.unsignedinteger):
        return remaining
    return lax.select(_opposite_signs(remaining, y), lax.add(remaining, y), remaining)


@torch_op("aten::lerp.Scalar", "aten::lerp.Tensor")
def lerp(start: Array, end: Array, weight: Operand) -> Array:
    """Start + weight (end - start)."""
    start, end, weight = operands(start, end, weight, dtype=torch_dtype(start))
    return lax.add(start, lax.mul(weight, lax.sub(end, start)))


@torch_op("aten::addcmul")
def addcmul(x: Array, y: Array, z: Array, *, value: Number = 1) -> Array:
    """X + value y z."""
    x, y, z = operands(x, y, z)
    return lax.add(x, _times(lax.mul(y, z), value))


@torch_op("aten::addcdiv")
def addcdiv(x: Array, y: Array, z: Array, *, value: Number = 1) -> Array:
    """X + value y / z."""
    x, y, z = operands(x, y, z)
    return lax.add(x, _times(lax.div(y, z), value))


@torch_op("aten::hypot")
def hypot(x: Array, y: Array) -> Array:
    """The square root of x² + y²."""
    x, y = _float_operands(x, y)
    return lax.sqrt(lax.add(lax.mul(x, x), lax.mul(y, y)))


# powers ---------------------------------------------------------------------------------------


@torch_op("aten::pow.Tensor_Scalar")
def pow_scalar(x: Array, exponent: Number) -> Array:
    """X to the power of a number; small whole powers are multiplications."""
    x = cast(x, result_type(x, exponent))
    if exponent == 1:
        return x
    if exponent == 0.5:
        return lax.sqrt(x)
    if exponent == -0.5:
        return lax.rsqrt(x)
    if not isinstance(exponent, complex) and exponent == int(exponent) and abs(exponent) <= 4:
        return lax.integer_pow(x, int(exponent))
    return pow_tensor(x, exponent)


@torch_op("aten::pow.Tensor_Tensor", "aten::pow.Scalar")
def pow_tensor(x: Operand, exponent: Array) -> Array:
    """X to the power of the exponents."""
    x, exponent = operands(x, exponent)
    return lax.pow(x, exponent) if is_floating(x) else jnp.power(x, exponent)


@torch_op("aten::sqrt")
def sqrt(x: Array) -> Array:
    """The square root."""
    return lax.sqrt(floating(x))


@torch_op("aten::rsqrt")
def rsqrt(x: Array) -> Array:
    """One over the square root."""
    return lax.rsqrt(floating(x))


@torch_op("aten::reciprocal")
def reciprocal(x: Array) -> Array:
    """One over x."""
    return div(1, x)


# exponentials and logarithms ------------------------------------------------------------------


@torch_op("aten::exp")
def exp(x: Array) -> Array:
    """E to the power x."""
    return lax.exp(floating(x))


@torch_op("aten::exp2")
def exp2(x: Array) -> Array:
    """Two to the power x."""
    return lax.exp2(floating(x))


@torch_op("aten::expm1")
def expm1(x: Array) -> Array:
    """E to the power x, minus one, exact near zero."""
    return lax.expm1(floating(x))


@torch_op("aten::log")
def log(x: Array) -> Array:
    """The natural logarithm."""
    return lax.log(floating(x))


@torch_op("aten::log2")
def log2(x: Array) -> Array:
    """The logarithm of base 2."""
    return mul(log(x), 1 / math.log(2))


@torch_op("aten::log10")
def log10(x: Array) -> Array:
    """The logarithm of base 10."""
    return mul(log(x), 1 / math.log(10))


@torch_op("aten::log1p")
def log1p(x: Array) -> Array:
    """The natural logarithm of one plus x, exact near zero."""
    return lax.log1p(floating(x))


# circular and hyperbolic functions ------------------------------------------------------------


@torch_op("aten::sin")
def sin(x: Array) -> Array:
    """The sine."""
    return lax.sin(floating(x))


@torch_op("aten::cos")
def cos(x: Array) -> Array:
    """The cosine."""
    return lax.cos(floating(x))


@torch_op("aten::tan")
def tan(x: Array) -> Array:
    """The tangent."""
    return lax.tan(floating(x))


@torch_op("aten::asin")
def asin(x: Array) -> Array:
    """The inverse of the sine."""
    return lax.asin(floating(x))


@torch_op("aten::acos")
def acos(x: Array) -> Array:
    """The inverse of the cosine."""
    return lax.acos(floating(x))


@torch_op("aten::atan")
def atan(x: Array) -> Array:
    """The inverse of the tangent."""
    return lax.atan(floating(x))


@torch_op("aten::atan2")
def atan2(y: Array, x: Array) -> Array:
    """The angle of the point (x, y)."""
    return lax.atan2(*_float_operands(y, x))


@torch_op("aten::sinh")
def sinh(x: Array) -> Array:
    """The hyperbolic sine."""
    return lax.sinh(floating(x))


@torch_op("aten::cosh")
def cosh(x: Array) -> Array:
    """The hyperbolic cosine."""
    return lax.cosh(floating(x))


@torch_op("aten::tanh")
def tanh(x: Array) -> Array:
    """The hyperbolic tangent."""
    return lax.tanh(floating(x))


@torch_op("aten::asinh")
def asinh(x: Array) -> Array:
    """The inverse of the hyperbolic sine."""
    return lax.asinh(floating(x))


@torch_op("aten::acosh")
def acosh(x: Array) -> Array:
    """The inverse of the hyperbolic cosine."""
    return lax.acosh(floating(x))


@torch_op("aten::atanh")
def atanh(x: Array) -> Array:
    """The inverse of the hyperbolic tangent."""
    return lax.atanh(floating(x))


# functions of probability ---------------------------------------------------------------------


@torch_op("aten::erf")
def erf(x: Array) -> Array:
    """The error function."""
    return lax.erf(floating(x))


@torch_op("aten::erfc")
def erfc(x: Array) -> Array:
    """One minus the error function."""
    return lax.erfc(floating(x))


@torch_op("aten::erfinv")
def erfinv(x: Array) -> Array:
    """The inverse of the error function."""
    return lax.erf_inv(floating(x))


@torch_op("aten::special_i0e", op_class=OpClass.FUNCTION)
def i0e(x: Array) -> Array:
    """The modified Bessel function of order 0, scaled by exp(-|x|)."""
    return lax.bessel_i0e(floating(x))


@torch_op("aten::special_i1e", op_class=OpClass.FUNCTION)
def i1e(x: Array) -> Array:
    """The modified Bessel function of order 1, scaled by exp(-|x|)."""
    return lax.bessel_i1e(floating(x))


@torch_op("aten::lgamma")
def lgamma(x: Array) -> Array:
    """The logarithm of the gamma function."""
    return lax.lgamma(floating(x))


@torch_op("aten::digamma")
def digamma(x: Array) -> Array:
    """The derivative of the logarithm of the gamma function."""
    return lax.digamma(floating(x))


@torch_op("aten::sigmoid")
def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    return lax.logistic(floating(x))


@torch_op("aten::sigmoid_backward")
def sigmoid_backward(grad: Array, output: Array) -> Array:
    """The gradient through `sigmoid`, from its result."""
    grad, output = operands(grad, output)
    slope = lax.mul(output, lax.sub(lax.full_like(output, 1), output))
    return lax.mul(grad, conj(slope))


@torch_op("aten::tanh_backward")
def tanh_backward(grad: Array, output: Array) -> Array:
    """The gradient through `tanh`, from its result."""
    grad, output = operands(grad, output)
    slope = lax.sub(lax.full_like(output, 1), lax.mul(output, output))
    return lax.mul(grad, conj(slope))


# signs and rounding ---------------------------------------------------------------------------


@torch_op("aten::neg")
def neg(x: Array) -> Array:
    """Minus x."""
    return lax.neg(x)


@torch_op("aten::abs")
def absolute(x: Array) -> Array:
    """X without its sign."""
    return lax.abs(x)


@torch_op("aten::sign")
def sign(x: Array) -> Array:
    """-1, 0 or 1; of a complex number the one of its direction and length 1."""
    return x if x.dtype == jnp.bool_ else lax.sign(x)


@torch_op("aten::signbit")
def signbit(x: Array) -> Array:
    """Whether x is negative, minus zero included."""
    if not is_floating(x):
        return lax.lt(x, lax.full_like(x, 0))
    return jnp.signbit(x)


@torch_op("aten::copysign.Tensor", "aten::copysign.Scalar")
def copysign(x: Array, y: Operand) -> Array:
    """The size of x with the sign of y."""
    x, y = _float_operands(x, y)
    size = lax.abs(x)
    return lax.select(signbit(y), lax.neg(size), size)


@torch_op("aten::nextafter")
def nextafter(x: Array, y: Array) -> Array:
    """The next number that the type has, from x towards y."""
    return lax.nextafter(*operands(x, y))


@torch_op("aten::floor")
def floor(x: Array) -> Array:
    """The largest whole number that is not larger."""
    return lax.floor(x) if is_floating(x) else x


@torch_op("aten::ceil")
def ceil(x: Array) -> Array:
    """The smallest whole number that is not smaller."""
    return lax.ceil(x) if is_floating(x) else x


@torch_op("aten::trunc")
def trunc(x: Array) -> Array:
    """The whole number towards zero."""
    if not is_floating(x):
        return x
    return lax.select(lax.lt(x, lax.full_like(x, 0)), lax.ceil(x), lax.floor(x))


@torch_op("aten::round")
def round_(x: Array) -> Array:
    """The nearest whole number, the even one of two that are as near."""
    return lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN) if is_floating(x) else x


@torch_op("aten::round.decimals")
def round_decimals(x: Array, *, decimals: int = 0) -> Array:
    """The nearest number of so many decimals."""
    if decimals == 0:
        return round_(x)
    return div(round_(mul(x, 10.0**decimals)), 10.0**decimals)


# comparisons ----------------------------------------------------------------------------------


@torch_op("aten::eq.Tensor", "aten::eq.Scalar")
def eq(x: Array, y: Operand) -> Array:
    """Whether x equals y."""
    return lax.eq(*operands(x, y))


@torch_op("aten::ne.Tensor", "aten::ne.Scalar")
def ne(x: Array, y: Operand) -> Array:
    """Whether x differs from y."""
    return lax.ne(*operands(x, y))


@torch_op("aten::lt.Tensor", "aten::lt.Scalar")
def lt(x: Array, y: Operand) -> Array:
    """Whether x is less than y."""
    return lax.lt(*operands(x, y))


@torch_op("aten::le.Tensor", "aten::le.Scalar")
def le(x: Array, y: Operand) -> Array:
    """Whether x is not greater than y."""
    return lax.le(*operands(x, y))


@torch_op("aten::gt.Tensor", "aten::gt.Scalar")
def gt(x: Array, y: Operand) -> Array:
    """Whether x is greater than y."""
    return lax.gt(*operands(x, y))


@torch_op("aten::ge.Tensor", "aten::ge.Scalar")
def ge(x: Array, y: Operand) -> Array:
    """Whether x is not less than y."""
    return lax.ge(*operands(x, y))


@torch_op("aten::isnan")
def isnan(x: Array) -> Array:
    """Whether x is not a number."""
    return lax.ne(x, x)


@torch_op("aten::isinf")
def isinf(x: Array) -> Array:
    """Whether x is plus or minus infinity."""
    return eq(lax.abs(x), math.inf) if is_floating(x) else ne(x, x)


# logic and bits -------------------------------------------------------------------------------


@torch_op("aten::logical_and")
def logical_and(x: Array, y: Array) -> Array:
    """Whether both are not zero."""
    return lax.bitwise_and(*operands(cast(x, torch.bool), cast(y, torch.bool)))


@torch_op("aten::logical_or")
def logical_or(x: Array, y: Array) -> Array:
    """Whether one is not zero."""
    return lax.bitwise_or(*operands(cast(x, torch.bool), cast(y, torch.bool)))


@torch_op("aten::logical_xor")
def logical_xor(x: Array, y: Array) -> Array:
    """Whether exactly one is not zero."""
    return lax.bitwise_xor(*operands(cast(x, torch.bool), cast(y, torch.bool)))


@torch_op("aten::logical_not")
def logical_not(x: Array) -> Array:
    """Whether x is zero."""
    return lax.bitwise_not(x) if x.dtype == jnp.bool_ else lax.eq(x, lax.full_like(x, 0))


@torch_op("aten::bitwise_and.Tensor", "aten::bitwise_and.Scalar")
def bitwise_and(x: Array, y: Operand) -> Array:
    """The bits that both have."""
    return lax.bitwise_and(*operands(x, y))


@torch_op("aten::bitwise_or.Tensor", "aten::bitwise_or.Scalar")
def bitwise_or(x: Array, y: Operand) -> Array:
    """The bits that one has."""
    return lax.bitwise_or(*operands(x, y))


@torch_op("aten::bitwise_xor.Tensor", "aten::bitwise_xor.Scalar")
def bitwise_xor(x: Array, y: Operand) -> Array:
    """The bits that exactly one has."""
    return lax.bitwise_xor(*operands(x, y))


@torch_op("aten::bitwise_not")
def bitwise_not(x: Array) -> Array:
    """The bits that x does not have."""
    return lax.bitwise_not(x)


@torch_op(
    "aten::bitwise_left_shift.Tensor",
    "aten::bitwise_left_shift.Tensor_Scalar",
    "aten::__lshift__.Tensor",
    "aten::__lshift__.Scalar",
)
def bitwise_left_shift(x: Array, y: Operand) -> Array:
    """Bits moved up by y places."""
    return lax.shift_left(*operands(x, y))


@torch_op(
    "aten::bitwise_right_shift.Tensor",
    "aten::bitwise_right_shift.Tensor_Scalar",
    "aten::__rshift__.Tensor",
    "aten::__rshift__.Scalar",
)
def bitwise_right_shift(x: Array, y: Operand) -> Array:
    """Bits moved down by y places, the sign kept."""
    x, y = operands(x, y)
    unsigned = jnp.issubdtype(x.dtype, jnp.unsignedinteger)
    return (lax.shift_right_logical if unsigned else lax.shift_right_arithmetic)(x, y)


# choices --------------------------------------------------------------------------------------


@torch_op("aten::where.self")
def where(condition: Array, x: Array, y: Array) -> Array:
    """X where the condition holds, and y elsewhere."""
    x, y = operands(x, y)
    shape = jnp.broadcast_shapes(condition.shape, x.shape)
    condition = broadcast(cast(condition, torch.bool), shape)
    return lax.select(condition, broadcast(x, shape), broadcast(y, shape))


@torch_op("aten::maximum")
def maximum(x: Array, y: Array) -> Array:
    """The larger of two, not a number if one is not."""
    return lax.max(*operands(x, y))


@torch_op("aten::minimum")
def minimum(x: Array, y: Array) -> Array:
    """The smaller of two, not a number if one is not."""
    return lax.min(*operands(x, y))


@torch_op("aten::fmax")
def fmax(x: Array, y: Array) -> Array:
    """The larger of two; a number if one is a number."""
    return _number_of_two(lax.max, *operands(x, y))


@torch_op("aten::fmin")
def fmin(x: Array, y: Array) -> Array:
    """The smaller of two; a number if one is a number."""
    return _number_of_two(lax.min, *operands(x, y))


@torch_op("aten::clamp", "aten::clamp.Tensor")
def clamp(x: Array, min: Operand | None = None, max: Operand | None = None) -> Array:
    """X, but not less than `min` and not more than `max`."""
    low = None if isinstance(min, float) and min == -math.inf else min
    high = None if isinstance(max, float) and max == math.inf else max
    common = result_type(*(value for value in (x, min, max) if value is not None))
    x = cast(x, common)
    if low is not None:
        x = lax.max(*operands(x, low, dtype=common))
    return x if high is None else lax.min(*operands(x, high, dtype=common))


def clamp_min(x: Array, min: Operand) -> Array:
    """X, but not less than `min`."""
    return lax.max(*operands(x, min))


def clamp_max(x: Array, max: Operand) -> Array:
    """X, but not more than `max`."""
    return lax.min(*operands(x, max))


# complex numbers ------------------------------------------------------------------------------


@torch_op("aten::_conj", "aten::_conj_physical")
def conj(x: Array) -> Array:
    """The complex conjugate."""
    return lax.conj(x) if _is_complex(x) else x


@torch_op("aten::angle")
def angle(x: Array) -> Array:
    """The angle of a complex number; of a negative one pi."""
    if _is_complex(x):
        return lax.atan2(lax.imag(x), lax.real(x))
    x = floating(x)
    return where(lax.lt(x, lax.full_like(x, 0)), math.pi, lax.full_like(x, 0))


@torch_op("aten::complex")
def complex_(real: Array, imag: Array) -> Array:
    """Complex numbers from their parts."""
    return lax.complex(*operands(real, imag))


@torch_op("aten::polar")
def polar(size: Array, angle: Array) -> Array:
    """Complex numbers from sizes and angles."""
    size, angle = operands(size, angle)
    return lax.complex(lax.mul(size, lax.cos(angle)), lax.mul(size, lax.sin(angle)))


@torch_op("aten::view_as_real")
def view_as_real(x: Array) -> Array:
    """Real and imaginary parts in a new last dimension."""
    parts = [lax.expand_dims(part, (x.ndim,)) for part in (lax.real(x), lax.imag(x))]
    return lax.concatenate(parts, x.ndim)


@torch_op("aten::view_as_complex")
def view_as_complex(x: Array) -> Array:
    """Complex numbers from a last dimension of two parts."""
    last = x.ndim - 1
    return lax.complex(*(lax.index_in_dim(x, i, last, keepdims=False) for i in (0, 1)))


# types and copies -----------------------------------------------------------------------------


@torch_op("aten::_to_copy", "prims::convert_element_type")
def to_copy(x: Array, dtype: torch.dtype | None = None, *_: object, **__: object) -> Array:
    """X in another type; where it lies plays no part."""
    return cast(x, dtype)


@torch_op("aten::alias", "aten::clone", "aten::lift_fresh", "aten::lift_fresh_copy", "aten::lift")
def same(x: Array, **_: object) -> Array:
    """X itself: arrays are never written to."""
    return x


@torch_op("aten::copy")
def copy(x: Array, source: Array, non_blocking: bool = False) -> Array:
    """The source, in x's type and shape."""
    return broadcast(cast(source, torch_dtype(x)), x.shape)


@torch_op("aten::view.dtype")
def view_dtype(x: Array, dtype: torch.dtype) -> Array:
    """The same bits as numbers of another type, joined or split in the last dimension."""
    wanted = jax_dtype(dtype)
    ratio = wanted.itemsize // x.dtype.itemsize
    if ratio > 1:
        x = lax.reshape(x, (*x.shape[:-1], x.shape[-1] // ratio, ratio))
    y = lax.bitcast_convert_type(x, wanted)
    return lax.collapse(y, x.ndim - 1) if y.ndim > x.ndim else y


# shared ---------------------------------------------------------------------------------------


def _times(x: Array, factor: Number) -> Array:
    return x if factor == 1 else lax.mul(x, lax.full_like(x, factor))


def _float_operands(x: Array, y: Operand) -> list[Array]:
    common = result_type(x, y)
    is_float = common.is_floating_point or common.is_complex
    return operands(x, y, dtype=common if is_float else torch.get_default_dtype())


def _opposite_signs(remaining: Array, divisor: Array) -> Array:
    zero = lax.full_like(remaining, 0)
    differ = lax.ne(lax.lt(remaining, zero), lax.lt(divisor, zero))
    return lax.bitwise_and(differ, lax.ne(remaining, zero))


def _number_of_two(choose: Callable[[Array, Array], Array], x: Array, y: Array) -> Array:
    chosen = choose(x, y)
    if not is_floating(x):
        return chosen
    return lax.select(isnan(x), y, lax.select(isnan(y), x, chosen))


def _is_complex(x: Array) -> bool:
    return bool(jnp.iscomplexobj(x))
