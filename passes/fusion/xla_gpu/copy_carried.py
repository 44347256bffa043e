"""Copies that a loop needs because each value it carries has one place in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from flint.ir.columns import consumers, type_bytes
from flint.ir.edit import Editor
from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Kind, Program, Region, RegionKind
from flint.passes.base import Pass

#: Bytes of a value that is not looked at: counters of loops.
SCALAR_BYTES = 8


@dataclass(frozen=True)
class CopyCarried(Pass):
    """Values that loops carry are copied where two of them would share memory, by named rules.

    XLA keeps a value that a loop carries in one place, for all iterations (`CopyInsertion`).

    * `own_start`: of several values that start from one array, all but one get an array of their own;
      one that was made from nothing is made once for each.
    * `counter`: each iteration adds one to its number, in a kernel of its own; if it writes a part
      of a stack it copies the number before, in another.
    * `taken_back`: what becomes the value of the next iteration is copied there at the end, if it was
      begun while the value of this iteration was still read.
    """

    name: ClassVar[str] = "copy-carried"

    def apply(self, program: Program) -> Program:
        """Return the program with a row for each copy."""
        if not any(region.kind is RegionKind.LOOP for region in program.regions):
            return program
        edit, work = Editor(program), _Carried(program)
        shared, overwritten = [*work.shared_starts()], [*work.overwritten()]
        counters = [*work.counters()]
        for region, carried in counters:
            _count(edit, region, carried, copies=region in work.writing)
        for start, carried in shared:
            _own_start(edit, work, start, carried)
        for region, carried, produced in overwritten:
            copied = edit.value_at_end(carried, region, [produced], **work.copy_of(carried))
            edit.hand_on(region, carried, copied)
        return edit.build().program if shared or overwritten or counters else program


def _count(edit: Editor, region: int, carried: int, *, copies: bool) -> None:
    """Add the kernels with which an iteration counts: a copy of the counter, if any, and its sum."""
    size = int(edit.program.result_bytes[carried])
    work: dict[str, Any] = {"kind": Kind.COMPUTE, "operand_bytes": size, "name": ""}
    read = carried
    if copies:
        copy = {"op": OpClass.COPY, "opcode": "stablehlo.copy"}
        read = edit.value_at_end(carried, region, [carried], **work, **copy)
    added = {"op": OpClass.ADD, "opcode": "stablehlo.add", "flops": 1}
    edit.hand_on(region, carried, edit.value_at_end(carried, region, [read], **work, **added))


def _own_start(edit: Editor, work: _Carried, start: int, carried: int) -> None:
    program = edit.program
    region = int(program.region[start])
    if work.is_made(start):
        mine = edit.copy(start, start, region, edit.reads(start), alias=-1)
    else:
        loop = program.regions[program.region[carried]]
        mine = edit.value(start, loop.start, loop.parent, [start], **work.copy_of(carried))
    reads = [mine if d == start else d for d in edit.reads(carried)]
    edit.change(carried, deps=reads)


def copy_of(size: int) -> dict[str, Any]:
    """Columns of a row that copies `size` bytes."""
    work: dict[str, Any] = {"kind": Kind.COMPUTE, "op": OpClass.COPY, "name": ""}
    return {**work, "opcode": "stablehlo.copy", "operand_bytes": size, "result_bytes": size}


class _Carried:
    """Which values of loops are in memory together."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._sizes = type_bytes(program)
        self._alias = program.alias.tolist()
        self._first, self._rows = (column.tolist() for column in consumers(program))

    def copy_of(self, carried: int) -> dict[str, Any]:
        """Columns of a row that copies such a value."""
        return copy_of(int(self._sizes[carried]))

    def _changed(self) -> Iterator[tuple[int, int, int]]:
        """Region, value and what replaces it, of all that loops change."""
        for number, region in enumerate(self._program.regions):
            for carried, produced in region.carries:
                if carried != produced and self._sizes[carried] > SCALAR_BYTES:
                    yield number, carried, produced

    @cached_property
    def writing(self) -> set[int]:
        """Regions in which a part of an array is written."""
        program = self._program
        parts = (program.flags & Flag.IN_PLACE) != 0
        parts &= (program.alias >= 0) & (program.result_bytes < type_bytes(program))
        return set(program.region[parts].tolist())

    def counters(self) -> Iterator[tuple[int, int]]:
        """Loops, each with a number that it counts up."""
        kind, size = self._program.kind, self._program.result_bytes
        for number, region in enumerate(self._program.regions):
            for carried, produced in region.carries:
                scalar = 0 < size[carried] <= SCALAR_BYTES and kind[produced] == Kind.VALUE
                if carried != produced and scalar and region.kind is RegionKind.LOOP:
                    yield number, carried

    def shared_starts(self) -> Iterator[tuple[int, int]]:
        """Arrays from which several values start, with each but the first of these."""
        seen: set[int] = set()
        for _, carried, _ in self._changed():
            for start in self._program.dependencies(carried).tolist():
                if start in seen:
                    yield start, carried
                seen.add(start)

    def is_made(self, row: int) -> bool:
        """Whether a row makes an array without reading another."""
        computes = self._program.kind[row] == Kind.COMPUTE
        return bool(computes and self._program.operand_bytes[row] <= SCALAR_BYTES)

    def overwritten(self) -> Iterator[tuple[int, int, int]]:
        """Region, value and what replaces it, where the second is begun before the first ends."""
        for region, carried, produced in self._changed():
            place = self._place(carried, produced)
            if place != carried and self._begins(place, region) < self._ends(carried, region):
                yield region, carried, produced

    def _place(self, carried: int, row: int) -> int:
        """The row with which the array of a row begins: `carried` if it is updated in place."""
        while row != carried and self._alias[row] >= 0:
            row = self._alias[row]
        return row

    def _begins(self, row: int, region: int) -> int:
        """When in an iteration of `region` an array begins to be written."""
        at = int(self._program.region[row])
        if at == region:
            return row
        if not self._is_inside(at, region):
            return self._program.regions[region].start
        return self._loop_around(row, region).start

    def _loop_around(self, row: int, region: int) -> Region:
        at = int(self._program.region[row])
        while self._program.regions[at].parent != region:
            at = self._program.regions[at].parent
        return self._program.regions[at]

    def _is_inside(self, inner: int, region: int) -> bool:
        while inner >= 0 and inner != region:
            inner = self._program.regions[inner].parent
        return inner == region

    def _ends(self, carried: int, region: int) -> int:
        """The last row of an iteration that reads a value, seen differently or in a loop too."""
        last, pending, seen = carried, [carried], {carried}
        while pending:
            for reader in self._rows[self._first[(at := pending.pop())] : self._first[at + 1]]:
                if not self._is_inside(int(self._program.region[reader]), region):
                    continue
                last = max(last, self._last_of(reader, region))
                if self._alias[reader] == at and reader not in seen:
                    seen.add(reader)
                    pending.append(reader)
        return last

    def _last_of(self, row: int, region: int) -> int:
        """The last row of the loop in `region` that a row is in; else the row itself."""
        if self._program.region[row] == region:
            return row
        return self._loop_around(row, region).stop - 1
