"""Losses. The score of a target is read by one gather that works on sharded classes: each device
reads its own, and the sum over devices has one number for each row."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from flint.frontends.torch_ops.registry import torch_op
from flint.frontends.torch_ops.types import broadcast

NONE, MEAN, SUM = 0, 1, 2


def _wide(x: Any) -> Any:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _reduced(x: Any, reduction: int) -> Any:
    if reduction == NONE:
        return x
    return jnp.mean(x) if reduction == MEAN else jnp.sum(x, dtype=x.dtype)


def _share(grad: Any, x: Any, reduction: int) -> Any:
    """The gradient of each element's loss."""
    return grad * jnp.asarray(1 / max(x.size, 1), grad.dtype) if reduction == MEAN else grad


# targets are classes --------------------------------------------------------------------------


def _class_dimension(x: Any) -> int:
    return 1 if x.ndim > 1 else 0


def _picked(x: Any, places: Any) -> Any:
    """x[n, places[n, ...], ...]: one element of the class dimension for every other position."""
    classes = _class_dimension(x)
    batch = tuple(d for d in range(x.ndim) if d != classes)
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(),
        collapsed_slice_dims=(classes,),
        start_index_map=(classes,),
        operand_batching_dims=batch,
        start_indices_batching_dims=tuple(range(len(batch))),
    )
    ones = (1,) * x.ndim
    return lax.gather(x, places[..., None], numbers, ones, mode="promise_in_bounds")


def _weights(x: Any, target: Any, weight: Any, ignore_index: int) -> tuple[Any, Any]:
    """A class that exists for every target, and its weight; 0 where the target is ignored."""
    valid = target != ignore_index
    places = jnp.where(valid, target, 0)
    if weight is None:
        return places, valid.astype(_wide(x).dtype)
    numbers = lax.GatherDimensionNumbers((), (0,), (0,))
    found = lax.gather(weight, places[..., None], numbers, (1,), mode="promise_in_bounds")
    return places, jnp.where(valid, _wide(found), 0)


@torch_op("aten::nll_loss_forward", "aten::nll_loss2d_forward")
def nll_loss_forward(
    x: Any, target: Any, weight: Any, reduction: int, ignore_index: int
) -> tuple[Any, Any]:
    """The weighted negative score of every target, reduced, and the sum of weights."""
    places, weights = _weights(x, target, weight, ignore_index)
    each = -_wide(_picked(x, places)) * weights
    if reduction == NONE:
        return each.astype(x.dtype), jnp.zeros((), x.dtype)
    total = jnp.sum(weights)
    loss = jnp.sum(each)
    loss = loss / total if reduction == MEAN else loss
    return loss.astype(x.dtype), total.astype(x.dtype)


@torch_op("aten::nll_loss_backward", "aten::nll_loss2d_backward")
def nll_loss_backward(
    grad: Any,
    x: Any,
    target: Any,
    weight: Any,
    reduction: int,
    ignore_index: int,
    total_weight: Any,
) -> Any:
    """The gradient is that of the target's class, and 0 elsewhere."""
    _, weights = _weights(x, target, weight, ignore_index)
    scale = _wide(grad) / _wide(total_weight) if reduction == MEAN else _wide(grad)
    each = (-weights * scale).astype(x.dtype)
    classes = _class_dimension(x)
    rows = tuple(d for d in range(x.ndim) if d != classes)
    number = lax.broadcasted_iota(target.dtype, x.shape, classes)
    here = number == lax.broadcast_in_dim(target, x.shape, rows)
    return jnp.where(here, lax.broadcast_in_dim(each, x.shape, rows), jnp.asarray(0, x.dtype))


# targets are numbers --------------------------------------------------------------------------


@torch_op("aten::mse_loss")
def mse_loss(x: Any, target: Any, reduction: int = MEAN) -> Any:
    """Squared differences."""
    difference = x - target
    return _reduced(difference * difference, reduction)


@torch_op("aten::mse_loss_backward")
def mse_loss_backward(grad: Any, x: Any, target: Any, reduction: int) -> Any:
    """Twice the difference."""
    share = broadcast(_share(grad, x, reduction), x.shape)
    return share * (x - target) * jnp.asarray(2, x.dtype)


@torch_op("aten::smooth_l1_loss")
def smooth_l1_loss(x: Any, target: Any, reduction: int = MEAN, beta: float = 1.0) -> Any:
    """Squares below `beta`, differences above."""
    distance = jnp.abs(x - target)
    if beta == 0:
        return _reduced(distance, reduction)
    near = distance < beta
    return _reduced(
        jnp.where(near, distance * distance * (0.5 / beta), distance - 0.5 * beta), reduction
    )


@torch_op("aten::smooth_l1_loss_backward")
def smooth_l1_loss_backward(grad: Any, x: Any, target: Any, reduction: int, beta: float) -> Any:
    """The difference, cut off at 1."""
    difference = x - target
    slope = jnp.sign(difference) if beta == 0 else jnp.clip(difference / beta, -1, 1)
    return slope * broadcast(_share(grad, x, reduction), x.shape)


@torch_op("aten::huber_loss")
def huber_loss(x: Any, target: Any, reduction: int = MEAN, delta: float = 1.0) -> Any:
    """Squares below `delta`, differences above."""
    distance = jnp.abs(x - target)
    near = distance < delta
    far = (distance - 0.5 * delta) * delta
    return _reduced(jnp.where(near, distance * distance * 0.5, far), reduction)


@torch_op("aten::huber_loss_backward")
def huber_loss_backward(grad: Any, x: Any, target: Any, reduction: int, delta: float) -> Any:
    """The difference, cut off at `delta`."""
    slope = jnp.clip(x - target, -delta, delta)
    return slope * broadcast(_share(grad, x, reduction), x.shape)


@torch_op("aten::binary_cross_entropy")
def binary_cross_entropy(x: Any, target: Any, weight: Any = None, reduction: int = MEAN) -> Any:
    """Of probabilities; logarithms are cut off at -100."""
    yes, no = jnp.maximum(jnp.log(x), -100), jnp.maximum(jnp.log1p(-x), -100)
    each = (target - 1) * no - target * yes
    return _reduced(each if weight is None else each * weight, reduction)


@torch_op("aten::binary_cross_entropy_backward")
def binary_cross_entropy_backward(
    grad: Any, x: Any, target: Any, weight: Any = None, reduction: int = MEAN
) -> Any:
    """Of probabilities; the divisor is at least 1e-12."""
    share = broadcast(_share(grad, x, reduction), x.shape)
    found = share * (x - target) / jnp.maximum((1 - x) * x, jnp.asarray(1e-12, x.dtype))
    return found if weight is None else found * weight


@torch_op("aten::binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    x: Any, target: Any, weight: Any = None, pos_weight: Any = None, reduction: int = MEAN
) -> Any:
    """Of scores before the sigmoid."""
    log_yes = -jax.nn.softplus(-x)
    if pos_weight is not None:
        log_yes = (1 + (pos_weight - 1) * target) * log_yes
    each = (1 - target) * x - log_yes
    return _reduced(each if weight is None else each * weight, reduction)
