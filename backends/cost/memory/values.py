"""Whose value each row has: its own, that of the row it views, or what a loop has made."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flint.backends.cost.memory.nesting import Carry, Nesting, nesting
from flint.ir.opcodes import opcode_mask
from flint.ir.program import Flag, Kind, Program


@dataclass(frozen=True, eq=False)
class Values:
    """Values of a program: number i is what row i makes, n + j what `changing[j]` ends as.

    `of_row[i]` is the value of row i. `changing` are the carried values that their loops change,
    those of inner loops first; what a loop gives on as it was is a view of its initial value.
    """

    nesting: Nesting
    of_row: list[int]
    changing: list[Carry]
    #: Number of the value that a carried row ends as.
    last_of: dict[int, int]

    def __len__(self) -> int:
        return len(self.of_row) + len(self.changing)

    def read(self, row: int, reader_region: int) -> int:
        """The value that a reader in a region gets from a row."""
        carry = self.nesting.seen_from(row, reader_region)
        if carry is None:
            return self.of_row[row]
        return self.last_of.get(carry.row, self.of_row[carry.row])

    def born_region(self, value: int) -> int:
        """The region in which a value is made; what a loop ends as is there outside of it."""
        program = self.nesting.program
        if value < len(self.of_row):
            return int(program.region[value])
        return program.regions[self.changing[value - len(self.of_row)].region].parent


def values(program: Program) -> Values:
    """Find the value of each row, in row order; a loop's carried values when it has ended."""
    found = Values(nesting(program), list(range(len(program))), [], {})
    sees = _what_views_see(program)
    ending = sorted(range(len(program.regions)), key=lambda i: (program.regions[i].stop, -i))
    regions = program.region.tolist()
    for row in range(len(program)):
        while ending and program.regions[ending[0]].stop <= row:
            _end_loop(found, ending.pop(0))
        target = int(sees[row])
        if target >= 0 and row not in found.nesting.carries:
            found.of_row[row] = _origin(found, found.read(target, regions[row]))
    for index in ending:
        _end_loop(found, index)
    for row in range(len(program)):
        found.of_row[row] = _origin(found, found.of_row[row])
    return found


def _end_loop(found: Values, index: int) -> None:
    """Which of its carried values a loop has changed."""
    for row, produced in found.nesting.program.regions[index].carries:
        carry = found.nesting.carries[row]
        given_on = _origin(found, found.read(produced, index))
        if given_on == row and carry.initial >= 0:
            parent = found.nesting.program.regions[index].parent
            found.of_row[row] = _origin(found, found.read(carry.initial, parent))
        else:
            found.last_of[row] = len(found)
            found.changing.append(carry)


def _origin(found: Values, value: int) -> int:
    of_row = found.of_row
    while value < len(of_row) and of_row[value] != value:
        value = of_row[value]
    return value


def _what_views_see(program: Program) -> NDArray[np.int64]:
    """For each row the row that it is a view of, or -1. A join is one of the branch that runs."""
    single = np.where(
        np.diff(program.dep_start) == 1, np.append(program.deps, -1)[program.dep_start[:-1]], -1
    )
    seen = np.where(program.alias >= 0, program.alias, single)
    views = (program.flags & Flag.VIEW) != 0
    views |= (program.kind == Kind.VALUE) & (program.alias >= 0)
    sees = np.where(views, seen, -1).astype(np.int64)
    for row in np.flatnonzero(opcode_mask(program, frozenset({"case.join"}))).tolist():
        inside = [d for d in program.dependencies(row).tolist() if program.region[d] >= 0]
        inside = [d for d in inside if program.region[d] != program.region[row]]
        sees[row] = next((d for d in inside if program.trips[d] > 0), -1)
    return sees
