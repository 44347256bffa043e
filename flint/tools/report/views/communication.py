"""Communication of a rank class: what is sent over which axes, why, how long, and how much unseen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from flint.backends.cost.simulate.exposure import labels_of
from flint.ir.program import Kind
from flint.tools.report.views.row_times import row_times

if TYPE_CHECKING:
    from flint.backends.cost.estimate import Estimate
    from flint.ir.program import Program


@dataclass(frozen=True, slots=True)
class Communication:
    """One communication row of a program, in one step of a rank.

    `kind`, `over` and `phase` are those of a `Share`. `payload_bytes` are the rank's input, once;
    `busy_ns` and `exposed_ns` are of all `count` executions. What a RECV waits for is exposed, and
    its transfer is the sender's. `cause` is why the collective is there, as the partitioner or the
    program says it; `tier` the stream that it runs on.
    """

    kind: str
    over: str
    group_size: int
    phase: str
    payload_bytes: int
    count: int
    busy_ns: float
    exposed_ns: float
    tier: str
    scope: str
    location: str
    cause: str
    row: int


def communication(estimate: Estimate, number: int) -> tuple[Communication, ...]:
    """The communication of the rank class `number`, most exposed first.

    Busy and exposed times by kind, axes and phase add up to the class's shares of communication.
    """
    timeline = estimate.timeline.classes[number]
    program, labels = timeline.work.program, labels_of(timeline.work.program)
    times = row_times(timeline)
    found = [
        Communication(
            kind=labels[row][0],
            over=labels[row][1],
            group_size=_group_size(program, row),
            phase=labels[row][2],
            payload_bytes=int(program.comm_bytes[row]),
            count=int(times.count[row]),
            busy_ns=round(float(times.busy_ns[row]), 3),
            exposed_ns=round(float(times.exposed_ns[row]), 3),
            tier=estimate.timeline.streams[int(timeline.work.stream[row])],
            scope=program.strings[program.scope[row]],
            location=program.strings[program.location[row]],
            cause=program.strings[program.cause[row]],
            row=row,
        )
        for row in np.flatnonzero((program.kind >= Kind.COLLECTIVE) & (times.count > 0)).tolist()
    ]
    return tuple(sorted(found, key=lambda c: (-c.exposed_ns, -c.busy_ns, c.row)))


def _group_size(program: Program, row: int) -> int:
    group = int(program.group[row])
    return program.groups[group].size(program.mesh) if group >= 0 else 0
