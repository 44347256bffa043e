"""Where the time of a rank class goes: what computes, what communicates unseen, what waits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from typing_extensions import TypedDict

from flint.backends.cost.chips.kernel_table import kernels_of
from flint.backends.cost.chips.kernels import KernelKind
from flint.backends.cost.network.placement import NetworkPlacement, tier_of_row
from flint.backends.cost.replay.changes import COMMUNICATION, HOST, OTHER, kernel_kinds, on_device
from flint.backends.cost.simulate.timeline import ClassTimeline, previous_on
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Int64s, Kind, Phase, Program

#: Kinds of time in which nothing runs on a device.
IDLE = ("wait", "host")
#: Numbers that stand beside those of `KernelKind`, and what they are called.
_COMMUNICATION, _HOST, _OTHER = 253, 254, 255
_NO_KERNELS = {_COMMUNICATION: COMMUNICATION, _HOST: HOST, _OTHER: OTHER}
#: What measured communication goes over, of which only the kernels are known.
UNKNOWN_RANKS = "unknown ranks"
#: Kind of work, axes that it goes over, phase: the names of a `Share`.
Label: TypeAlias = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Share:
    """Time of one kind of work in one step of a rank class."""

    kind: str  #: Of a kernel (gemm, elementwise, ...), of a collective, or message, host or wait.
    over: str  #: Mesh axes of communication; "" for kernels.
    phase: str  #: forward, backward, remat, optimizer, prefill, decode or unknown.
    count: int  #: How often a step runs it.
    busy_ns: float  #: How long it runs, in ns.
    exposed_ns: float  #: How much of that nothing is computed meanwhile, in ns; of kernels, all.


class Serving(TypedDict):
    """What users of an inference service feel, without queues."""

    ttft_ns: float  #: Time to the first token of a batch of prompts, in ns.
    tpot_ns: float  #: Time per output token after it: of a pass that decodes, on average, in ns.
    decode_passes: int  #: How many of these the step has; 1 of pools.


def shares(timeline: ClassTimeline, labels: list[Label] | None = None) -> list[Share]:
    """The shares of a class. Exposed times of all, with computation, add up to the step.

    Each gap in the compute stream belongs to what the kernel after it waited for last: a
    collective or message while it runs, before that what the stream of these was busy with, and
    `wait` for other ranks. Where nothing of that holds it back any more, its `host` has not launched
    it. `labels` are `labels_of` the program.
    """
    found: dict[Label, list[float]] = {}

    def add(key: Label, count: int, busy: float, exposed: float) -> None:
        entry = found.setdefault(key, [0, 0.0, 0.0])
        entry[0] += count
        entry[1] += busy
        entry[2] += exposed

    program, rows = timeline.work.program, timeline.work.nodes.row
    labels = labels_of(program) if labels is None else labels
    counts = np.bincount(rows, minlength=len(program))
    busy = np.bincount(rows, timeline.end_ns - timeline.start_ns, minlength=len(program))
    exposed = np.where(timeline.work.stream == 0, busy, 0.0)
    for row in np.flatnonzero((counts > 0) & (program.kind != Kind.RECV)).tolist():
        add(labels[row], int(counts[row]), float(busy[row]), float(exposed[row]))
    for key, _, length in exposed_pieces(timeline, labels):
        add(key, 0, 0.0, length)
    return [
        Share(*key, int(count), round(b, 3), round(e, 3))
        for key, (count, b, e) in sorted(found.items())
    ]


def exposed_pieces(
    timeline: ClassTimeline, labels: list[Label] | None = None
) -> Iterator[tuple[Label, int, float]]:
    """Each piece of time in which nothing is computed: its label, the row behind it, its length.

    The row is -1 where no work is behind it (`wait`, `host`). `labels` are `labels_of` the program.
    """
    labels = labels if labels is not None else labels_of(timeline.work.program)
    previous = previous_on(timeline.work.stream[timeline.work.nodes.row])
    for node, start, end in _gaps(timeline):
        yield from _blame(timeline, previous, labels, node, start, end)


def _gaps(timeline: ClassTimeline) -> list[tuple[int, float, float]]:
    """(node that ends it, start, end) of each time in which nothing is computed; -1 at the end."""
    nodes = np.flatnonzero(timeline.work.stream[timeline.work.nodes.row] == 0)
    starts, ends = timeline.start_ns[nodes], timeline.end_ns[nodes]
    before = np.concatenate(([0.0], ends[:-1])) if len(nodes) else np.zeros(0)
    gaps = [
        (int(nodes[i]), float(before[i]), float(starts[i]))
        for i in np.flatnonzero(starts > before + 1e-6).tolist()
    ]
    last = float(ends[-1]) if len(nodes) else 0.0
    if timeline.total_ns > last + 1e-6:
        gaps.append((-1, last, timeline.total_ns))
    return gaps


def _blame(
    timeline: ClassTimeline,
    previous: list[int],
    labels: list[Label],
    node: int,
    start: float,
    end: float,
) -> list[tuple[Label, int, float]]:
    """A gap from `start` to `end`, split over what the node after it waited for, last first."""
    work = timeline.work
    parts: list[tuple[Label, int, float]] = []
    launchable = max(start, _launchable(timeline, node)) if work.launch_ns else end
    if launchable < end - 1e-6:
        phase = labels[int(work.nodes.row[node])][2]
        parts.append((("host", "", phase), -1, end - launchable))
        end = launchable
    cause = _cause(timeline, node, end)
    while end > start + 1e-6 and cause >= 0:
        row = int(work.nodes.row[cause])
        since = max(start, float(timeline.start_ns[cause]))
        if int(work.program.kind[row]) == Kind.RECV:
            arrival = max(start, float(timeline.end_ns[cause]) - float(work.duration_ns[row]))
            parts.append((labels[row], row, end - arrival))
            end = min(end, arrival)
            break
        if since < end:
            parts.append((labels[row], row, end - since))
            end = since
        cause = _cause(timeline, cause, end, previous[cause])
    if end > start + 1e-6:
        phase = labels[int(work.nodes.row[node])][2] if node >= 0 else ""
        parts.append((("wait", "", phase), -1, end - start))
    return parts


def _launchable(timeline: ClassTimeline, node: int) -> float:
    """When all that `node` depends on had ended; for -1, the end of the step, when all had."""
    if node < 0:
        return timeline.total_ns
    ends = timeline.end_ns[timeline.work.nodes.dependencies(node)]
    return float(ends.max()) if len(ends) else 0.0


def _cause(timeline: ClassTimeline, node: int, moment: float, before: int = -1) -> int:
    """The node that ended last of those that `node` waited for; -1 if none explains `moment`.

    `before` is the one before it on its stream.
    """
    if node < 0:
        return int(np.argmax(timeline.end_ns))
    deps = timeline.work.nodes.dependencies(node).tolist()
    if before >= 0:
        deps.append(before)
    if not deps:
        return -1
    ends = timeline.end_ns
    last = max(deps, key=ends.__getitem__)
    computes = timeline.work.stream[timeline.work.nodes.row[last]] == 0
    return -1 if computes or ends[last] < moment - 1e-3 else last


def labels_of(program: Program) -> list[Label]:
    """For each row: kind of work, axes, phase.

    Of programs made of profiles also `host`, and `other` for kernels of which nothing but their time
    is known.
    """
    kernel = _kinds_of(program)
    known: dict[tuple[int, ...], Label] = {}
    found = []
    columns = (kernel, program.kind, program.collective, program.group, program.route)
    for key in zip(*(c.tolist() for c in (*columns, program.phase)), strict=True):
        if key not in known:
            known[key] = _label(program, *key)
        found.append(known[key])
    return found


def _kinds_of(program: Program) -> Int64s:
    """For each row its `KernelKind`; _COMMUNICATION, _HOST, _OTHER or -1."""
    if not program.measured_ns.any():
        kernels, rows = kernels_of(program)
        kernel: Int64s = np.full(len(program), -1, dtype=np.int64)
        kernel[rows] = kernels.kind
        return kernel
    kernel = kernel_kinds(program)
    kernel[(kernel < 0) & on_device(program)] = _OTHER
    kernel[program.op == OpClass.HOST] = _HOST
    kernel[program.op == OpClass.COMMUNICATION] = _COMMUNICATION
    return kernel


def _label(
    program: Program, kernel: int, kind: int, collective: int, group: int, route: int, phase: int
) -> Label:
    what, over = "", ""
    if kernel in _NO_KERNELS:
        what = _NO_KERNELS[kernel]
    elif kernel >= 0:
        what = KernelKind(kernel).name.lower()
    elif kind == Kind.COLLECTIVE:
        what = Collective(collective).name.lower()
    elif kind > Kind.COLLECTIVE:
        what = "message"
    if kind >= Kind.COLLECTIVE:
        over = _over(program, group, route)
    elif kernel == _COMMUNICATION:
        over = UNKNOWN_RANKS
    return what, over, "" if phase == Phase.UNKNOWN else Phase(phase).name.lower()


def _over(program: Program, group: int, route: int) -> str:
    """The mesh axes of a group or route; the ranks of one that has no axes."""
    axes = program.groups[group] if group >= 0 else program.routes[route]
    return ",".join(a.name for a in axes.axes) or str(axes)


def tiers_of(program: Program, placement: NetworkPlacement) -> dict[str, int]:
    """By what shares say communication goes over (`Share.over`), the outermost tier that it crosses."""
    found: dict[str, int] = {}
    talks = np.flatnonzero(program.kind >= Kind.COLLECTIVE)
    pairs = np.column_stack((program.group[talks], program.route[talks]))
    _, first = np.unique(pairs, axis=0, return_index=True)
    for row in talks[first].tolist():
        over = _over(program, int(program.group[row]), int(program.route[row]))
        found[over] = max(found.get(over, 0), tier_of_row(program, row, placement))
    return found
