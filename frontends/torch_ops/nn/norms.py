"""Normalizations: layer, group, batch and root-mean-square, forward and backward.

Short types are normalized in float32, as PyTorch does. Statistics have the shapes and types of
PyTorch's GPU kernels (its CPU kernels store some of them in the short type).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flint.frontends.torch_ops.lazy_jax import jnp, lax
from flint.frontends.torch_ops.registry import register_all, torch_op

if TYPE_CHECKING:
    from jax import Array

Dims = tuple[int, ...]


def at_least_f32(x: Array) -> Array:
    """At least float32, in which sums are."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _mean(x: Array, dims: Dims) -> Array:
    """The mean over some dimensions, that stay with size 1."""
    return jnp.sum(x, dims, keepdims=True) * _inverse(x, dims)


def _inverse(x: Array, dims: Dims) -> float:
    count: int = math.prod(x.shape[d] for d in dims)
    return 1 / max(count, 1)


def _normalised(x: Array, dims: Dims, eps: float) -> tuple[Any, Any, Any, Any]:
    """(x - mean) / deviation, the mean, the variance, and 1 / deviation."""
    mean = _mean(x, dims)
    centred = x - mean
    variance = _mean(centred * centred, dims)
    rstd = lax.rsqrt(variance + eps)
    return centred * rstd, mean, variance, rstd


def _of_input(grad: Array, normal: Array, rstd: Array, dims: Dims) -> Array:
    """The gradient of what was normalized, from that of the normal numbers."""
    pull = _mean(grad, dims) + normal * _mean(grad * normal, dims)
    return (grad - pull) * rstd


def _affine(x: Array, weight: Array, bias: Array | None) -> Array:
    if weight is not None:
        x = x * weight
    return x if bias is None else x + bias


def _last(x: Array, normalized_shape: Sequence[int]) -> tuple[Dims, Dims]:
    """Dimensions that are normalized, and all in front of them."""
    first = x.ndim - len(normalized_shape)
    return tuple(range(first, x.ndim)), tuple(range(first))


@torch_op("aten::native_layer_norm")
def native_layer_norm(
    x: Array, normalized_shape: Sequence[int], weight: Array | None, bias: Array | None, eps: float
) -> tuple[Any, Any, Any]:
    """The normalized input, the mean and 1 / deviation."""
    dims, _ = _last(x, normalized_shape)
    normal, mean, _, rstd = _normalised(at_least_f32(x), dims, eps)
    return _affine(normal, weight, bias).astype(x.dtype), mean, rstd


@torch_op("aten::native_layer_norm_backward")
def native_layer_norm_backward(
    grad: Array,
    x: Array,
    normalized_shape: Sequence[int],
    mean: Array,
    rstd: Array,
    weight: Array | None,
    bias: Array | None,
    output_mask: Sequence[bool],
) -> tuple[Any, Any, Any]:
    """Gradients of input, weight and bias; None where the mask does not want one."""
    dims, rows = _last(x, normalized_shape)
    wide, normal = at_least_f32(grad), (at_least_f32(x) - mean) * rstd
    wanted_x, wanted_weight, wanted_bias = output_mask
    dx = dweight = dbias = None
    if wanted_x:
        inner = wide if weight is None else wide * weight
        dx = _of_input(inner, normal, rstd, dims).astype(x.dtype)
    if wanted_weight and weight is not None:
        dweight = jnp.sum(wide * normal, rows).astype(weight.dtype)
    if wanted_bias and bias is not None:
        dbias = jnp.sum(wide, rows).astype(bias.dtype)
    return dx, dweight, dbias


def _per_channel(x: Array, values: Array) -> Array:
    """One value for each channel, dimension 1 of `x`."""
    return values.reshape(-1, *(1,) * (x.ndim - 2))


@torch_op("aten::native_group_norm")
def native_group_norm(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    n: int,
    channels: int,
    positions: int,
    groups: int,
    eps: float,
) -> tuple[Any, Any, Any]:
    """The normalized input, the mean and 1 / deviation of each group of channels."""
    grouped = at_least_f32(x).reshape(n, groups, -1)
    normal, mean, _, rstd = _normalised(grouped, (2,), eps)
    scales = [None if p is None else _per_channel(x, p) for p in (weight, bias)]
    out = _affine(normal.reshape(x.shape), *scales).astype(x.dtype)
    return out, mean.reshape(n, groups).astype(x.dtype), rstd.reshape(n, groups).astype(x.dtype)


@torch_op("aten::native_group_norm_backward")
def native_group_norm_backward(
    grad: Array,
    x: Array,
    mean: Array,
    rstd: Array,
    weight: Array | None,
    n: int,
    channels: int,
    positions: int,
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Any, Any, Any]:
    """Gradients of input, weight and bias; None where the mask does not want one."""
    wide, deviation = at_least_f32(grad), at_least_f32(rstd)[:, :, None]
    normal = (at_least_f32(x).reshape(n, groups, -1) - at_least_f32(mean)[:, :, None]) * deviation
    wanted_x, wanted_weight, wanted_bias = output_mask
    others = (0, *range(2, x.ndim))
    dtype = jnp.result_type(x, mean, *([] if weight is None else [weight]))
    dx = dweight = dbias = None
    if wanted_x:
        inner = wide if weight is None else wide * _per_channel(x, weight)
        found = _of_input(inner.reshape(n, groups, -1), normal, deviation, (2,))
        dx = found.reshape(x.shape).astype(dtype)
    if wanted_weight:
        dweight = jnp.sum(wide * normal.reshape(x.shape), others).astype(dtype)
    if wanted_bias:
        dbias = jnp.sum(wide, others).astype(dtype)
    return dx, dweight, dbias


def _others(x: Array) -> Dims:
    return (0, *range(2, x.ndim))


def _batch_norm(
    x: Array,
    weight: Array,
    bias: Array | None,
    mean: Array,
    var: Array,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Any, Any, Any, Any, Any]:
    """Output, mean, 1 / deviation, and new running mean and variance."""
    wide = at_least_f32(x)
    scales = [None if p is None else _per_channel(x, p) for p in (weight, bias)]
    if not training:
        mean, var = at_least_f32(mean), at_least_f32(var)
        rstd = lax.rsqrt(var + eps)
        normal = (wide - _per_channel(x, mean)) * _per_channel(x, rstd)
        return _affine(normal, *scales).astype(x.dtype), mean, rstd, mean, var
    normal, *found = _normalised(wide, _others(x), eps)
    flat, spread, rstd = (statistic.reshape(-1) for statistic in found)
    out = _affine(normal, *scales).astype(x.dtype)
    if mean is None:
        return out, flat, rstd, None, None
    count = x.size // x.shape[1]
    unbiased = momentum * count / max(count - 1, 1)
    new_mean = momentum * flat + (1 - momentum) * mean
    return out, flat, rstd, new_mean, unbiased * spread + (1 - momentum) * var


@torch_op("aten::native_batch_norm_backward")
def native_batch_norm_backward(
    grad: Array,
    x: Array,
    weight: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    save_mean: Array | None,
    save_invstd: Array | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[Any, Any, Any]:
    """Gradients of input, weight and bias; None where the mask does not want one."""
    if train:
        mean, rstd = save_mean, save_invstd
    else:
        mean, rstd = at_least_f32(running_mean), lax.rsqrt(at_least_f32(running_var) + eps)
    wide, deviation = at_least_f32(grad), _per_channel(x, rstd)
    normal = (at_least_f32(x) - _per_channel(x, mean)) * deviation
    of_weight, of_bias = jnp.sum(wide * normal, _others(x)), jnp.sum(wide, _others(x))
    scale = deviation if weight is None else deviation * _per_channel(x, weight)
    dx = None
    if output_mask[0]:
        if train:
            part = _inverse(x, _others(x))
            wide = (
                wide - _per_channel(x, of_bias * part) - normal * _per_channel(x, of_weight * part)
            )
        dx = (wide * scale).astype(x.dtype)
    dtype = x.dtype if weight is None else weight.dtype
    dweight = of_weight.astype(dtype) if output_mask[1] else None
    return dx, dweight, of_bias.astype(dtype) if output_mask[2] else None


register_all(
    {
        "_native_batch_norm_legit_functional": _batch_norm,
        "_native_batch_norm_legit.no_stats": lambda x, weight, bias, _, momentum, eps: _batch_norm(
            x, weight, bias, None, None, True, momentum, eps
        )[:3],
        "_native_batch_norm_legit_no_training": lambda x, weight, bias, mean, var, *constants: (
            _batch_norm(x, weight, bias, mean, var, False, *constants)[:3]
        ),
    }
)
