"""Constants within bounds that bring a model's times near to measured ones."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from flint.ir.arrays import Float64s

# The simplex method of Nelder and Mead (The Computer Journal 7, 1965), which asks for no derivatives.

#: The simplex is done when its corners and their values differ by no more than this.
CLOSE = 1e-4


def lowest(function: Callable[[Float64s], float], corners: Float64s) -> Float64s:
    """The point with the lowest value that a simplex with these `corners` comes to.

    `corners` is n + 1 rows of n numbers. It ends after 50 n values, or where the simplex is as small
    as `CLOSE`. With the same function and corners it is the same.
    """
    size = corners.shape[1]
    counted = _Counted(function, 50 * size)
    values = np.array([counted(corner) for corner in corners])
    corners, values = _ordered(corners.copy(), values)
    while counted.left > 0 and not _is_small(corners, values):
        with contextlib.suppress(_Spent):
            corners, values = _step(counted, corners, values)
        corners, values = _ordered(corners, values)
    best: Float64s = corners[0]
    return best


class _Spent(Exception):
    """As many values were asked for as may be."""


class _Counted:
    """A function, and how often it may still be asked."""

    def __init__(self, function: Callable[[Float64s], float], left: int) -> None:
        self.function, self.left = function, left

    def __call__(self, point: Float64s) -> float:
        if self.left <= 0:
            raise _Spent
        self.left -= 1
        return self.function(point)


def _ordered(corners: Float64s, values: Float64s) -> tuple[Float64s, Float64s]:
    at = np.argsort(values)
    return corners[at], values[at]


def _is_small(corners: Float64s, values: Float64s) -> bool:
    wide = np.abs(corners[1:] - corners[0]).max()
    return bool(wide <= CLOSE and np.abs(values[0] - values[1:]).max() <= CLOSE)


def _step(function: _Counted, corners: Float64s, values: Float64s) -> tuple[Float64s, Float64s]:
    """Replace the worst corner by a better one, or draw all towards the best."""
    centre = corners[:-1].sum(axis=0) / (len(corners) - 1)
    worst = corners[-1]
    mirrored = 2 * centre - worst
    at_mirrored = function(mirrored)
    if at_mirrored < values[0]:
        further = 3 * centre - 2 * worst
        at_further = function(further)
        if at_further < at_mirrored:
            return _replaced(corners, values, further, at_further)
        return _replaced(corners, values, mirrored, at_mirrored)
    if at_mirrored < values[-2]:
        return _replaced(corners, values, mirrored, at_mirrored)
    outside = at_mirrored < values[-1]
    nearer = 1.5 * centre - 0.5 * worst if outside else 0.5 * centre + 0.5 * worst
    at_nearer = function(nearer)
    if at_nearer <= at_mirrored if outside else at_nearer < values[-1]:
        return _replaced(corners, values, nearer, at_nearer)
    return _drawn(function, corners, values)


def _replaced(
    corners: Float64s, values: Float64s, corner: Float64s, value: float
) -> tuple[Float64s, Float64s]:
    corners[-1], values[-1] = corner, value
    return corners, values


def _drawn(function: _Counted, corners: Float64s, values: Float64s) -> tuple[Float64s, Float64s]:
    for i in range(1, len(corners)):
        corners[i] = corners[0] + 0.5 * (corners[i] - corners[0])
        values[i] = function(corners[i])
    return corners, values


#: Least, most and first value of each constant.
Bounds = dict[str, tuple[float, float, float]]
#: Times of all rows with some constants.
Predict = Callable[[dict[str, float]], Float64s]
#: How often a simplex begins anew: that leaves narrow valleys.
RESTARTS = 3
#: A value that is so near an edge, as a share of its range, is the edge: how near differs by machine.
EDGE = 1e-9


def halves(hashes: Sequence[int]) -> NDArray[np.int64]:
    """0 and 1 for rows by the order of their hashes in turn: of few rows, too, half are held out.

    The smallest hash is fitted on. Rows with one hash stay together.
    """
    order = {value: at % 2 for at, value in enumerate(sorted(set(hashes)))}
    return np.array([order[value] for value in hashes], np.int64)


def hash_of(*shape: object) -> int:
    """The CRC-32 of what a row measures: the same on every machine."""
    return zlib.crc32(",".join(map(str, shape)).encode())


def half_of(*shape: object) -> int:
    """0: fitted on, 1: held out, by the hash of the shape."""
    return hash_of(*shape) % 2


def fit(
    bounds: Bounds, predict: Predict, measured_ns: Float64s, weights: Float64s | None = None
) -> dict[str, float]:
    """Constants within `bounds` with the least mean absolute percentage error, four digits each.

    `weights` are how much each row counts (default: alike). The same input gives the same output.
    """
    low, high, start = (np.array([b[i] for b in bounds.values()]) for i in range(3))

    def constants(z: Float64s) -> dict[str, float]:
        share = 1 / (1 + np.exp(-np.clip(z, -30, 30)))
        return dict(zip(bounds, map(float, low + (high - low) * share), strict=True))

    def error(z: Float64s) -> float:
        errors = np.abs(predict(constants(z)) / measured_ns - 1)
        return float(np.mean(errors) if weights is None else np.average(errors, weights=weights))

    share = np.clip((start - low) / (high - low), 0.02, 0.98)
    z = np.log(share / (1 - share))
    for _ in range(RESTARTS):
        z = lowest(error, np.vstack([z, z + 0.7 * np.eye(len(z))]))
    return {name: _kept(value, bounds[name]) for name, value in constants(z).items()}


def _kept(value: float, bounds: tuple[float, float, float]) -> float:
    low, high, _ = bounds
    at_edge = [edge for edge in (low, high) if abs(value - edge) <= EDGE * (high - low)]
    return float(at_edge[0] if at_edge else f"{value:.4g}")
