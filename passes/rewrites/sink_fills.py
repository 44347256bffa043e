"""Make again inside loops what repeats a smaller value: fills, masks, zeros that sums begin as."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flint.ir.columns import Mask, edges
from flint.ir.edit import Editor
from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Kind, Program
from flint.passes.base import Pass


@dataclass(frozen=True)
class SinkFills(Pass):
    """Repeated values are made in the loop that reads them, from what they repeat.

    Capture merges equal operations, also those inside loops with those before them. Compilers
    make a value that repeats another one where it is read: it is larger than what it is made from.

    * `repeats`: a row that repeats its operand, read inside a loop or branch, is made there.
    * `constants`: one that repeats a constant also where the loop hands it on as it is, and where
      an inner loop begins with it (XLA's `WhileLoopConstantSinking`).

    One is there for all readers of a region.
    """

    name: ClassVar[str] = "sink-fills"

    def apply(self, program: Program) -> Program:
        """Return the program with copies of such rows."""
        found = _Sinking(program).wanted()
        if not found:
            return program
        keys = sorted(set(found.values()), key=lambda k: (k[1], _depth(program, k[2]), k))
        edit = Editor(program)
        copies = {key: edit.copy(*key, edit.reads(key[0])) for key in keys}
        for (reader, read), key in found.items():
            deps = [copies[key] if d == read else d for d in edit.reads(reader)]
            edit.change(reader, deps=deps)
            if program.alias[reader] == read:  # a view of a row is a view of its copy
                edit.change(reader, alias=copies[key])
        return edit.build().program


#: What is copied, before which row, and in which region.
_Copy = tuple[int, int, int]


def _depth(program: Program, region: int) -> int:
    depth = 0
    while region >= 0:
        region, depth = program.regions[region].parent, depth + 1
    return depth


class _Sinking:
    """Which reads become reads of a copy."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._repeats = _repeated(program)
        self._constant = _filled(program, self._repeats)
        self._region = program.region.tolist()
        self._loop = {row: i for i, r in enumerate(program.regions) for row, _ in r.carries}
        self._same = {v for r in program.regions for v, made in r.carries if v == made}

    def wanted(self) -> dict[tuple[int, int], _Copy]:
        """Each such read (reader, row), and the copy that takes its place."""
        owner, target = (column.tolist() for column in edges(self._program))
        found = {}
        for o, t in zip(owner, target, strict=True):
            origin = self._origin(t)
            if (self._repeats[t] or self._constant[origin]) and not self._is_first(o):
                place = self._place(o, origin)
                if place is not None:
                    found[o, t] = (origin, *place)
        return found

    def _is_first(self, row: int) -> bool:
        """Whether a row hands a value on as it is: who reads it matters, not this."""
        return row in self._same and self._constant[self._origin(row)]

    def _origin(self, row: int) -> int:
        """The row before loops that hand it on."""
        while row in self._same:
            alias = int(self._program.alias[row])
            if alias < 0 or alias >= row:
                return row
            row = alias
        return row

    def _place(self, reader: int, origin: int) -> tuple[int, int] | None:
        """Before which row and in which region a reader's copy is; None if it has none."""
        program, home = self._program, self._region[origin]
        loop = self._loop.get(reader, -1)
        region = program.regions[loop].parent if loop >= 0 else self._region[reader]
        inside = region != home and is_within(program, region, home)
        if home >= 0 and not is_within(program, region, home):
            return None
        if not inside or (loop >= 0 and not self._constant[origin]):
            return None
        body = program.regions[region]
        return body.start + len(body.carries), region


def is_within(program: Program, inner: int, outer: int) -> bool:
    """Whether region `inner` is `outer` or inside it; -1, the step, is around all."""
    while inner >= 0 and inner != outer:
        inner = program.regions[inner].parent
    return inner == outer


def _repeated(program: Program) -> list[bool]:
    """Rows that repeat their one operand, and are larger."""
    few = np.diff(program.dep_start) == 1
    found: Mask = (program.op == OpClass.BROADCAST) & (program.kind == Kind.COMPUTE) & few
    found &= (program.result_bytes > program.operand_bytes) & (program.flags & Flag.UNPRICED == 0)
    return found.tolist()  # type: ignore[no-any-return]


def _filled(program: Program, repeats: list[bool]) -> list[bool]:
    """Rows that repeat a constant of one element, or a conversion of it."""
    constants = program.op == OpClass.CONSTANT
    scalar = np.array([not s for s in program.shapes] or [False])[program.shape]
    known = (constants & scalar).tolist()
    for row in np.flatnonzero(scalar & (program.kind <= Kind.COMPUTE)).tolist():
        reads = program.dependencies(row).tolist()
        known[row] |= bool(reads) and all(known[d] for d in reads)
    return [
        repeats[row] and all(known[d] for d in program.dependencies(row).tolist())
        for row in range(len(program))
    ]
