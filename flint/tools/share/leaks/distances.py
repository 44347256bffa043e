"""How far a workload is from each known one: of its neighbourhoods, and of its totals."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]


def shares(histograms: NDArray[np.int64]) -> Floats:
    """Counts of neighbourhoods as shares of all rows: numbers of layers count less than kinds."""
    counts = histograms.astype(np.float64)
    found: Floats = counts / np.maximum(counts.sum(axis=-1, keepdims=True), 1.0)
    return found


def structure_distances(known: Floats, one: Floats) -> Floats:
    """For each known workload the share of rows (0 to 1) that have another neighbourhood."""
    found: Floats = np.abs(known - one).sum(axis=-1) / 2
    return found


def size_distances(known: Floats, one: Floats) -> Floats:
    """For each known workload the largest difference of its totals, in powers of two, at most 1."""
    found: Floats = np.minimum(np.abs(known - one).max(axis=-1), 1.0)
    return found
