"""Losses. The score of a target is read by one gather that works on sharded classes: each device
reads its own, and the sum over devices has one number for each row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flint.frontends.torch_ops.lazy_jax import jnp, lax
from flint.frontends.torch_ops.nn.norms import at_least_f32
from flint.frontends.torch_ops.registry import torch_op

if TYPE_CHECKING:
    from jax import Array

NONE, MEAN, SUM = 0, 1, 2


def _class_dimension(x: Array) -> int:
    return 1 if x.ndim > 1 else 0


def _picked(x: Array, places: Array) -> Array:
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


def _weights(x: Array, target: Array, weight: Array, ignore_index: int) -> tuple[Any, Any]:
    """A class that exists for every target, and its weight; 0 where the target is ignored."""
    valid = target != ignore_index
    places = jnp.where(valid, target, 0)
    if weight is None:
        return places, valid.astype(at_least_f32(x).dtype)
    numbers = lax.GatherDimensionNumbers((), (0,), (0,))
    found = lax.gather(weight, places[..., None], numbers, (1,), mode="promise_in_bounds")
    return places, jnp.where(valid, at_least_f32(found), 0)


@torch_op("aten::nll_loss_forward")
def nll_loss_forward(
    x: Array, target: Array, weight: Array | None, reduction: int, ignore_index: int
) -> tuple[Any, Any]:
    """The weighted negative score of every target, reduced, and the sum of weights."""
    places, weights = _weights(x, target, weight, ignore_index)
    each = -at_least_f32(_picked(x, places)) * weights
    if reduction == NONE:
        return each.astype(x.dtype), jnp.zeros((), x.dtype)
    total = jnp.sum(weights)
    loss = jnp.sum(each)
    loss = loss / total if reduction == MEAN else loss
    return loss.astype(x.dtype), total.astype(x.dtype)


@torch_op("aten::nll_loss_backward")
def nll_loss_backward(
    grad: Array,
    x: Array,
    target: Array,
    weight: Array | None,
    reduction: int,
    ignore_index: int,
    total_weight: Array,
) -> Array:
    _, weights = _weights(x, target, weight, ignore_index)
    scale = (
        at_least_f32(grad) / at_least_f32(total_weight) if reduction == MEAN else at_least_f32(grad)
    )
    each = (-weights * scale).astype(x.dtype)
    classes = _class_dimension(x)
    rows = tuple(d for d in range(x.ndim) if d != classes)
    number = lax.broadcasted_iota(target.dtype, x.shape, classes)
    here = number == lax.broadcast_in_dim(target, x.shape, rows)
    return jnp.where(here, lax.broadcast_in_dim(each, x.shape, rows), jnp.asarray(0, x.dtype))
