"""Copies of what is still needed where a step would write over it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flint.ir.columns import edges, is_any, type_bytes
from flint.ir.edit import Editor
from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Kind, Program, Region
from flint.passes.base import Pass
from flint.passes.fusion.merging import value_bytes
from flint.passes.fusion.xla_gpu.copy_carried import SCALAR_BYTES, copy_of


@dataclass(frozen=True)
class CopyOverwritten(Pass):
    """A value that is still needed is copied before an update in place, or before a loop changes it.

    XLA may not write over an argument that is not donated, which the caller keeps (`CopyInsertion`): a
    cache that a step updates without `donate_argnums` is copied whole. Of several updates of one value
    all but the last have a copy each. What a loop stacks up is copied behind it to the donated argument
    whose place it takes, if the loop or a later row reads that: a cache that a scan reads and writes layer
    by layer. Programs of pipelines do not say what they may write over, and operators that a framework
    launched write where they say: both stay as they are.
    """

    name: ClassVar[str] = "copy-overwritten"

    def apply(self, program: Program) -> Program:
        """Return the program with a row for each copy."""
        if is_any(program, OpClass.TURN).any():
            return program
        shown = _shown(program)
        written = [*_updated(program, shown), *_carried(program, shown), *_stacked(program, shown)]
        if not written:
            return program
        edit, sizes = Editor(program), value_bytes(program)
        for row, read in written:
            _copy(edit, row, read, shown[read], int(sizes[shown[read]]))
        return edit.build().program


def _shown(program: Program) -> list[int]:
    """For each row, the row with its value: another one for a view."""
    found = list(range(len(program)))
    for row in np.flatnonzero((program.kind == Kind.VALUE) & (program.alias >= 0)).tolist():
        found[row] = found[program.alias[row]]
    return found


def _kept(program: Program) -> list[bool]:
    """Whether a row is an argument that the caller keeps."""
    arguments = (program.kind == Kind.PARAMETER) & ((program.flags & Flag.DONATED) == 0)
    found: list[bool] = (arguments & (type_bytes(program) > SCALAR_BYTES)).tolist()
    return found


def _updated(program: Program, shown: list[int]) -> Iterator[tuple[int, int]]:
    """Rows that write over what is still needed, and which of their operands that is."""
    writes = ((program.flags & Flag.IN_PLACE) != 0) & ((program.flags & Flag.LAUNCHED) == 0)
    writes &= program.kind == Kind.COMPUTE  # messages fill parts of what is there
    needed = _kept(program)
    for row in np.flatnonzero(writes & (program.alias >= 0)).tolist()[::-1]:
        read = int(program.alias[row])
        if needed[shown[read]]:
            yield row, read
        needed[shown[read]] = True


def _carried(program: Program, shown: list[int]) -> Iterator[tuple[int, int]]:
    """Values that a loop changes and that start from an argument that the caller keeps, with that."""
    kept = _kept(program)
    for region in program.regions:
        for carried, produced in region.carries:
            changes = shown[produced] != shown[carried]
            for start in program.dependencies(carried).tolist() if changes else ():
                if kept[shown[start]]:
                    yield carried, start


def _stacked(program: Program, shown: list[int]) -> Iterator[tuple[int, int]]:
    """Rows that return what a loop stacked up beside a donated argument, with what they read."""
    loops = {shown[made]: (at, region) for region in program.regions for at, made in region.carries}
    results = np.flatnonzero((program.op == OpClass.RESULT) & (program.region == -1)).tolist()
    returned = [(row, read) for row in results for read in program.dependencies(row).tolist()]
    begins = {read: _begin(program, read, shown, loops) for _, read in returned}
    free = _Donated(program, shown, set(begins.values()))
    for row, read in returned:
        place = -1 if begins[read] in free.arguments else free.take(read)
        if place >= 0 and shown[read] in loops:
            _, loop = loops[shown[read]]
            if free.last[place] >= loop.start:
                yield row, read


def _begin(
    program: Program, row: int, shown: list[int], loops: Mapping[int, tuple[int, Region]]
) -> int:
    """The row that first had the memory of a row: before updates in place and loops."""
    while True:
        row = shown[row]
        if row in loops and (starts := program.dependencies(loops[row][0])).size:
            row = int(starts[0])
        elif program.alias[row] >= 0:
            row = int(program.alias[row])
        else:
            return row


class _Donated:
    """Donated arguments, of which each takes one result of its type unless it is `used` already."""

    def __init__(self, program: Program, shown: list[int], used: set[int]) -> None:
        self._program = program
        found = (program.kind == Kind.PARAMETER) & ((program.flags & Flag.DONATED) != 0)
        found &= type_bytes(program) > SCALAR_BYTES
        self.arguments: list[int] = np.flatnonzero(found).tolist()
        self._free = [row for row in self.arguments if row not in used]
        self.last = [0] * len(program)  #: the last row that reads the value of each
        for owner, target in zip(*(column.tolist() for column in edges(program)), strict=True):
            self.last[shown[target]] = max(self.last[shown[target]], owner)

    def take(self, row: int) -> int:
        """The next free argument of the type of a row, which is no longer free; -1 if none is."""
        p = self._program
        alike = (a for a in self._free if p.dtype[a] == p.dtype[row] and p.shape[a] == p.shape[row])
        found = next(alike, -1)
        if found >= 0:
            self._free.remove(found)
        return found


def _copy(edit: Editor, row: int, read: int, value: int, size: int) -> None:
    program = edit.program
    returns = bool(program.op[row] == OpClass.RESULT)
    is_carried = bool(program.kind[row] == Kind.VALUE) and not returns
    before, region = row, int(program.region[row])
    if is_carried:
        loop = program.regions[region]
        before, region = loop.start, loop.parent
    work = {**copy_of(size), "alias": -1, "flags": 0, "phase": int(program.phase[row])}
    mine = edit.value(value, before, region, [read], **work)
    alias = {} if is_carried or returns else {"alias": mine}
    edit.change(row, deps=[mine if d == read else d for d in edit.reads(row)], **alias)
