"""Sums, extrema and other results of many numbers, along dimensions or over all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from flint.frontends.torch_ops.lazy_jax import jnp, lax
from flint.frontends.torch_ops.registry import register_all, torch_op
from flint.frontends.torch_ops.types import (
    Number,
    cast,
    dimension,
    dimensions,
    is_floating,
    operands,
    torch_dtype,
)

if TYPE_CHECKING:
    from jax import Array

Dims = int | Sequence[int] | None


@torch_op("aten::sum.dim_IntList")
def sum_(x: Array, dim: Dims, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Array:
    """The sum along dimensions; of integers and truth values in int64."""
    return _reduced(lax.reduce_sum, _for_sums(x, dtype), dim, keepdim)


@torch_op("aten::mean.dim")
def mean(x: Array, dim: Dims, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Array:
    x = cast(x, dtype)
    count = _count(x, dim)
    return x_over(_reduced(lax.reduce_sum, x, dim, keepdim), count)


@torch_op("aten::var_mean.correction")
def var_mean(
    x: Array, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Array, Array]:
    """Variance and mean along dimensions; `correction` is taken from the count (1 by default)."""
    average = mean(x, dim)
    away = lax.sub(x, _repeated(average, x, dim))
    squares = lax.mul(away, away)
    if jnp.iscomplexobj(x):
        squares = lax.real(lax.mul(away, lax.conj(away)))
    count = max(_count(x, dim) - (1 if correction is None else correction), 0)
    variance = x_over(_reduced(lax.reduce_sum, squares, dim, False), count)
    return _kept(variance, x, dim, keepdim), _kept(average, x, dim, keepdim)


@torch_op("aten::linalg_vector_norm")
def linalg_vector_norm(
    x: Array,
    ord: float = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Array:
    """The norm of order `ord` along dimensions: (sum |x|^ord)^(1/ord)."""
    x = cast(x, dtype)
    if ord == 2 and not jnp.iscomplexobj(x):
        return lax.sqrt(_reduced(lax.reduce_sum, lax.mul(x, x), dim, keepdim))
    size = lax.abs(x)
    if ord in (math.inf, -math.inf):
        return _reduced(_reduce_max if ord > 0 else _reduce_min, size, dim, keepdim)
    if ord == 0:
        return _reduced(
            lax.reduce_sum,
            cast(lax.ne(size, lax.full_like(size, 0)), torch_dtype(size)),
            dim,
            keepdim,
        )
    if ord == 1:
        return _reduced(lax.reduce_sum, size, dim, keepdim)
    total = _reduced(lax.reduce_sum, lax.pow(size, lax.full_like(size, ord)), dim, keepdim)
    return lax.pow(total, lax.full_like(total, 1 / ord))


def norm(
    x: Array,
    p: float = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Array:
    """The norm of order `p`, 2 by default."""
    return linalg_vector_norm(x, 2 if p is None else p, dim, keepdim, dtype=dtype)


@torch_op("aten::_softmax")
def softmax(x: Array, dim: int, half_to_float: bool = False) -> Array:
    x = cast(x, torch.float32) if half_to_float else x
    powers = lax.exp(_below_largest(x, dim))
    return lax.div(powers, _repeated(sum_(powers, dim), powers, dim))


@torch_op("aten::_log_softmax")
def log_softmax(x: Array, dim: int, half_to_float: bool = False) -> Array:
    """The logarithm of `softmax`, exact for small shares."""
    x = cast(x, torch.float32) if half_to_float else x
    below = _below_largest(x, dim)
    total = sum_(lax.exp(below), dim)
    return lax.sub(below, _repeated(lax.log(total), below, dim))


@torch_op("aten::_softmax_backward_data")
def softmax_backward(grad: Array, output: Array, dim: int, input_dtype: torch.dtype) -> Array:
    grad, output = operands(grad, output)
    weighted = lax.mul(grad, output)
    share = lax.mul(output, _repeated(sum_(weighted, dim), output, dim))
    return cast(lax.sub(weighted, share), input_dtype)


@torch_op("aten::_log_softmax_backward_data")
def log_softmax_backward(grad: Array, output: Array, dim: int, input_dtype: torch.dtype) -> Array:
    grad, output = operands(grad, output)
    share = lax.mul(lax.exp(output), _repeated(sum_(grad, dim), output, dim))
    return cast(lax.sub(grad, share), input_dtype)


@torch_op("aten::histc")
def histc(x: Array, bins: int = 100, min: Number = 0, max: Number = 0) -> Array:
    """How many numbers lie in each of equal intervals; those outside are not counted."""
    flat = lax.reshape(x, (x.size,))
    if min == max:
        low, high = _amin(flat), amax(flat)
    else:
        low, high = (lax.full((), bound, x.dtype) for bound in (min, max))
    low, high, flat = operands(low, high, flat)
    scaled = lax.div(lax.mul(lax.sub(flat, low), lax.full_like(flat, bins)), lax.sub(high, low))
    place = lax.min(cast(scaled, torch.int64), lax.full_like(flat, bins - 1, dtype=jnp.int64))
    inside = lax.bitwise_and(lax.ge(flat, low), lax.le(flat, high))
    place = lax.select(inside, place, lax.full_like(place, bins))
    return cast(_counts(place, bins), torch_dtype(x))


@torch_op("aten::bincount")
def bincount(x: Array, weights: Array | None = None, minlength: int = 0) -> Array:
    """How often each of the integers below `minlength` occurs; larger ones must not."""
    if weights is None:
        return _counts(x, minlength)
    weights = weights if is_floating(weights) else cast(weights, torch.float64)
    return _counts(x, minlength, cast(weights, torch_dtype(weights)))


def x_over(total: Array, count: Number) -> Array:
    """A sum divided by a count that is known."""
    return total if count == 1 else lax.div(total, lax.full_like(total, count))


def _for_sums(x: Array, dtype: torch.dtype | None) -> Array:
    return cast(x, dtype or (None if is_floating(x) else torch.int64))


def _count(x: Array, dim: Dims) -> int:
    return math.prod(x.shape[axis] for axis in dimensions(dim, x.ndim))


def _reduced(reduce: Callable[..., Array], x: Array, dim: Dims, keepdim: bool) -> Array:
    axes = dimensions(dim, x.ndim)
    long = tuple(axis for axis in axes if x.shape[axis] != 1)
    total = reduce(x, long) if long else x
    kept = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
    if not keepdim:
        kept = [size for axis, size in enumerate(x.shape) if axis not in axes]
    return total if total.shape == tuple(kept) else lax.reshape(total, kept)


def _repeated(total: Array, x: Array, dim: Dims) -> Array:
    """A result along dimensions of x, repeated along them, in one step."""
    axes = dimensions(dim, x.ndim)
    rest = tuple(axis for axis in range(x.ndim) if axis not in axes)
    return lax.broadcast_in_dim(total, x.shape, rest) if x.ndim else total


def _kept(total: Array, x: Array, dim: Dims, keepdim: bool) -> Array:
    """A result along dimensions of x, which stay with size 1 if `keepdim`."""
    axes = dimensions(dim, x.ndim)
    return lax.expand_dims(total, axes) if keepdim and axes else total


def _reduce_max(x: Array, axes: Sequence[int]) -> Array:
    return (lax.reduce_or if x.dtype == jnp.bool_ else lax.reduce_max)(x, axes)


def _reduce_min(x: Array, axes: Sequence[int]) -> Array:
    return (lax.reduce_and if x.dtype == jnp.bool_ else lax.reduce_min)(x, axes)


def _place(find: Callable[..., Array], x: Array, dim: int | None, keepdim: bool) -> Array:
    if x.ndim == 0:
        return lax.full((), 0, jnp.int64)
    shape = x.shape
    if dim is None:
        place = find(lax.reshape(x, (x.size,)), 0, jnp.int64)
        return lax.reshape(place, (1,) * len(shape)) if keepdim else place
    axis = dimension(dim, x.ndim)
    place = find(x, axis, jnp.int64)
    return lax.expand_dims(place, (axis,)) if keepdim else place


def _below_largest(x: Array, dim: int) -> Array:
    return lax.sub(x, _repeated(amax(x, dim), x, dim))


def _running(scan: Callable[..., Array], x: Array, dim: int) -> Array:
    return scan(x, axis=dimension(dim, x.ndim)) if x.ndim else x


def _running_extremum(scan: Callable[..., Array], x: Array, dim: int) -> tuple[Array, Array]:
    if not x.ndim:
        return x, lax.full((), 0, jnp.int64)
    axis = dimension(dim, x.ndim)
    best = scan(x, axis=axis)
    places = lax.broadcasted_iota(jnp.int64, x.shape, axis)
    here = lax.select(lax.eq(x, best), places, lax.full_like(places, 0))
    return best, lax.cummax(here, axis=axis)


def _counts(places: Array, length: int, weights: Array | None = None) -> Array:
    """How often each place occurs, by comparison: no scatter, so that shards add up."""
    spread = (length, places.shape[0])
    hit = lax.eq(
        lax.broadcast_in_dim(places, spread, (1,)), lax.broadcasted_iota(places.dtype, spread, 0)
    )
    if weights is None:
        return sum_(hit, 1)
    spread_weights = lax.broadcast_in_dim(weights, spread, (1,))
    return sum_(lax.select(hit, spread_weights, lax.full_like(spread_weights, 0)), 1)


def amax(x: Array, dim: Dims = (), keepdim: bool = False) -> Array:
    return _reduced(_reduce_max, x, dim, keepdim)


def _amin(x: Array, dim: Dims = (), keepdim: bool = False) -> Array:
    return _reduced(_reduce_min, x, dim, keepdim)


def _prod(
    x: Array, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Array:
    return _reduced(lax.reduce_prod, _for_sums(x, dtype), dim, keepdim)


def _any(x: Array, dim: Dims = None, keepdim: bool = False) -> Array:
    """Truth values of uint8 tensors are uint8 in PyTorch."""
    truth = _reduced(lax.reduce_or, cast(x, torch.bool), dim, keepdim)
    return cast(truth, torch.uint8) if x.dtype == jnp.uint8 else truth


def _argmax(x: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    return _place(lax.argmax, x, dim, keepdim)


def _argmin(x: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    return _place(lax.argmin, x, dim, keepdim)


register_all(
    {
        "mean": lambda x, **dtype: mean(x, None, **dtype),
        "prod prod.dim_int": _prod,
        "any any.dim any.dims": _any,
        "equal": lambda x, y: _reduced(lax.reduce_and, lax.eq(*operands(x, y)), None, False),
        "max": lambda x: amax(x, None),
        "min": lambda x: _amin(x, None),
        "amax": amax,
        "amin": _amin,
        "argmax": _argmax,
        "argmin": _argmin,
        "max.dim": lambda *x, **dim: (amax(*x, **dim), _argmax(*x, **dim)),
        "min.dim": lambda *x, **dim: (_amin(*x, **dim), _argmin(*x, **dim)),
        "var.correction": lambda *x, **options: var_mean(*x, **options)[0],
        "cumsum": lambda x, dim, *, dtype=None: _running(lax.cumsum, _for_sums(x, dtype), dim),
        "cumprod": lambda x, dim, *, dtype=None: _running(lax.cumprod, _for_sums(x, dtype), dim),
        "logcumsumexp": lambda x, dim: _running(lax.cumlogsumexp, x, dim),
        "cummax": lambda x, dim: _running_extremum(lax.cummax, x, dim),
        "cummin": lambda x, dim: _running_extremum(lax.cummin, x, dim),
    }
)
