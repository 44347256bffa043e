"""Durations of trace nodes: whole microseconds whose sum stays right."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flint.backends.chakra.writing.simulator_files import SimulatedHardware
from flint.ir.program import Int64s

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Timing:
    """What a cluster says of a workload that is written.

    `duration_ns[i]` has one entry for each row of program i; 0 for what has no price, or is
    communication, which simulators time themselves.
    """

    cluster: str
    duration_ns: tuple[Floats, ...]
    hardware: SimulatedHardware


def whole_micros(duration_ns: Floats) -> Int64s:
    """Durations of nodes in microseconds, at least 1 where a node has one at all.

    What rounding takes from a node its successors get: sums over nodes from the first differ by
    half a microsecond at most from the exact ones, unless many nodes in a row are below 1 us. Then
    they are longer, and nodes after them shorter, until the sum is right again.
    """
    exact = np.cumsum(duration_ns / 1e3)
    rounded = np.floor(np.concatenate((np.zeros(1), exact)) + 0.5).astype(np.int64)
    micros: Int64s = rounded[1:] - rounded[:-1]
    timed = duration_ns > 0
    if (micros[timed] > 0).all():
        return micros
    given = 0
    for node in np.flatnonzero(timed).tolist():
        micros[node] = max(1, int(rounded[node + 1]) - given)
        given += int(micros[node])
    return micros
