"""Resizing of the last dimensions: nearest, linear and cubic interpolation.

Every dimension is done by itself: an output element is a weighted sum of `taps`, input elements at
places that are known beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from flint.frontends.torch_ops.registry import torch_op

#: Places in the input and their weights, for one tap of every output element.
Tap = tuple[Any, Any]
#: From (input size, output size, scale factor, align corners) to taps.
Taps = Callable[[int, int, float | None, bool], list[Tap]]
#: The constant of cubic convolution that PyTorch uses.
CUBIC = -0.75


def _sources(size: int, out: int, factor: float | None, corners: bool) -> Any:
    """Where each output element is in the input, counted from the middle of the first."""
    if corners:
        return np.arange(out) * ((size - 1) / (out - 1) if out > 1 else 0.0)
    return (np.arange(out) + 0.5) * _step(size, out, factor) - 0.5


def _step(size: int, out: int, factor: float | None) -> float:
    return 1 / factor if factor is not None and factor > 0 else size / out


def _nearest(size: int, out: int, factor: float | None, corners: bool) -> list[Tap]:
    step = np.float32(_step(size, out, factor))
    place = np.floor(np.arange(out, dtype=np.float32) * step).astype(int)
    return [(np.minimum(place, size - 1), np.ones(out))]


def _nearest_exact(size: int, out: int, factor: float | None, corners: bool) -> list[Tap]:
    step = np.float32(_step(size, out, factor))
    place = np.floor((np.arange(out, dtype=np.float32) + np.float32(0.5)) * step).astype(int)
    return [(np.minimum(place, size - 1), np.ones(out))]


def _linear(size: int, out: int, factor: float | None, corners: bool) -> list[Tap]:
    source = np.maximum(_sources(size, out, factor, corners), 0.0)
    place = np.minimum(np.floor(source).astype(int), size - 1)
    share = np.clip(source - place, 0.0, 1.0)
    return [(place, 1 - share), (np.minimum(place + 1, size - 1), share)]


def _cubic(size: int, out: int, factor: float | None, corners: bool) -> list[Tap]:
    source = _sources(size, out, factor, corners)
    place = np.floor(source).astype(int)
    share = source - place

    def near(x: Any) -> Any:
        return ((CUBIC + 2) * x - (CUBIC + 3)) * x * x + 1

    def far(x: Any) -> Any:
        return ((CUBIC * x - 5 * CUBIC) * x + 8 * CUBIC) * x - 4 * CUBIC

    weights = [far(share + 1), near(share), near(1 - share), far(2 - share)]
    return [(np.clip(place + n - 1, 0, size - 1), w) for n, w in enumerate(weights)]


def _resize(
    x: Any, sizes: Sequence[int], taps: Taps, factors: Sequence[float | None], corners: bool = False
) -> Any:
    """The last dimensions of `x` made `sizes`; sums of short types in float32."""
    found = x
    for number, (out, factor) in enumerate(zip(sizes, factors, strict=True)):
        dimension = x.ndim - len(sizes) + number
        found = _along(found, dimension, taps(x.shape[dimension], out, factor, corners))
    return found.astype(x.dtype)


def _along(x: Any, dimension: int, taps: list[Tap]) -> Any:
    (place, weight), *more = taps
    size, out = x.shape[dimension], len(place)
    if np.array_equal(place, np.arange(size)) and not any(w.any() for _, w in more):
        return x
    if not more:
        times = out // size
        if np.array_equal(place, np.repeat(np.arange(size), times)):
            return jnp.repeat(x, times, dimension, total_repeat_length=out)
        return _taken(x, dimension, place)
    shape = [out if d == dimension else 1 for d in range(x.ndim)]
    wide = jnp.promote_types(x.dtype, jnp.float32)
    parts = [
        _taken(x, dimension, at).astype(wide) * jnp.asarray(w.reshape(shape), wide)
        for at, w in [(place, weight), *more]
    ]
    return sum(parts[1:], start=parts[0])


def _taken(x: Any, dimension: int, places: Any) -> Any:
    others = tuple(d for d in range(x.ndim) if d != dimension)
    return lax.gather(
        x,
        jnp.asarray(places[:, None], jnp.int32),
        lax.GatherDimensionNumbers(others, (dimension,), (dimension,)),
        tuple(1 if d == dimension else n for d, n in enumerate(x.shape)),
        indices_are_sorted=True,
        mode="promise_in_bounds",
    )


def _sizes(x: Any, sizes: Sequence[int] | None, factors: Sequence[float] | None) -> list[int]:
    if sizes is not None:
        return list(sizes)
    assert factors is not None, "either sizes or factors are given"
    return [int(n * f) for n, f in zip(x.shape[-len(factors) :], factors, strict=True)]


def _vector(x: Any, taps: Taps, sizes: Any, factors: Any, corners: bool = False) -> Any:
    """The overloads `.vec`: either sizes or factors are given."""
    wanted = _sizes(x, sizes, factors)
    return _resize(x, wanted, taps, factors or [None] * len(wanted), corners)


def _backward(
    grad: Any,
    size: Sequence[int],
    taps: Taps,
    factors: Sequence[float | None],
    corners: bool = False,
) -> Any:
    """The gradient of an input of shape `size`."""
    sizes = grad.shape[-len(factors) :]

    def resized(x: Any) -> Any:
        return _resize(x, sizes, taps, factors, corners)

    return jax.linear_transpose(resized, jax.ShapeDtypeStruct(tuple(size), grad.dtype))(grad)[0]


def _factors(size: Sequence[int], factors: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
    """One scale factor or None for each dimension; they are named `scales`, `scales_h`, ..."""
    given = dict(enumerate(factors))
    order = ["scales"] if len(size) == 1 else [f"scales_{d}" for d in "dhw"[-len(size) :]]
    return [named.get(name, given.get(number)) for number, name in enumerate(order)]


@torch_op("aten::upsample_nearest1d", "aten::upsample_nearest2d", "aten::upsample_nearest3d")
def upsample_nearest(x: Any, size: Sequence[int], *factors: Any, **named: Any) -> Any:
    """Every element is the nearest element of the input."""
    return _resize(x, size, _nearest, _factors(size, factors, named))


@torch_op(
    "aten::upsample_nearest1d.vec", "aten::upsample_nearest2d.vec", "aten::upsample_nearest3d.vec"
)
def upsample_nearest_vec(x: Any, size: Any, factors: Any) -> Any:
    """Every element is the nearest element of the input."""
    return _vector(x, _nearest, size, factors)


@torch_op(
    "aten::upsample_nearest1d_backward",
    "aten::upsample_nearest2d_backward",
    "aten::upsample_nearest3d_backward",
)
def upsample_nearest_backward(
    grad: Any, size: Sequence[int], input_size: Sequence[int], *factors: Any, **named: Any
) -> Any:
    """The gradient of the input."""
    return _backward(grad, input_size, _nearest, _factors(size, factors, named))


@torch_op(
    "aten::_upsample_nearest_exact1d",
    "aten::_upsample_nearest_exact2d",
    "aten::_upsample_nearest_exact3d",
)
def upsample_nearest_exact(x: Any, size: Sequence[int], *factors: Any, **named: Any) -> Any:
    """Every element is the element nearest to the middle of the input."""
    return _resize(x, size, _nearest_exact, _factors(size, factors, named))


@torch_op(
    "aten::_upsample_nearest_exact1d.vec",
    "aten::_upsample_nearest_exact2d.vec",
    "aten::_upsample_nearest_exact3d.vec",
)
def upsample_nearest_exact_vec(x: Any, size: Any, factors: Any) -> Any:
    """Every element is the element nearest to the middle of the input."""
    return _vector(x, _nearest_exact, size, factors)


@torch_op(
    "aten::_upsample_nearest_exact1d_backward",
    "aten::_upsample_nearest_exact2d_backward",
    "aten::_upsample_nearest_exact3d_backward",
)
def upsample_nearest_exact_backward(
    grad: Any, size: Sequence[int], input_size: Sequence[int], *factors: Any, **named: Any
) -> Any:
    """The gradient of the input."""
    return _backward(grad, input_size, _nearest_exact, _factors(size, factors, named))


@torch_op("aten::upsample_linear1d", "aten::upsample_bilinear2d", "aten::upsample_trilinear3d")
def upsample_linear(x: Any, size: Sequence[int], corners: bool, *factors: Any, **named: Any) -> Any:
    """Linear interpolation between the neighbours in each dimension."""
    return _resize(x, size, _linear, _factors(size, factors, named), corners)


@torch_op(
    "aten::upsample_linear1d.vec", "aten::upsample_bilinear2d.vec", "aten::upsample_trilinear3d.vec"
)
def upsample_linear_vec(x: Any, size: Any, corners: bool, factors: Any) -> Any:
    """Linear interpolation between the neighbours in each dimension."""
    return _vector(x, _linear, size, factors, corners)


@torch_op(
    "aten::upsample_linear1d_backward",
    "aten::upsample_bilinear2d_backward",
    "aten::upsample_trilinear3d_backward",
)
def upsample_linear_backward(
    grad: Any,
    size: Sequence[int],
    input_size: Sequence[int],
    corners: bool,
    *factors: Any,
    **named: Any,
) -> Any:
    """The gradient of the input."""
    return _backward(grad, input_size, _linear, _factors(size, factors, named), corners)


@torch_op("aten::upsample_bicubic2d")
def upsample_cubic(x: Any, size: Sequence[int], corners: bool, *factors: Any, **named: Any) -> Any:
    """Cubic convolution of the four nearest in each dimension."""
    return _resize(x, size, _cubic, _factors(size, factors, named), corners)


@torch_op("aten::upsample_bicubic2d.vec")
def upsample_cubic_vec(x: Any, size: Any, corners: bool, factors: Any) -> Any:
    """Cubic convolution of the four nearest in each dimension."""
    return _vector(x, _cubic, size, factors, corners)


@torch_op("aten::upsample_bicubic2d_backward")
def upsample_cubic_backward(
    grad: Any,
    size: Sequence[int],
    input_size: Sequence[int],
    corners: bool,
    *factors: Any,
    **named: Any,
) -> Any:
    """The gradient of the input."""
    return _backward(grad, input_size, _cubic, _factors(size, factors, named), corners)
