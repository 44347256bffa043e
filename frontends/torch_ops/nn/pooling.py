"""Pooling: the largest or the mean of every window of the last dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from flint.errors import FlintError
from flint.frontends.torch_ops.lazy_jax import jax, jnp, lax
from flint.frontends.torch_ops.registry import register_all

if TYPE_CHECKING:
    from jax import Array

#: One number for all dimensions of a window, or one for each.
Sizes: TypeAlias = int | Sequence[int]


@dataclass(frozen=True)
class _Windows:
    """Windows over the last dimensions; tuples hold one entry for each of them."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]

    def over(self, rank: int) -> dict[str, Any]:
        """The arguments of `lax.reduce_window` for an array of `rank` dimensions."""
        whole = rank - len(self.sizes)
        return {
            "window_dimensions": (1,) * whole + self.sizes,
            "window_strides": (1,) * whole + self.strides,
            "padding": ((0, 0),) * whole + self.padding,
            "window_dilation": (1,) * whole + self.dilation,
        }


def _windows(
    x: Array,
    count: int,
    sizes: Sizes,
    strides: Sizes = (),
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> _Windows:
    """The windows of one operator; with `ceil_mode` the last may reach past the padding."""
    lengths = _each(sizes, count)
    steps = _each(strides, count) if strides else lengths
    low, spread = _each(padding, count), _each(dilation, count)
    sides = []
    for n, k, s, p, d in zip(x.shape[-count:], lengths, steps, low, spread, strict=True):
        reach = d * (k - 1) + 1
        out = -(-(n + 2 * p - reach) // s) + 1
        out -= (out - 1) * s >= n + p  # a window must begin in the input or in front of it
        sides.append((p, max((out - 1) * s + reach - n - p, 0) if ceil_mode else p))
    return _Windows(lengths, steps, tuple(sides), spread)


def _each(values: Sizes, count: int) -> tuple[int, ...]:
    given: tuple[int, ...] = (values,) if isinstance(values, int) else tuple(values)
    return given if len(given) == count else given * count


def _lowest(x: Array) -> np.ndarray[Any, Any]:
    if jnp.issubdtype(x.dtype, jnp.floating):
        return np.array(-np.inf, x.dtype)
    return np.array(jnp.iinfo(x.dtype).min, x.dtype)


def _max_pool(x: Array, windows: _Windows) -> tuple[Any, Any]:
    """The largest of each window, and its place in the flat last dimensions of the input."""
    over = windows.over(x.ndim)
    values = lax.reduce_window(x, _lowest(x), lax.max, **over)
    return values, _places(x, len(windows.sizes), over)


def _places(x: Array, count: int, over: dict[str, Any]) -> Array:
    spatial = x.shape[-count:]
    place = lax.iota(jnp.int64, math.prod(spatial)).reshape(spatial)
    place = lax.broadcast_in_dim(place, x.shape, tuple(range(x.ndim - count, x.ndim)))

    def first_largest(a: Array, b: Array) -> tuple[Array, Array]:
        (x, i), (y, j) = a, b
        keep = (x > y) | ((x == y) & (i < j)) | jnp.isnan(x)
        return jnp.where(keep, x, y), jnp.where(keep, i, j)

    nowhere = np.array(np.iinfo(np.int64).max)
    start = (_lowest(x), nowhere)
    return lax.reduce_window((x, place), start, first_largest, **over)[1]


def _max_pool_backward(grad: Array, x: Array, windows: _Windows, indices: Array) -> Array:
    """The largest is found again in the input: one operation, that needs no indices.

    It cannot have holes in its windows; with dilation the indices say where gradients go.
    """
    if any(d != 1 for d in windows.dilation):
        return _scattered(grad, x, indices, len(windows.sizes))

    def pooled(x: Array) -> Array:
        over = windows.over(x.ndim)
        return lax.reduce_window(x, _lowest(x), lax.max, **over)

    return jax.vjp(pooled, x)[1](grad)[0]


def _scattered(grad: Array, x: Array, indices: Array, count: int) -> Array:
    """Gradients added up at their places in the flat last dimensions."""
    rows, places = math.prod(x.shape[:-count]), math.prod(x.shape[-count:])
    flat = jnp.zeros((rows, places), grad.dtype)
    row = jnp.arange(rows)[:, None]
    return flat.at[row, indices.reshape(rows, -1)].add(grad.reshape(rows, -1)).reshape(x.shape)


def _avg_pool(
    x: Array,
    count: int,
    size: Sizes,
    stride: Sizes = (),
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> Array:
    windows = _windows(x, count, size, stride, padding, ceil_mode=ceil_mode)
    total = _sums(x, windows)
    low = _each(padding, count) if count_include_pad else (0,) * count
    counts = _counts(x.shape[-count:], total.shape[-count:], windows, low)
    elements = np.array(divisor) if divisor else counts
    if elements.min() == elements.max():
        elements = elements.min()
    return (total / jnp.asarray(elements, total.dtype)).astype(x.dtype)


def _sums(x: Array, windows: _Windows) -> Array:
    """Sums of windows, of short types in float32."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return lax.reduce_window(wide, np.array(0, wide.dtype), lax.add, **windows.over(x.ndim))


def _counts(
    inputs: tuple[int, ...], outputs: tuple[int, ...], windows: _Windows, low: tuple[int, ...]
) -> Any:
    """How many elements each window has: of the input, and `low` more on either side of it."""
    total = np.ones(())
    for n, out, size, stride, (before, _), more in zip(
        inputs, outputs, windows.sizes, windows.strides, windows.padding, low, strict=True
    ):
        start = np.arange(out) * stride - before
        length = np.minimum(start + size, n + more) - np.maximum(start, -more)
        total = total[..., None] * length
    return total


def _adaptive_avg_pool(x: Array, outputs: Sequence[int]) -> Array:
    count = len(outputs)
    if all(out == 1 for out in outputs):
        return jnp.mean(x, tuple(range(x.ndim - count, x.ndim)), keepdims=True)
    if all(n % out == 0 for n, out in zip(x.shape[-count:], outputs, strict=True)):
        windows = _equal_windows(x, outputs, "adaptive_avg_pool")
        return (_sums(x, windows) / math.prod(windows.sizes)).astype(x.dtype)
    found = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    for number, out in enumerate(outputs):
        dimension = x.ndim - count + number
        shares = jnp.asarray(_shares(x.shape[dimension], out), found.dtype)
        found = jnp.moveaxis(jnp.tensordot(found, shares, (dimension, 0)), -1, dimension)
    return found.astype(x.dtype)


def _shares(size: int, parts: int) -> np.ndarray[Any, Any]:
    """How much of each of `size` elements the mean of each part has; parts may overlap by one."""
    start = np.arange(parts) * size // parts
    end = -(-(np.arange(parts) + 1) * size // parts)
    element = np.arange(size)[:, None]
    return ((element >= start) & (element < end)) / (end - start)


def _equal_windows(x: Array, outputs: Sequence[int], name: str) -> _Windows:
    """Windows that divide the last dimensions. Raises FlintError FL229 where they cannot."""
    inputs = x.shape[-len(outputs) :]
    if any(n % out for n, out in zip(inputs, outputs, strict=True)):
        raise FlintError(
            "FL229",
            f"{name} of {list(inputs)} into {list(outputs)} uneven parts",
            help="choose an output size that divides the input's",
        )
    sizes = tuple(n // out for n, out in zip(inputs, outputs, strict=True))
    still = (0,) * len(sizes)
    return _Windows(sizes, sizes, tuple(zip(still, still, strict=True)), (1,) * len(sizes))


def _share_back(mean: Callable[[Array], Array], grad: Array, x: Array) -> Array:
    """Every element gets its share of the gradients of its windows."""
    return jax.linear_transpose(mean, x)(grad)[0]


def _register(count: int) -> None:
    def max_backward(grad: Array, x: Array, *options: Any) -> Array:
        *of_windows, indices = options
        return _max_pool_backward(grad, x, _windows(x, count, *of_windows), indices)

    def mean_backward(grad: Array, x: Array, *options: Any) -> Array:
        return _share_back(lambda x: _avg_pool(x, count, *options), grad, x)

    def adaptive_mean_backward(grad: Array, x: Array) -> Array:
        return _share_back(lambda x: _adaptive_avg_pool(x, grad.shape[-count:]), grad, x)

    largest, mean = f"max_pool{count}d_with_indices", f"avg_pool{count}d"
    register_all(
        {
            largest: lambda x, *options: _max_pool(x, _windows(x, count, *options)),
            f"{largest}_backward": max_backward,
            mean: lambda x, *options: _avg_pool(x, count, *options),
            f"{mean}_backward": mean_backward,
            f"_adaptive_{mean}": lambda x, sizes: _adaptive_avg_pool(x, _each(sizes, count)),
            f"_adaptive_{mean}_backward": adaptive_mean_backward,
        }
    )


_ADAPTIVE = "adaptive_max_pool2d"
_register(2)
_register(3)
register_all(
    {
        _ADAPTIVE: lambda x, sizes: _max_pool(x, _equal_windows(x, _each(sizes, 2), _ADAPTIVE)),
        f"{_ADAPTIVE}_backward": lambda grad, x, indices: _max_pool_backward(
            grad, x, _equal_windows(x, grad.shape[-2:], f"{_ADAPTIVE}_backward"), indices
        ),
    }
)
