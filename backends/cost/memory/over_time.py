"""Memory of a device over the time of a step, and what is there when most of it is in use.

Memory is laid out by rows of a program of kernels with one result each; times are those of the
kernels that the estimate prices. Both were made of the same rows: in each region, rows of the same
source are taken to be one where both programs have as many of them, and each row of the one program
to run with the row of the other that stands before it. So every moment of the layout has a time, and the highest point of
the curve is the peak.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flint.backends.cost.memory.memory import kinds
from flint.backends.cost.memory.stored import stored
from flint.ir.program import Int64s, Kind, Program

if TYPE_CHECKING:
    from flint.backends.cost.estimate_numbers import ClassEstimate, EstimateNumbers
    from flint.backends.cost.memory.liveness import Buffers
    from flint.backends.cost.simulate.timeline import ClassTimeline

#: Points of a curve over time at most.
TIME_POINTS = 1000
#: Buffers at the peak that are listed.
SHOWN_BUFFERS = 20


class MemoryPoint(NamedTuple):
    """The most bytes that are in use from a time to that of the next point."""

    start_ns: float
    num_bytes: int


@dataclass(frozen=True, slots=True)
class PeakBuffer:
    """Arrays that are alike and in use at the peak."""

    kind: str  #: What they are for: parameters, saved_activations, ...
    num_bytes: int  #: Bytes of each.
    count: int  #: How many there are.
    name: str  #: Of an argument of the step, its path; else "".
    type: str  #: Element type and shape on one device.
    opcode: str  #: What makes them.
    scope: str  #: The scope of that in the source.
    location: str  #: File and line of the user's source.


@dataclass(frozen=True)
class MemoryOverTime:
    """Memory in use on a device of a rank class.

    The highest of `points` is `peak_bytes`, and is reached first at `peak_ns`. `breakdown` is what is in use then by
    `MemoryKind`, `buffers` the largest of it, and `buffers_left_out` how many arrays more there are, of
    `left_out_bytes` together. `capacity_bytes` is the chip's memory, 0 if none is known; `runtime_bytes`
    are what the software keeps of it beside all that, `verdict` says whether it fits.
    """

    name: str
    points: tuple[MemoryPoint, ...]
    peak_bytes: int
    peak_ns: float
    breakdown: Mapping[str, int]
    buffers: tuple[PeakBuffer, ...]
    buffers_left_out: int
    left_out_bytes: int
    capacity_bytes: int
    runtime_bytes: int = 0
    verdict: str = ""


def memory_over_time(estimate: EstimateNumbers, number: int) -> MemoryOverTime:
    """The memory of a device of the rank class `number`."""
    timeline = estimate.timeline.classes[number]
    if estimate.classes[number].memory.recorded:
        return _recorded(estimate.classes[number])
    laid_out = stored(estimate.workload, estimate.kernels, estimate.policy, estimate.stack)
    at = estimate.workload.classes[number].program
    program, (layout, _) = laid_out.programs[at], laid_out.layouts(at)
    use = estimate.classes[number].memory
    points = _curve(timeline, program, layout)
    peak = max((p.num_bytes for p in points), default=0)
    buffers, left_out, left_out_bytes = _at_peak(program, layout)
    return MemoryOverTime(
        name=estimate.classes[number].name,
        points=points,
        peak_bytes=use.peak_bytes,
        peak_ns=next((p.start_ns for p in points if p.num_bytes == peak), 0.0),
        breakdown=dict(use.breakdown),
        buffers=buffers,
        buffers_left_out=left_out,
        left_out_bytes=left_out_bytes,
        capacity_bytes=use.capacity_bytes,
        runtime_bytes=use.runtime_bytes,
        verdict=use.verdict,
    )


def _recorded(c: ClassEstimate) -> MemoryOverTime:
    """What a profile says of it: the peak alone."""
    use = c.memory
    return MemoryOverTime(
        *(c.name, (), use.peak_bytes, 0.0, {}, (), 0, 0, use.capacity_bytes), verdict=use.verdict
    )


def _curve(timeline: ClassTimeline, program: Program, layout: Buffers) -> tuple[MemoryPoint, ...]:
    """What is in use while each kernel runs, in pieces of time of which each has its most."""
    in_use = layout.live_bytes.reshape(-1, 2).max(axis=1)
    nodes = _by_start(timeline)
    if not len(in_use):
        return ()
    if not len(nodes):
        return (MemoryPoint(0.0, int(in_use.max())),)
    rows = timeline.work.nodes.row[nodes]
    used = _by_row(timeline.work.program, np.unique(rows), program, in_use)[rows]
    changes = np.flatnonzero(np.diff(used, prepend=-1))
    pieces = np.linspace(0, len(changes), TIME_POINTS, endpoint=False).astype(np.int64)
    starts = np.unique(np.append(pieces, int(used[changes].argmax())))  # the peak begins a piece
    most = np.maximum.reduceat(used[changes], starts)
    moments = timeline.start_ns[nodes[changes[starts]]]
    moments[0] = 0.0
    return tuple(
        MemoryPoint(round(t, 3), b) for t, b in zip(moments.tolist(), most.tolist(), strict=True)
    )


def _by_start(timeline: ClassTimeline) -> Int64s:
    """The nodes of the compute stream, or all if nothing is computed, as they start."""
    on = timeline.work.stream[timeline.work.nodes.row]
    nodes = np.flatnonzero(on == 0)
    nodes = nodes if len(nodes) else np.arange(len(on))
    return nodes[np.argsort(timeline.start_ns[nodes], kind="stable")]


def _by_row(timed: Program, rows: Int64s, program: Program, in_use: Int64s) -> Int64s:
    """For each of `rows` of `timed`, the most bytes in use from its place in `program` to the next.

    Each row of `program` belongs to one of them.
    """
    places = _places(timed, rows, program)
    places[0] = 0
    ends = np.append(places[1:], len(in_use))
    found = np.zeros(len(timed), dtype=np.int64)
    for row, start, end in zip(rows.tolist(), places.tolist(), ends.tolist(), strict=True):
        found[row] = in_use[start : max(end, start + 1)].max()
    return found


def _places(timed: Program, rows: Int64s, program: Program) -> Int64s:
    """For each of `rows` of `timed`, a row of `program` that runs when it does; ascending."""
    if timed is program:
        return rows.astype(np.int64)
    known = np.full(len(rows), -1, dtype=np.int64)
    for region, (own, theirs) in _regions(timed, rows, program).items():
        for at, place in _alike(timed, rows[own], program, theirs):
            known[own[at]] = place
        if region >= 0 and len(own) and len(theirs):
            known[own[0]] = program.regions[region].start
    if (known < 0).all():
        return np.linspace(0, len(program), len(rows), endpoint=False).astype(np.int64)
    known[0] = 0
    sure = np.flatnonzero(known >= 0)
    between = np.interp(np.arange(len(rows)), sure, known[sure]).astype(np.int64)
    return np.maximum.accumulate(between)


def _regions(timed: Program, rows: Int64s, program: Program) -> dict[int, tuple[Int64s, Int64s]]:
    """By region, which both programs number alike: entries of `rows`, and rows of `program`."""
    alike = [(r.kind, r.trip_count, r.parent) for r in timed.regions] == [
        (r.kind, r.trip_count, r.parent) for r in program.regions
    ]
    works = np.flatnonzero(program.kind >= Kind.COMPUTE)
    if not alike:
        return {-1: (np.arange(len(rows)), works)}
    return {
        region: (
            np.flatnonzero(timed.region[rows] == region),
            works[program.region[works] == region],
        )
        for region in range(-1, len(timed.regions))
    }


def _alike(timed: Program, rows: Int64s, program: Program, theirs: Int64s) -> list[tuple[int, int]]:
    """Pairs of an index into `rows` and a row of `theirs` that are one, in the order of both.

    They are told by sources that as many rows of the one have as of the other.
    """
    own, other = _by_source(timed, rows), _by_source(program, theirs)
    pairs = [
        pair
        for source, found in own.items()
        if len(found) == len(other.get(source, ()))
        for pair in zip(found, other[source], strict=True)
    ]
    return [(at, int(theirs[place])) for at, place in _ascending(sorted(pairs))]


def _ascending(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest part of the pairs, which are sorted, in which the second ones ascend too."""
    ends: list[int] = []  # the smallest second one that a chain of each length ends with
    chain: list[int] = []  # and its pair
    before = [-1] * len(pairs)
    for number, (_, place) in enumerate(pairs):
        length = bisect_left(ends, place)
        if length == len(ends):
            ends.append(place)
            chain.append(number)
        else:
            ends[length], chain[length] = place, number
        before[number] = chain[length - 1] if length else -1
    found, at = [], chain[-1] if chain else -1
    while at >= 0:
        found.append(pairs[at])
        at = before[at]
    return found[::-1]


def _by_source(program: Program, rows: Int64s) -> dict[tuple[str, str, int, bool], list[int]]:
    """Indices into `rows` by scope, source line, phase and whether a row communicates."""
    found: dict[tuple[str, str, int, bool], list[int]] = {}
    names = program.strings
    columns = (program.scope[rows], program.location[rows], program.phase[rows])
    sends = (program.kind[rows] >= Kind.COLLECTIVE).tolist()
    for at, (scope, location, phase, sent) in enumerate(
        zip(*(c.tolist() for c in columns), sends, strict=True)
    ):
        found.setdefault((names[scope], names[location], phase, sent), []).append(at)
    return found


def _at_peak(program: Program, layout: Buffers) -> tuple[tuple[PeakBuffer, ...], int, int]:
    """The largest buffers at the peak, and how many others of how many bytes there are."""
    if not len(layout.live_bytes):
        return (), 0, 0
    held = layout.at(int(layout.live_bytes.argmax()))
    kind = kinds(program, layout)
    counts: dict[tuple[str, int, str, str, str, str, str], int] = {}
    for buffer in held.tolist():
        key = _described(program, layout, kind, buffer)
        counts[key] = counts.get(key, 0) + 1
    found = sorted(
        (PeakBuffer(k[0], k[1], count, *k[2:]) for k, count in counts.items()),
        key=lambda b: (-b.num_bytes * b.count, b.kind, b.name, b.scope, b.location, b.opcode),
    )
    shown, rest = found[:SHOWN_BUFFERS], found[SHOWN_BUFFERS:]
    return tuple(shown), sum(b.count for b in rest), sum(b.count * b.num_bytes for b in rest)


def _described(
    program: Program, layout: Buffers, kind: NDArray[np.object_], buffer: int
) -> tuple[str, int, str, str, str, str, str]:
    row = int(layout.first[buffer])
    shape = ",".join(map(str, program.shapes[program.shape[row]]))
    argument = program.kind[row] == Kind.PARAMETER
    return (
        str(kind[buffer]),
        int(layout.num_bytes[buffer]),
        program.strings[program.name[row]] if argument else "",
        f"{program.dtypes[program.dtype[row]]}[{shape}]",
        program.opcodes[program.opcode[row]],
        program.strings[program.scope[row]],
        program.strings[program.location[row]],
    )
