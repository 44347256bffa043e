"""Activation functions of neural networks, and their gradients."""

from __future__ import annotations

import math
from typing import Any

from jax import Array, lax

from flint.frontends.torch_ops.registry import torch_op
from flint.frontends.torch_ops.tensors.elementwise import clamp, sigmoid
from flint.frontends.torch_ops.types import dimension, operands

_SELU_ALPHA = 1.6732632423543772848170429916717  # Klambauer et al. 2017, section 3
_SELU_SCALE = 1.0507009873554804934193349852946
_GELU_CUBIC = 0.044715  # Hendrycks and Gimpel 2016, section 2

# rectifiers -----------------------------------------------------------------------------------


@torch_op("aten::relu")
def relu(x: Any) -> Array:
    """max(x, 0)."""
    return lax.max(x, lax.full_like(x, 0))


@torch_op("aten::relu6")
def relu6(x: Any) -> Array:
    """x between 0 and 6."""
    return clamp(x, 0, 6)


@torch_op("aten::threshold")
def threshold(x: Any, threshold: Any, value: Any) -> Array:
    """x where it is above the threshold, and `value` elsewhere."""
    return lax.select(lax.gt(x, lax.full_like(x, threshold)), x, lax.full_like(x, value))


@torch_op("aten::threshold_backward")
def threshold_backward(grad: Any, x: Any, threshold: Any) -> Array:
    """The gradient through `threshold` and `relu`, from argument or result."""
    grad, x = operands(grad, x)
    return lax.select(lax.gt(x, lax.full_like(x, threshold)), grad, lax.full_like(grad, 0))


@torch_op("aten::leaky_relu")
def leaky_relu(x: Any, negative_slope: Any = 0.01) -> Array:
    """x where it is positive, and a fraction of it elsewhere."""
    return lax.select(_positive(x), x, _scaled(x, negative_slope))


@torch_op("aten::leaky_relu_backward")
def leaky_relu_backward(
    grad: Any, x: Any, negative_slope: Any, self_is_result: bool = False
) -> Array:
    """The gradient through `leaky_relu`, from argument or result."""
    grad, x = operands(grad, x)
    return lax.select(_positive(x), grad, _scaled(grad, negative_slope))


@torch_op("aten::_prelu_kernel", "aten::prelu")
def prelu(x: Any, weight: Any) -> Array:
    """`leaky_relu` with learned slopes: one, or one for each channel (dimension 1)."""
    if weight.ndim == 1 and x.ndim > 1:
        weight = lax.reshape(weight, (1, weight.shape[0], *(1,) * (x.ndim - 2)))
    x, weight = operands(x, weight)
    return lax.select(_positive(x), x, lax.mul(weight, x))


@torch_op("aten::_prelu_kernel_backward")
def prelu_backward(grad: Any, x: Any, weight: Any) -> tuple[Array, Array]:
    """The gradients through `prelu`, the weight's before it is summed."""
    grad, x, weight = operands(grad, x, weight)
    positive = _positive(x)
    of_x = lax.select(positive, grad, lax.mul(weight, grad))
    return of_x, lax.select(positive, lax.full_like(grad, 0), lax.mul(x, grad))


@torch_op("aten::hardtanh")
def hardtanh(x: Any, min_val: Any = -1, max_val: Any = 1) -> Array:
    """x between two bounds."""
    return lax.min(lax.max(x, lax.full_like(x, min_val)), lax.full_like(x, max_val))


@torch_op("aten::hardtanh_backward")
def hardtanh_backward(grad: Any, x: Any, min_val: Any, max_val: Any) -> Array:
    """The gradient through `hardtanh`: none at and outside the bounds."""
    grad, x = operands(grad, x)
    inside = lax.gt(x, lax.full_like(x, min_val)) & lax.lt(x, lax.full_like(x, max_val))
    return lax.select(inside, grad, lax.full_like(grad, 0))


@torch_op("aten::hardsigmoid")
def hardsigmoid(x: Any) -> Array:
    """x / 6 + 1/2, between 0 and 1."""
    return _scaled(clamp(_shifted(x, 3), 0, 6), 1 / 6)


@torch_op("aten::hardsigmoid_backward")
def hardsigmoid_backward(grad: Any, x: Any) -> Array:
    """The gradient through `hardsigmoid`."""
    return hardtanh_backward(_scaled(grad, 1 / 6), x, -3, 3)


@torch_op("aten::hardswish")
def hardswish(x: Any) -> Array:
    """x times its `hardsigmoid`."""
    return lax.mul(x, hardsigmoid(x))


@torch_op("aten::hardswish_backward")
def hardswish_backward(grad: Any, x: Any) -> Array:
    """The gradient through `hardswish`: 0 up to -3, 1 from 3, a line between."""
    grad, x = operands(grad, x)
    line = lax.mul(grad, _shifted(_scaled(x, 1 / 3), 0.5))
    zero = lax.full_like(x, 0)
    inner = lax.select(lax.lt(x, lax.full_like(x, 3)), line, grad)
    return lax.select(lax.le(x, lax.full_like(x, -3)), zero, inner)


@torch_op("aten::hardshrink")
def hardshrink(x: Any, lambd: Any = 0.5) -> Array:
    """x, but 0 where it is not further from 0 than `lambd`."""
    return lax.select(_near_zero(x, lambd), lax.full_like(x, 0), x)


@torch_op("aten::hardshrink_backward")
def hardshrink_backward(grad: Any, x: Any, lambd: Any) -> Array:
    """The gradient through `hardshrink` and `softshrink`."""
    grad, x = operands(grad, x)
    return lax.select(_near_zero(x, lambd), lax.full_like(grad, 0), grad)


@torch_op("aten::softshrink_backward")
def softshrink_backward(grad: Any, x: Any, lambd: Any) -> Array:
    """The gradient through `softshrink`."""
    return hardshrink_backward(grad, x, lambd)


@torch_op("aten::softshrink")
def softshrink(x: Any, lambd: Any = 0.5) -> Array:
    """x moved towards 0 by `lambd`, and 0 where that would cross it."""
    return lax.sub(x, hardtanh(x, -lambd, lambd))


# smooth gates ---------------------------------------------------------------------------------


@torch_op("aten::silu")
def silu(x: Any) -> Array:
    """x times its `sigmoid`."""
    return lax.mul(x, lax.logistic(x))


@torch_op("aten::silu_backward")
def silu_backward(grad: Any, x: Any) -> Array:
    """The gradient through `silu`: s (1 + x (1 - s)) with s the sigmoid."""
    grad, x = operands(grad, x)
    s = lax.logistic(x)
    one = lax.full_like(x, 1)
    slope = lax.mul(s, lax.add(one, lax.mul(x, lax.sub(one, s))))
    return lax.mul(grad, slope)


@torch_op("aten::gelu")
def gelu(x: Any, *, approximate: str = "none") -> Array:
    """x times the probability that a normal number is below it."""
    return lax.mul(x, _scaled(_shifted(_gelu_curve(x, approximate), 1), 0.5))


@torch_op("aten::gelu_backward")
def gelu_backward(grad: Any, x: Any, *, approximate: str = "none") -> Array:
    """The gradient through `gelu`: the probability, plus x times its slope."""
    grad, x = operands(grad, x)
    curve = _gelu_curve(x, approximate)
    square = lax.mul(x, x)
    if approximate == "tanh":
        steep = _shifted(_scaled(square, 3 * _GELU_CUBIC), 1)
        flat = lax.sub(lax.full_like(x, 1), lax.mul(curve, curve))
        slope = _scaled(lax.mul(flat, steep), math.sqrt(0.5 / math.pi))
    else:
        slope = _scaled(lax.exp(_scaled(square, -0.5)), math.sqrt(0.5 / math.pi))
    probability = _scaled(_shifted(curve, 1), 0.5)
    return lax.mul(grad, lax.add(probability, lax.mul(x, slope)))


@torch_op("aten::mish")
def mish(x: Any) -> Array:
    """x times the tanh of its `softplus`."""
    return lax.mul(x, lax.tanh(softplus(x)))


@torch_op("aten::mish_backward")
def mish_backward(grad: Any, x: Any) -> Array:
    """The gradient through `mish`."""
    grad, x = operands(grad, x)
    t = lax.tanh(softplus(x))
    bend = lax.mul(lax.mul(x, lax.logistic(x)), lax.sub(lax.full_like(x, 1), lax.mul(t, t)))
    return lax.mul(grad, lax.add(t, bend))


@torch_op("aten::glu")
def glu(x: Any, dim: int = -1) -> Array:
    """The first half of a dimension times the sigmoid of the second."""
    first, second = _halves(x, dim)
    return lax.mul(first, lax.logistic(second))


@torch_op("aten::glu_backward")
def glu_backward(grad: Any, x: Any, dim: int) -> Array:
    """The gradient through `glu`."""
    first, second = _halves(x, dim)
    s = lax.logistic(second)
    of_first = lax.mul(grad, s)
    of_second = lax.mul(lax.mul(of_first, first), lax.sub(lax.full_like(s, 1), s))
    return lax.concatenate([of_first, of_second], dimension(dim, x.ndim))


# exponential units ----------------------------------------------------------------------------


@torch_op("aten::elu")
def elu(x: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Array:
    """scale x where x is positive, and scale alpha (exp(input_scale x) - 1) elsewhere."""
    low = _scaled(lax.expm1(_scaled(x, input_scale)), alpha * scale)
    return lax.select(_positive(x), _scaled(x, scale), low)


@torch_op("aten::elu_backward")
def elu_backward(
    grad: Any, alpha: Any, scale: Any, input_scale: Any, is_result: bool, self_or_result: Any
) -> Array:
    """The gradient through `elu`, from its result or its argument."""
    grad, x = operands(grad, self_or_result)
    if is_result:
        slope = _scaled(_shifted(x, alpha * scale), input_scale)
    else:
        slope = _scaled(lax.exp(_scaled(x, input_scale)), alpha * scale * input_scale)
    return lax.select(_positive(x), _scaled(grad, scale), lax.mul(grad, slope))


@torch_op("aten::celu")
def celu(x: Any, alpha: Any = 1.0) -> Array:
    """`elu` whose slope has no jump."""
    return elu(x, alpha, 1, 1 / alpha)


@torch_op("aten::selu")
def selu(x: Any) -> Array:
    """`elu` with the constants that keep mean and variance."""
    return elu(x, _SELU_ALPHA, _SELU_SCALE)


@torch_op("aten::softplus")
def softplus(x: Any, beta: Any = 1, threshold: Any = 20) -> Array:
    """log(1 + exp(beta x)) / beta, and x itself where beta x is above the threshold."""
    scaled = _scaled(x, beta)
    soft = _scaled(lax.log1p(lax.exp(scaled)), 1 / beta)
    return lax.select(lax.gt(scaled, lax.full_like(x, threshold)), x, soft)


@torch_op("aten::softplus_backward")
def softplus_backward(grad: Any, x: Any, beta: Any, threshold: Any) -> Array:
    """The gradient through `softplus`."""
    grad, x = operands(grad, x)
    scaled = _scaled(x, beta)
    soft = lax.mul(grad, lax.logistic(scaled))
    return lax.select(lax.gt(scaled, lax.full_like(x, threshold)), grad, soft)


@torch_op("aten::log_sigmoid_forward")
def log_sigmoid_forward(x: Any) -> tuple[Array, Array]:
    """The logarithm of the sigmoid, and the exp(-|x|) that its gradient reuses."""
    reused = lax.exp(lax.neg(lax.abs(x)))
    return lax.sub(lax.min(x, lax.full_like(x, 0)), lax.log1p(reused)), reused


@torch_op("aten::log_sigmoid")
def log_sigmoid(x: Any) -> Array:
    """The logarithm of the sigmoid."""
    return log_sigmoid_forward(x)[0]


@torch_op("aten::log_sigmoid_backward")
def log_sigmoid_backward(grad: Any, x: Any, buffer: Any) -> Array:
    """The gradient through `log_sigmoid`: the sigmoid of -x."""
    grad, x = operands(grad, x)
    return lax.mul(grad, sigmoid(lax.neg(x)))


# shared ---------------------------------------------------------------------------------------


def _gelu_curve(x: Array, approximate: str) -> Array:
    """Twice the probability of a normal number below x, minus one."""
    if approximate == "tanh":
        cubic = _scaled(lax.integer_pow(x, 3), _GELU_CUBIC)
        return lax.tanh(_scaled(lax.add(x, cubic), math.sqrt(2 / math.pi)))
    return lax.erf(_scaled(x, math.sqrt(0.5)))


def _positive(x: Array) -> Array:
    return lax.gt(x, lax.full_like(x, 0))


def _near_zero(x: Array, bound: Any) -> Array:
    return lax.le(lax.abs(x), lax.full_like(x, bound))


def _scaled(x: Array, factor: Any) -> Array:
    return x if factor == 1 else lax.mul(x, lax.full_like(x, factor))


def _shifted(x: Array, amount: Any) -> Array:
    return lax.add(x, lax.full_like(x, amount))


def _halves(x: Array, dim: int) -> tuple[Array, Array]:
    axis = dimension(dim, x.ndim)
    half = x.shape[axis] // 2
    return (
        lax.slice_in_dim(x, 0, half, axis=axis),
        lax.slice_in_dim(x, half, 2 * half, axis=axis),
    )
