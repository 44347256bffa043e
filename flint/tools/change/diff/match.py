"""Which kernels of two captures are the same, what of each is not as it was, and from which cause."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from flint.ir.program import Flag, Row
from flint.text import format_duration
from flint.tools.change.diff.align import align
from flint.tools.change.diff.cause import CauseKind
from flint.tools.change.diff.rows import ClassRows, Cost
from flint.tools.change.diff.snapshot import family


class Action(StrEnum):
    """What became of a kernel."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


class Aspect(StrEnum):
    """What of a kernel is not as it was."""

    TRIPS = "trips"  #: how often it runs
    DTYPE = "dtype"  #: its type, or what a product multiplies
    AXES = "axes"  #: the axes or ranks of its communication
    SIZE = "size"  #: shapes, FLOPs or bytes
    TIME = "time"  #: its duration alone


#: What the entries of `ClassRows.facts` are.
_ASPECTS = (Aspect.TRIPS, Aspect.DTYPE, Aspect.AXES, Aspect.SIZE)


@dataclass(frozen=True, slots=True)
class Change:
    """Kernels of one source and kind that are not as they were.

    `said` is `bfloat16[16,128] -> bfloat16[16,256]`, for example.
    """

    cause: CauseKind | None  #: Kind of the cause; null where none is known.
    action: Action  #: added, removed or changed.
    kind: str  #: Of kernel or collective.
    over: str  #: Mesh axes of communication; "" for kernels.
    phase: str  #: forward, backward, remat, optimizer, prefill, decode or unknown.
    scope: str  #: Scope in the source, with * for numbers.
    source_before: str  #: File and line before; "" for what is added.
    source: str  #: File and line after; "" for what is removed.
    reason: str  #: Why a collective is there, as the partitioner says it.
    said: str  #: What of the first kernel is new.
    kernels: int  #: How many kernels these are.
    before: Cost  #: What they cost before.
    after: Cost  #: What they cost after.

    @property
    def delta(self) -> Cost:
        """What it costs more now."""
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class Matched:
    """Changes of all rank classes, and how many kernels are as they were or only have other names.

    `shifted_ns` is by how much more of the step time kernels are that are as they were: what others
    hid before is seen now, or the other way round.
    """

    changes: tuple[Change, ...]
    same: int
    moved: int
    shifted_ns: float


def match(
    pairs: Iterable[tuple[ClassRows | None, ClassRows | None]],
    found: Iterable[CauseKind],
    renamed: Mapping[str, str],
) -> Matched:
    """Match the kernels of pairs of rank classes. Of a class without a partner all are new or gone."""
    grouped: dict[tuple[object, ...], Change] = {}
    kinds, same, moved, shifted = frozenset(found), 0, 0, 0.0
    for one, other in pairs:
        if one is None or other is None:
            for change in _alone(one, other, kinds):
                _add(grouped, change)
            continue
        rows = [(i, j, _aspects(one, other, i, j)) for i, j in _pairs(one, other, renamed)]
        for change in _changes(one, other, rows, kinds):
            _add(grouped, change)
        equal = [(i, j) for i, j, aspects in rows if not aspects]
        same += len(equal)
        moved += sum(_place(one, i) != _place(other, j) for i, j in equal)
        shifted += sum(other.path_ns[j] - one.path_ns[i] for i, j in equal)
    return Matched(tuple(sorted(grouped.values(), key=weight)), same, moved, float(shifted))


def weight(change: Change) -> tuple[object, ...]:
    """Sorts what makes most of a difference first: in the step time, else in time, bytes, FLOPs."""
    d = change.delta
    sizes = (abs(d.comm_bytes) * 16 + abs(d.bytes), abs(d.flops), abs(d.executions))
    return (-abs(d.path_ns), -abs(d.busy_ns), *(-s for s in sizes), change.kind, change.scope)


def _pairs(a: ClassRows, b: ClassRows, renamed: Mapping[str, str]) -> list[tuple[int, int]]:
    levels = list(zip(a.tokens(renamed), b.tokens({}), strict=True))
    return [(a.rows[i], b.rows[j]) for i, j in align(levels)]


def _changes(
    a: ClassRows,
    b: ClassRows,
    pairs: Sequence[tuple[int, int, list[Aspect]]],
    kinds: frozenset[CauseKind],
) -> Iterator[Change]:
    for i, j, aspects in pairs:
        if aspects:
            order = (kind for aspect in aspects for kind in _OF_ASPECT[aspect])
            yield _changed(a, b, i, j, _first(order, kinds))
    old, new = {i for i, _, _ in pairs}, {j for _, j, _ in pairs}
    yield from (_single(a, i, Action.REMOVED, kinds) for i in a.rows if i not in old)
    yield from (_single(b, j, Action.ADDED, kinds) for j in b.rows if j not in new)


def _alone(
    one: ClassRows | None, other: ClassRows | None, kinds: frozenset[CauseKind]
) -> Iterator[Change]:
    for side, action in ((one, Action.REMOVED), (other, Action.ADDED)):
        if side is not None:
            yield from (_single(side, row, action, kinds) for row in side.rows)


def _add(grouped: dict[tuple[object, ...], Change], c: Change) -> None:
    key = (c.cause, c.action, c.kind, c.over, c.phase, c.scope, c.source_before, c.source)
    known = grouped.get(key)
    if known is None:
        grouped[key] = c
        return
    grouped[key] = Change(
        *key,
        reason=known.reason,
        said=known.said,
        kernels=known.kernels + c.kernels,
        before=known.before + c.before,
        after=known.after + c.after,
    )


#: Times that differ by less are equal: they come from sums in another order.
_SAME_NS = 1e-3


def _aspects(a: ClassRows, b: ClassRows, i: int, j: int) -> list[Aspect]:
    one, other = a.facts[i], b.facts[j]
    found = [aspect for aspect, old, new in zip(_ASPECTS, one, other, strict=True) if old != new]
    if not found and abs(a.each_ns[i] - b.each_ns[j]) > _SAME_NS:
        found.append(Aspect.TIME)
    return found


def _place(side: ClassRows, row: int) -> tuple[str, str]:
    p = side.program
    return p.strings[p.scope[row]], p.strings[p.location[row]]


# causes -----------------------------------------------------------------------------------------

#: Which causes an aspect may follow from, the most likely first.
_OF_ASPECT: dict[Aspect, tuple[CauseKind, ...]] = {
    Aspect.TRIPS: (CauseKind.LAYERS, CauseKind.OPTIONS, CauseKind.OPERATIONS),
    Aspect.DTYPE: (CauseKind.PRECISION, CauseKind.OPTIONS, CauseKind.OPERATIONS),
    Aspect.AXES: (
        *(CauseKind.MESH, CauseKind.SHARDING, CauseKind.OPTIONS, CauseKind.COLLECTIVES),
        CauseKind.OPERATIONS,
    ),
    Aspect.SIZE: (
        *(CauseKind.SHAPE, CauseKind.MESH, CauseKind.SHARDING, CauseKind.PRECISION),
        *(CauseKind.LAYERS, CauseKind.OPTIONS, CauseKind.REMAT, CauseKind.COLLECTIVES),
        *(CauseKind.ARGUMENTS, CauseKind.OPERATIONS),
    ),
    Aspect.TIME: (
        *(CauseKind.CLUSTER, CauseKind.MEASURED, CauseKind.MESH, CauseKind.SHARDING),
        CauseKind.OPTIONS,
    ),
}
_OF_COMPUTE = (
    *(CauseKind.REMAT, CauseKind.OPTIONS, CauseKind.LAYERS, CauseKind.ARGUMENTS),
    *(CauseKind.OPERATIONS, CauseKind.PRECISION, CauseKind.SHARDING, CauseKind.MESH),
    *(CauseKind.COLLECTIVES, CauseKind.SHAPE),
)
_OF_PARTITIONED = (
    *(CauseKind.SHARDING, CauseKind.MESH, CauseKind.COLLECTIVES, CauseKind.REMAT),
    *(CauseKind.LAYERS, CauseKind.SHAPE, CauseKind.ARGUMENTS, CauseKind.OPERATIONS),
    CauseKind.OPTIONS,
)
_OF_COLLECTIVE = (
    *(CauseKind.COLLECTIVES, CauseKind.OPTIONS, CauseKind.MESH, CauseKind.LAYERS),
    *(CauseKind.SHARDING, CauseKind.REMAT, CauseKind.ARGUMENTS, CauseKind.OPERATIONS),
)


def _first(order: Iterable[CauseKind], kinds: frozenset[CauseKind]) -> CauseKind | None:
    return next((kind for kind in order if kind in kinds), None)


def _cause_of_single(side: ClassRows, row: int, kinds: frozenset[CauseKind]) -> CauseKind | None:
    _, over, phase = side.labels[row]
    if phase == "remat" and CauseKind.REMAT in kinds:
        return CauseKind.REMAT
    if not over:
        return _first(_OF_COMPUTE, kinds)
    made = side.program.flags[row] & Flag.PARTITIONED
    return _first(_OF_PARTITIONED if made else _OF_COLLECTIVE, kinds)


# what is said -----------------------------------------------------------------------------------


def _single(side: ClassRows, row: int, action: Action, kinds: frozenset[CauseKind]) -> Change:
    kind, over, phase = side.labels[row]
    scope, location = _place(side, row)
    cost, added = side.cost(row), action is Action.ADDED
    r = side.program.row(row)
    return Change(
        _cause_of_single(side, row, kinds),
        action,
        kind,
        over,
        phase,
        family(scope),
        "" if added else location,
        location if added else "",
        r.cause if over else "",
        _type(r),
        1,
        Cost() if added else cost,
        cost if added else Cost(),
    )


def _changed(a: ClassRows, b: ClassRows, i: int, j: int, cause: CauseKind | None) -> Change:
    kind, over, phase = b.labels[j]
    old, new = a.program.row(i), b.program.row(j)
    return Change(
        cause,
        Action.CHANGED,
        kind,
        over,
        phase,
        family(new.scope),
        old.location,
        new.location,
        new.cause if over else "",
        _said(old, new, int(a.program.trips[i]), int(b.program.trips[j])),
        1,
        a.cost(i),
        b.cost(j),
    )


def _said(old: Row, new: Row, trips_before: int, trips: int) -> str:
    """What is new of a kernel, in a few words."""
    said = []
    if _type(old) != _type(new):
        said.append(f"{_type(old)} -> {_type(new)}")
    if old.group != new.group and str(old.group) != str(new.group):
        said.append(f"over {old.group} -> {new.group}")
    if trips_before != trips:
        said.append(f"{trips_before:,} -> {trips:,} times")
    if not said and old.flops != new.flops:
        said.append(f"{old.flops:,} -> {new.flops:,} FLOPs")
    if not said and old.operand_bytes != new.operand_bytes:
        said.append(f"reads {old.operand_bytes:,} -> {new.operand_bytes:,} bytes")
    if not said and old.measured_ns != new.measured_ns:
        times = format_duration(old.measured_ns), format_duration(new.measured_ns)
        said.append(f"took {times[0]}, now {times[1]}")
    return ", ".join(said)


def _type(row: Row) -> str:
    return f"{row.dtype}[{','.join(map(str, row.shape))}]"
