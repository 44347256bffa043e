"""The schedule of a pipeline as it runs: passes of microbatches on each rank class, over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from flint.ir.op_class import OpClass
from flint.ir.program import Int64s, Kind, Phase, Program
from flint.passes.pipeline.schedule.schedules import SCHEDULES, Order, orders
from flint.passes.pipeline.schedule.units import Unit

if TYPE_CHECKING:
    from flint.backends.cost.estimate import Estimate
    from flint.backends.cost.simulate.timeline import ClassTimeline

#: A pass that waits for longer than this share of the step is several boxes.
GAP_SHARE = 0.002
#: What a box is where it is no unit of a schedule.
_PHASES = {
    Phase.UNKNOWN: "other",
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.REMAT: "backward",
    Phase.OPTIMIZER: "optimizer",
}


@dataclass(frozen=True, slots=True)
class Box:
    """A pass of a microbatch on the compute stream.

    Of one that waits in between each part is a box.
    """

    start_ns: float  #: When it starts, in ns of the step.
    end_ns: float  #: When it ends, in ns of the step.
    work: str  #: forward, backward, input_backward, weight_backward, optimizer or other.
    microbatch: int  #: Number of the microbatch; -1 where a program does not say it.
    chunk: int  #: Which of the rank's stages; -1 where a program does not say it.


@dataclass(frozen=True, slots=True)
class PipelineLane:
    """One rank class of a pipeline."""

    name: str  #: Name of the class.
    ranks: int  #: How many ranks it has.
    boxes: tuple[Box, ...]  #: What it runs, in order.
    idle_ns: float  #: How long it computes nothing in the step, in ns.


@dataclass(frozen=True)
class PipelineTimeline:
    """What the classes of a pipeline run when."""

    schedule: str  #: Name of the schedule; "" where it is not known.
    microbatches: int  #: Microbatches of a step; 0 where that is not known.
    end_ns: float  #: When the step ends, in ns.
    lanes: tuple[PipelineLane, ...]  #: One entry for each rank class.


def pipeline_schedule(estimate: Estimate) -> PipelineTimeline | None:
    """The schedule of a workload whose rank classes send to each other; None for any other."""
    timelines = estimate.timeline.classes
    if len(timelines) < 2 or not any((t.work.program.kind == Kind.SEND).any() for t in timelines):
        return None
    about: Mapping[str, Any] = estimate.workload.metadata.get("pipeline") or {}
    known = _orders(about, len(timelines))
    lanes = [
        PipelineLane(
            c.name,
            c.ranks,
            _boxes(t, known[number] if known else (), GAP_SHARE * estimate.step_time_ns),
            round(estimate.step_time_ns - _computing_ns(t), 3),
        )
        for number, (c, t) in enumerate(zip(estimate.classes, timelines, strict=True))
    ]
    return PipelineTimeline(
        str(about.get("schedule", "")),
        int(about.get("microbatches", 0)),
        round(estimate.step_time_ns, 3),
        tuple(lanes),
    )


def _orders(about: Mapping[str, Any], classes: int) -> tuple[Order, ...]:
    """The units of each class, where the metadata names a schedule of one position a class."""
    name = about.get("schedule")
    positions = about.get("positions")
    if name not in SCHEDULES or not isinstance(positions, list) or len(positions) != classes:
        return ()
    return orders(str(name), classes, int(about["microbatches"]), int(about["chunks"]))


def _computing_ns(timeline: ClassTimeline) -> float:
    on = timeline.work.stream[timeline.work.nodes.row] == 0
    return float((timeline.end_ns[on] - timeline.start_ns[on]).sum())


def _boxes(timeline: ClassTimeline, order: Sequence[Unit], least_ns: float) -> tuple[Box, ...]:
    nodes = np.flatnonzero(timeline.work.stream[timeline.work.nodes.row] == 0)
    nodes = nodes[np.argsort(timeline.start_ns[nodes], kind="stable")]
    turn = _turns(timeline, nodes)
    passes = list(dict.fromkeys(turn[turn >= 0].tolist()))
    if not order or len(passes) != len(order):
        return _runs(timeline, nodes, least_ns)
    found: list[Box] = []
    for key, unit in zip(passes, order, strict=True):
        for start, end in _pieces(timeline, nodes[turn == key], least_ns):
            work = unit.work.name.lower()
            found.append(Box(start, end, work, unit.microbatch, unit.chunk))
    return (*found, *_runs(timeline, nodes[turn < 0], least_ns))


def _pieces(timeline: ClassTimeline, nodes: Int64s, least_ns: float) -> list[tuple[float, float]]:
    """From when to when nodes that follow each other run, without the gaps above `least_ns`."""
    starts, ends = timeline.start_ns[nodes], timeline.end_ns[nodes]
    first = np.flatnonzero(np.append(True, starts[1:] - ends[:-1] > least_ns))
    last = np.append(first[1:], len(nodes)) - 1
    return [
        (round(s, 3), round(e, 3))
        for s, e in zip(starts[first].tolist(), ends[last].tolist(), strict=True)
    ]


def _turns(timeline: ClassTimeline, nodes: Int64s) -> Int64s:
    """A number for each pass that nodes belong to, -1 for what follows the last one."""
    program, rows = timeline.work.program, timeline.work.nodes.row[nodes].astype(np.int64)
    ends = np.flatnonzero(program.op == OpClass.TURN)
    segment = np.searchsorted(ends, rows)
    loops = _loops_of_passes(program, ends)
    loop = loops[program.region[rows]]
    trips = np.array([*(r.trip_count for r in program.regions), 1], dtype=np.int64)[loop]
    inner = np.maximum(program.trips[rows] // np.maximum(trips, 1), 1)
    iteration = np.where(loop >= 0, timeline.work.nodes.instance[nodes] // inner, 0)
    found = iteration * (len(ends) + 1) + segment
    return np.where(segment < len(ends), found, -1)


def _loops_of_passes(program: Program, ends: Int64s) -> Int64s:
    """For each region, and for none at the end, the loop over microbatches that it is in, or -1."""
    over = set(program.region[ends].tolist()) - {-1}
    found = np.full(len(program.regions) + 1, -1, dtype=np.int64)
    for number, region in enumerate(program.regions):
        found[number] = number if number in over else found[region.parent]
    return found


def _runs(timeline: ClassTimeline, nodes: Int64s, least_ns: float) -> tuple[Box, ...]:
    """What follows each other in one phase."""
    if not len(nodes):
        return ()
    phase = timeline.work.program.phase[timeline.work.nodes.row[nodes]].astype(np.int64)
    phase[phase == Phase.REMAT] = Phase.BACKWARD
    cuts = np.flatnonzero(np.diff(phase)) + 1
    return tuple(
        Box(start, end, _PHASES[Phase(int(phase[at]))], -1, -1)
        for at, run in zip([0, *cuts.tolist()], np.split(nodes, cuts), strict=True)
        for start, end in _pieces(timeline, run, least_ns)
    )
