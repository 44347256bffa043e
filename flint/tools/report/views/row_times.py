"""Times of the rows of a rank class's program in one step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from flint.backends.cost.simulate.exposure import exposed_pieces
from flint.backends.cost.simulate.timeline import ClassTimeline
from flint.ir.arrays import Float64s
from flint.ir.program import Int64s, Kind


@dataclass(frozen=True, eq=False)
class RowTimes:
    """By row: executions, how long they run, and how much of that is seen.

    What computes is seen, and so is communication while nothing is computed (see `Share`). A RECV
    runs for no time of its own: its transfer is the sender's. `idle_ns` is the time behind which no
    row is, by kind (`wait`, `host`).
    """

    count: Int64s
    busy_ns: Float64s
    exposed_ns: Float64s
    idle_ns: Mapping[str, float]


def row_times(timeline: ClassTimeline) -> RowTimes:
    """The times of a class. Exposed and idle times add up to its end."""
    work, program = timeline.work, timeline.work.program
    rows, size = work.nodes.row, len(program)
    duration = timeline.end_ns - timeline.start_ns
    busy = np.asarray(np.bincount(rows, duration, minlength=size), dtype=np.float64)
    busy[program.kind == Kind.RECV] = 0.0
    exposed = np.where(work.stream == 0, busy, 0.0)
    idle: dict[str, float] = {}
    for (kind, _, _), row, length in exposed_pieces(timeline):
        if row >= 0:
            exposed[row] += length
        else:
            idle[kind] = idle.get(kind, 0.0) + length
    return RowTimes(np.bincount(rows, minlength=size), busy, exposed, dict(sorted(idle.items())))
