"""An all-reduce of which each device keeps a part is a reduce-scatter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from flint.ir.columns import edges, kept, permuted, rewired, use_counts, with_value
from flint.ir.mesh import Group
from flint.ir.opcodes import ALL_SLICE, opcode_mask
from flint.ir.program import Collective, Flag, Kind, Program
from flint.passes.axes import subtract
from flint.passes.base import Pass

#: Opcode of the reduce-scatters that this pass makes.
REDUCE_SCATTER = "sdy.reduce_scatter"


@dataclass(frozen=True)
class FormReduceScatter(Pass):
    """Turn an all-reduce that only a `sdy.all_slice` reads into a reduce-scatter.

    Slice over all axes of the all-reduce: the slice's row becomes the reduce-scatter, and the
    all-reduce goes. Slice over some of them: the all-reduce's row becomes a reduce-scatter over
    the sliced axes, and the slice's row an all-reduce of the part over the other axes. A slice
    over an axis that the all-reduce does not have, or groups of listed ranks, stay as they are.
    `comm_bytes` of the reduce-scatter is that of the all-reduce: both count the rank's input.
    """

    name: ClassVar[str] = "form-reduce-scatter"

    def apply(self, program: Program) -> Program:
        """Return the program with reduce-scatters."""
        while (rewritten := _once(program)) is not program:
            program = rewritten  # the all-reduce that is left may be sliced again
        return program


def _once(program: Program) -> Program:
    work = _Edit(program)
    for reduce, slices in _pairs(program):
        axes = program.groups[program.group[slices]].axes
        rest = subtract(program.mesh, program.groups[program.group[reduce]].axes, axes)
        if rest == ():
            work.whole(reduce, slices)
        elif rest is not None:
            work.part(reduce, slices, rest)
    return work.result()


def _pairs(program: Program) -> Iterator[tuple[int, int]]:
    """(all-reduce, slice) rows in one region where the slice is the only reader."""
    listed = np.array([g.is_listed for g in program.groups] + [True], dtype=np.bool_)
    by_axes = ~listed[program.group]
    reduces = (program.collective == Collective.ALL_REDUCE) & by_axes & (use_counts(program) == 1)
    idle = (program.kind == Kind.COMPUTE) | (program.kind == Kind.VALUE)
    slices = opcode_mask(program, {ALL_SLICE}) & by_axes & idle & (program.result_bytes > 0)
    slices &= np.diff(program.dep_start) == 1
    for row in np.flatnonzero(slices).tolist():
        read = int(program.deps[program.dep_start[row]])
        if reduces[read] and program.region[read] == program.region[row]:
            yield read, row


@dataclass
class _Edit:
    """Changes to single entries of columns, collected and applied at once."""

    program: Program
    values: list[tuple[str, int, Any]] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    onto: list[int] = field(default_factory=list)
    groups: tuple[Group, ...] = ()

    def __post_init__(self) -> None:
        self.groups = self.program.groups
        self.opcodes, self._scatter = with_value(self.program.opcodes, REDUCE_SCATTER)

    def whole(self, reduce: int, slices: int) -> None:
        """The slice's row becomes the reduce-scatter."""
        self.gone.append(reduce)
        self.onto.append(slices)
        self._scatters(slices, reduce, slices)

    def part(self, reduce: int, slices: int, rest: tuple[Any, ...]) -> None:
        """The all-reduce's row becomes the reduce-scatter, the slice's row reduces the rest."""
        p = self.program
        part_bytes = int(p.result_bytes[slices])
        self._scatters(reduce, reduce, slices)
        self._set(reduce, group=p.group[slices])
        self.groups, group = with_value(self.groups, Group(rest))
        self._set(slices, group=group, comm_bytes=part_bytes, operand_bytes=part_bytes)
        for name in ("opcode", "kind", "collective", "stream", "cause"):
            self._set(slices, **{name: getattr(p, name)[reduce]})
        self._set(slices, flags=_own_flags(int(p.flags[reduce])))

    def result(self) -> Program:
        """The program as rewritten."""
        if not self.values:
            return self.program
        source = np.arange(len(self.program))
        source[self.onto] = self.gone
        owner, target = edges(self.program)
        readers = np.arange(len(self.program))
        readers[self.gone] = self.onto
        own = np.zeros(len(self.program), dtype=np.bool_)
        own[self.onto] = True
        stays = ~own[owner]
        moved = rewired(permuted(self.program, source), (readers[owner[stays]], target[stays]))
        columns = {name: getattr(moved, name).copy() for name in {n for n, _, _ in self.values}}
        for name, row, value in self.values:
            columns[name][row] = value
        keep = np.ones(len(self.program), dtype=np.bool_)
        keep[self.gone] = False
        return kept(moved.with_rows(**columns, opcodes=self.opcodes, groups=self.groups), keep)

    def _scatters(self, row: int, reduce: int, slices: int) -> None:
        p = self.program
        self._set(row, opcode=self._scatter, collective=Collective.REDUCE_SCATTER)
        self._set(row, shape=p.shape[slices], result_bytes=p.result_bytes[slices])
        self._set(row, flags=_own_flags(int(p.flags[reduce])))

    def _set(self, row: int, **values: Any) -> None:
        self.values.extend((name, row, value) for name, value in values.items())


def _own_flags(flags: int) -> int:
    """Flags that still hold when the result has another size than the operand."""
    return flags & ~int(Flag.IN_PLACE | Flag.VIEW)
