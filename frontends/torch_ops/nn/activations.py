"""Activation functions of neural networks, and their gradients."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from flint.frontends.torch_ops.lazy_jax import lax
from flint.frontends.torch_ops.registry import torch_op
from flint.frontends.torch_ops.types import Number, operands, scaled

if TYPE_CHECKING:
    from jax import Array

_GELU_CUBIC = 0.044715  # Hendrycks and Gimpel 2016, section 2


@torch_op("aten::relu")
def relu(x: Array) -> Array:
    return lax.max(x, lax.full_like(x, 0))


@torch_op("aten::leaky_relu")
def leaky_relu(x: Array, negative_slope: Number = 0.01) -> Array:
    return lax.select(_positive(x), x, scaled(x, negative_slope))


@torch_op("aten::hardtanh")
def hardtanh(x: Array, min_val: Number = -1, max_val: Number = 1) -> Array:
    return lax.min(lax.max(x, lax.full_like(x, min_val)), lax.full_like(x, max_val))


@torch_op("aten::silu")
def silu(x: Array) -> Array:
    return lax.mul(x, lax.logistic(x))


@torch_op("aten::silu_backward")
def silu_backward(grad: Array, x: Array) -> Array:
    """The gradient through `silu`: s (1 + x (1 - s)) with s the sigmoid."""
    grad, x = operands(grad, x)
    s = lax.logistic(x)
    one = lax.full_like(x, 1)
    slope = lax.mul(s, lax.add(one, lax.mul(x, lax.sub(one, s))))
    return lax.mul(grad, slope)


@torch_op("aten::gelu")
def gelu(x: Array, *, approximate: str = "none") -> Array:
    """x times the probability that a normal number is below it."""
    return lax.mul(x, scaled(_shifted(_gelu_curve(x, approximate), 1), 0.5))


@torch_op("aten::gelu_backward")
def gelu_backward(grad: Array, x: Array, *, approximate: str = "none") -> Array:
    """The gradient through `gelu`: the probability, plus x times its slope."""
    grad, x = operands(grad, x)
    curve = _gelu_curve(x, approximate)
    square = lax.mul(x, x)
    if approximate == "tanh":
        steep = _shifted(scaled(square, 3 * _GELU_CUBIC), 1)
        flat = lax.sub(lax.full_like(x, 1), lax.mul(curve, curve))
        slope = scaled(lax.mul(flat, steep), math.sqrt(0.5 / math.pi))
    else:
        slope = scaled(lax.exp(scaled(square, -0.5)), math.sqrt(0.5 / math.pi))
    probability = scaled(_shifted(curve, 1), 0.5)
    return lax.mul(grad, lax.add(probability, lax.mul(x, slope)))


@torch_op("aten::elu")
def elu(x: Array, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Array:
    """scale x where x is positive, and scale alpha (exp(input_scale x) - 1) elsewhere."""
    low = scaled(lax.expm1(scaled(x, input_scale)), alpha * scale)
    return lax.select(_positive(x), scaled(x, scale), low)


def _gelu_curve(x: Array, approximate: str) -> Array:
    """Twice the probability of a normal number below x, minus one."""
    if approximate == "tanh":
        cubic = scaled(lax.integer_pow(x, 3), _GELU_CUBIC)
        return lax.tanh(scaled(lax.add(x, cubic), math.sqrt(2 / math.pi)))
    return lax.erf(scaled(x, math.sqrt(0.5)))


def _positive(x: Array) -> Array:
    return lax.gt(x, lax.full_like(x, 0))


def _shifted(x: Array, amount: Number) -> Array:
    return lax.add(x, lax.full_like(x, amount))
