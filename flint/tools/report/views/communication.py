"""Communication of a rank class: what is sent over which axes, why, how long, and how much unseen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from flint.backends.cost.simulate.exposure import labels_of
from flint.ir.program import Kind
from flint.tools.report.views.breakdown import row_times

if TYPE_CHECKING:
    from flint.backends.cost.estimate import Estimate
    from flint.ir.program import Program


@dataclass(frozen=True, slots=True)
class CommunicationRow:
    """One communication row of a program, in one step of a rank.

    What a RECV waits for is exposed, and its transfer is the sender's.
    """

    kind: str  #: Of collective, or message.
    over: str  #: Mesh axes, or the route of a message.
    group_size: int  #: Devices of a group; 0 for messages.
    phase: str  #: forward, backward, remat, optimizer, prefill, decode or unknown.
    payload_bytes: int  #: Bytes that the rank puts in, each time.
    count: int  #: Executions in a step.
    busy_ns: float  #: How long these run together, in ns.
    exposed_ns: float  #: How much of that nothing is computed meanwhile, in ns.
    tier: str  #: The stream that it runs on.
    scope: str  #: Its scope in the source.
    location: str  #: File and line of the user's source.
    cause: str  #: Why it is there, as the partitioner or the program says it.
    row: int  #: Its row in the program of kernels.


def communication(estimate: Estimate, number: int) -> tuple[CommunicationRow, ...]:
    """The communication of the rank class `number`, most exposed first.

    Busy and exposed times by kind, axes and phase add up to the class's shares of communication.
    """
    timeline = estimate.timeline.classes[number]
    program, labels = timeline.work.program, labels_of(timeline.work.program)
    times = row_times(timeline)
    found = [
        CommunicationRow(
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
