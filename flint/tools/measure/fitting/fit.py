"""Constants within bounds that bring a model's times near to measured ones."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from flint.ir.arrays import Float64s
from flint.tools.measure.fitting.simplex import lowest

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
