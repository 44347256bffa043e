"""The timeline of a rank class: what runs from when to when on which stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from flint.backends.cost.simulate.critical_path import path
from flint.backends.cost.simulate.exposure import labels_of
from flint.ir.program import Int64s

if TYPE_CHECKING:
    from flint.backends.cost.estimate import Estimate
    from flint.backends.cost.simulate.timeline import ClassTimeline

#: Slices of a class that are kept where nothing else is said.
SLICE_LIMIT = 5000


@dataclass(frozen=True, slots=True)
class TimelineSlice:
    """One execution of one row of a program."""

    start_ns: float  #: When it starts, in ns of the step.
    duration_ns: float  #: How long it runs, in ns.
    stream: str  #: Queue of the device that it runs in: compute, or one of a network tier.
    kind: str  #: Of a kernel or collective, or message.
    over: str  #: Mesh axes of communication; "" for kernels.
    phase: str  #: forward, backward, remat, optimizer, prefill, decode or unknown.
    opcode: str  #: What it is called.
    scope: str  #: Its scope in the source.
    location: str  #: File and line of the user's source.
    row: int  #: Its row in the program of kernels.
    critical: bool  #: Whether the critical path goes through it.


@dataclass(frozen=True)
class Slices:
    """The longest slices of a rank class, in the order in which they start."""

    name: str  #: Name of the class.
    streams: tuple[str, ...]  #: Streams on which something runs.
    slices: tuple[TimelineSlice, ...]  #: At most 100,000; what takes no time has none.
    left_out: int  #: How many shorter ones there are.
    left_out_ns: float  #: How long those run together, in ns.


def timeline_slices(estimate: Estimate, number: int, *, limit: int = SLICE_LIMIT) -> Slices:
    """The slices of the rank class `number`: at most `limit`."""
    timeline = estimate.timeline.classes[number]
    nodes, left_out = _longest(timeline, limit)
    program, rows = timeline.work.program, timeline.work.nodes.row
    labels, names = labels_of(program), estimate.timeline.streams
    whole = path(estimate.timeline, estimate.policy)
    critical = {p.node for p in whole if p.rank_class == number and not p.is_launch}
    found = []
    for node in nodes.tolist():
        row = int(rows[node])
        kind, over, phase = labels[row]
        start = float(timeline.start_ns[node])
        found.append(
            TimelineSlice(
                start_ns=round(start, 3),
                duration_ns=round(float(timeline.end_ns[node]) - start, 3),
                stream=names[int(timeline.work.stream[row])],
                kind=kind,
                over=over,
                phase=phase,
                opcode=program.opcodes[program.opcode[row]],
                scope=program.strings[program.scope[row]],
                location=program.strings[program.location[row]],
                row=row,
                critical=node in critical,
            )
        )
    used = np.unique(timeline.work.stream[rows]).tolist()
    lost = float((timeline.end_ns - timeline.start_ns)[left_out].sum())
    return Slices(
        estimate.classes[number].name,
        tuple(names[s] for s in used),
        tuple(found),
        len(left_out),
        round(lost, 3),
    )


def _longest(timeline: ClassTimeline, limit: int) -> tuple[Int64s, Int64s]:
    """The nodes that are kept, by their start, and the others that take time."""
    duration = timeline.end_ns - timeline.start_ns
    takes = np.flatnonzero(duration > 0)
    by_length = takes[np.argsort(-duration[takes], kind="stable")]
    kept = np.sort(by_length[:limit])
    return kept[np.argsort(timeline.start_ns[kept], kind="stable")], by_length[limit:]
