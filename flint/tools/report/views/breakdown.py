"""Where the time of a rank class goes: by kind of work, phase, axes, and as a tree of scopes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from flint.backends.cost.simulate.exposure import IDLE, exposed_pieces
from flint.backends.cost.simulate.timeline import ClassTimeline
from flint.ir.arrays import Float64s
from flint.ir.program import Int64s, Kind

if TYPE_CHECKING:
    from flint.backends.cost.estimate import Estimate
    from flint.backends.cost.estimate_numbers import ClassEstimate
    from flint.backends.cost.simulate.exposure import Share

# Times of the rows of a rank class's program in one step.


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


#: A component of a scope that is a number: which of several layers.
_NUMBER = re.compile(r"(?<![^/])\d+(?![^/])")


@dataclass(frozen=True, slots=True)
class TimePart:
    """Some of the time of a step. `exposed_ns` of all parts add up to the class's end."""

    name: str
    count: int
    busy_ns: float
    exposed_ns: float


def by_kind(c: ClassEstimate) -> tuple[TimePart, ...]:
    """By what runs: `gemm`, `all_reduce over data`, `wait`; most of the step first."""
    return _added(c.shares, lambda s: f"{s.kind} over {s.over}" if s.over else s.kind)


def by_phase(c: ClassEstimate) -> tuple[TimePart, ...]:
    """By phase, what has none as `other`, and time in which nothing runs as `waiting`."""
    return _added(c.shares, lambda s: "waiting" if s.kind in IDLE else s.phase or "other")


def by_axes(c: ClassEstimate) -> tuple[TimePart, ...]:
    """By the mesh axes of communication, without computation and waits."""
    return _added((s for s in c.shares if s.over), lambda s: s.over)


def by_resource(c: ClassEstimate) -> tuple[TimePart, ...]:
    """By what is busy: `computing`, `waiting`, or the mesh axes of communication that is seen."""
    return _added(c.shares, lambda s: s.over or ("waiting" if s.kind in IDLE else "computing"))


def _added(shares: Iterable[Share], name: Callable[[Share], str]) -> tuple[TimePart, ...]:
    found: dict[str, list[float]] = {}
    for share in shares:
        entry = found.setdefault(name(share), [0, 0.0, 0.0])
        for at, value in enumerate((share.count, share.busy_ns, share.exposed_ns)):
            entry[at] += value
    parts = (TimePart(k, int(n), round(b, 3), round(e, 3)) for k, (n, b, e) in found.items())
    return tuple(sorted(parts, key=lambda p: (-p.exposed_ns, -p.busy_ns, p.name)))


@dataclass(frozen=True, slots=True)
class ScopeTime:
    """A part of the source. Layers that differ in their number only are one, `*`."""

    name: str  #: Last component of its path; "" for the root.
    path: str  #: Scopes from the root, joined by slashes.
    busy_ns: float  #: How long its kernels and communication run, in ns, with what is inside.
    exposed_ns: float  #: Time of the step that it takes, in ns, with what is inside.
    own_ns: float  #: The same without what is inside, in ns.
    parts: tuple[ScopeTime, ...]  #: What lies inside it, most of the step first.


def of_all_layers(scope: str) -> str:
    """A scope with `*` for each component that is a number: the same for all layers."""
    return _NUMBER.sub("*", scope)


def scope_tree(estimate: Estimate, number: int) -> ScopeTime:
    """The scopes of the rank class `number`: the root's time and idle time are its end."""
    timeline = estimate.timeline.classes[number]
    program, times = timeline.work.program, row_times(timeline)
    leaves: dict[str, list[float]] = {}
    for scope in np.unique(program.scope).tolist():
        rows = program.scope == scope
        path = of_all_layers(program.strings[scope])
        entry = leaves.setdefault(path, [0.0, 0.0])
        entry[0] += float(times.busy_ns[rows].sum())
        entry[1] += float(times.exposed_ns[rows].sum())
    root = _Grown("")
    for path, (busy, exposed) in leaves.items():
        root.add([p for p in path.split("/") if p], busy, exposed)
    return root.done("")


class _Grown:
    def __init__(self, name: str) -> None:
        self.name = name
        self.own = [0.0, 0.0]
        self.parts: dict[str, _Grown] = {}

    def add(self, path: list[str], busy: float, exposed: float) -> None:
        at = self
        for name in path:
            at = at.parts.setdefault(name, _Grown(name))
        at.own[0] += busy
        at.own[1] += exposed

    def done(self, above: str) -> ScopeTime:
        path = f"{above}/{self.name}".strip("/")
        parts = [p.done(path) for p in self.parts.values()]
        return ScopeTime(
            self.name,
            path,
            round(self.own[0] + sum(p.busy_ns for p in parts), 3),
            round(self.own[1] + sum(p.exposed_ns for p in parts), 3),
            round(self.own[1], 3),
            tuple(sorted(parts, key=lambda p: (-p.exposed_ns, p.name))),
        )
