"""The kernels of one rank class as tokens to be matched, with what each of them costs in a step."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from flint.backends.cost.simulate.exposure import labels_of
from flint.ir.arrays import Float64s
from flint.ir.op_class import DATA_MOVEMENT, LAYOUT, OpClass
from flint.ir.program import Collective, Kind, Program
from flint.tools.change.diff.snapshot import family, numbers_in

#: Classes whose result is what they read, in another place, part or type.
_COPIES = LAYOUT | DATA_MOVEMENT | {OpClass.CONVERT, OpClass.FUSED_LAYOUT}


@dataclass(frozen=True, slots=True)
class Cost:
    """What kernels take in one step of a device: the mean over devices."""

    executions: float = 0.0  #: How often they run.
    flops: float = 0.0  #: Floating point operations.
    bytes: float = 0.0  #: Bytes read and written.
    comm_bytes: float = 0.0  #: Bytes put into communication.
    busy_ns: float = 0.0  #: How long they run, in ns; 0 without a cluster.
    path_ns: float = 0.0
    """How much of the step time they are, in ns; those of all kernels add up to it."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Cost)))

    def __sub__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(Cost)))


@dataclass(frozen=True, eq=False)
class ClassRows:
    """One rank class of one side. `share` is its part of all devices, times are by row."""

    program: Program
    share: float
    busy_ns: Float64s
    path_ns: Float64s

    @cached_property
    def rows(self) -> list[int]:
        """Rows that work: kernels and communication."""
        return np.flatnonzero(self.program.kind >= Kind.COMPUTE).tolist()

    @cached_property
    def labels(self) -> list[tuple[str, str, str]]:
        """Kind, axes and phase of each row of the program."""
        return labels_of(self.program)

    @cached_property
    def costs(self) -> Float64s:
        """For each row of the program, the fields of its `Cost`."""
        p, trips = self.program, self.program.trips * self.share
        communicates = p.kind > Kind.COMPUTE
        moved = np.where(communicates, 0, p.operand_bytes + p.result_bytes)
        sent = np.where(p.kind == Kind.RECV, 0, p.comm_bytes)
        columns = (trips, p.flops * trips, moved * trips, sent * trips)
        return np.stack([*columns, self.busy_ns * self.share, self.path_ns], axis=1)

    @cached_property
    def facts(self) -> list[tuple[object, ...]]:
        """For each row: how often it runs, its types, its axes with ranks, its sizes."""
        p = self.program
        ranks = [g.size(p.mesh) for g in p.groups] + [0]
        numbers = (p.flops, p.result_bytes, p.operand_bytes, p.comm_bytes, p.mask, p.shape)
        columns = (p.trips, p.dtype, p.product, p.group, *numbers)
        found: list[tuple[object, ...]] = []
        for at, values in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
            trips, dtype, product, group, *sizes, shape = values
            types = (p.dtypes[dtype], p.products[product])
            axes = (self.labels[at][1], ranks[group])
            found.append((trips, types, axes, (sizes, p.shapes[shape])))
        return found

    @cached_property
    def each_ns(self) -> list[float]:
        """How long each row runs each time."""
        found: list[float] = (self.busy_ns / np.maximum(self.program.trips, 1)).tolist()
        return found

    def cost(self, row: int) -> Cost:
        """What a row costs."""
        return Cost(*self.costs[row].tolist())

    def tokens(self, renamed: Mapping[str, str]) -> list[list[Hashable]]:
        """Tokens of the rows that work, by level, the finest first.

        `renamed` gives arguments the names of the other side. Shapes, groups and lines are not in
        coarser levels: they are what is to be reported.
        """
        p, labels = self.program, self.labels
        weights = _weights(p, renamed)
        scopes = [p.strings[i] for i in p.scope.tolist()]
        fine: list[Hashable] = []
        named: list[Hashable] = []
        scoped: list[Hashable] = []
        for row in self.rows:
            kind, over, phase = labels[row]
            where = (int(p.dtype[row]), int(p.shape[row]))
            typed = (p.dtypes[where[0]], p.shapes[where[1]])
            fine.append((kind, over, phase, typed, scopes[row], weights[row]))
            named.append((kind, phase, weights[row], scopes[row]))
            scoped.append((kind, phase, family(scopes[row])))
        plain: list[Hashable] = [(labels[r][0], labels[r][2]) for r in self.rows]
        kinds: list[Hashable] = [labels[r][0] for r in self.rows]
        return [fine, named, scoped, plain, kinds]


def _weights(program: Program, renamed: Mapping[str, str]) -> list[tuple[str, ...]]:
    """The arguments that each row reads, also through copies, loops, casts and gathers."""
    strings, names = program.strings, program.name.tolist()
    passes = _passes_on(program)
    start, deps = program.dep_start.tolist(), program.deps.tolist()
    origin: list[tuple[str, ...]] = []
    found: list[tuple[str, ...]] = []
    for row, kind in enumerate(program.kind.tolist()):
        reads = {o for d in deps[start[row] : start[row + 1]] for o in origin[d]}
        if kind == Kind.PARAMETER:
            reads = {_renamed(strings[names[row]], renamed)}
        read = tuple(sorted(reads))
        found.append(read)
        origin.append(read if kind == Kind.PARAMETER or passes[row] else ())
    return found


def _passes_on(program: Program) -> list[bool]:
    """Rows whose result is an argument in another form."""
    copies = np.isin(program.op, sorted(_COPIES))
    gathers = program.collective == Collective.ALL_GATHER
    single = np.diff(program.dep_start) <= 3  # a slice and its two indices
    found: list[bool] = ((program.kind == Kind.VALUE) | copies | gathers).tolist()
    return [f and bool(s) for f, s in zip(found, single, strict=True)]


def _renamed(name: str, renamed: Mapping[str, str]) -> str:
    own = family(name)
    if own not in renamed:
        return name
    numbers = iter(numbers_in(name))
    return "".join(
        next(numbers, part) if part == "*" else part for part in re.split(r"(\*)", renamed[own])
    )
