"""How far a workload is from each known one: of its neighbourhoods, and of its totals."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flint.ir.arrays import Float64s


def shares(histograms: NDArray[np.int64]) -> Float64s:
    """Counts of neighbourhoods as shares of all rows: numbers of layers count less than kinds."""
    counts = histograms.astype(np.float64)
    found: Float64s = counts / np.maximum(counts.sum(axis=-1, keepdims=True), 1.0)
    return found


def structure_distances(known: Float64s, one: Float64s) -> Float64s:
    """For each known workload the share of rows (0 to 1) that have another neighbourhood."""
    found: Float64s = np.abs(known - one).sum(axis=-1) / 2
    return found


def size_distances(known: Float64s, one: Float64s) -> Float64s:
    """For each known workload the largest difference of its totals, in powers of two, at most 1."""
    found: Float64s = np.minimum(np.abs(known - one).max(axis=-1), 1.0)
    return found
