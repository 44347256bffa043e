"""Diamonds: a reduction along rows, and all that reads it together with what it reduced."""

from __future__ import annotations

import numpy as np

from flint.ir.columns import consumers
from flint.ir.dims import ReductionDims
from flint.ir.program import Program
from flint.passes.fusion.roles import ELEMENT, ROWS, VIEW, Roles

#: Rows above a reduction that are looked at for a transpose.
_DEPTH = 32
#: Longest row that XLA for GPUs reduces in one step, and so in one kernel with what reads the result.
ROW_ELEMENTS = 1024 * 16
#: Names of the type of truth values.
_TRUTH = ("bool", "i1")


class Diamonds:
    """For each reduction along rows, whether it and its readers can be one kernel.

    They can if only an element-wise row of its region reads it, perhaps through others of one element a
    row, and it also reads what is reduced: the values that lead to it one by one, from
    the last that has two operands of full size. No transpose may be among those: the rows that it
    reduces lie side by side in memory, no more than `ROW_ELEMENTS`. (XLA's softmax rewriter, the source
    of the name.) Where there is one, other reductions can as well whose readers all belong to kernels
    along rows (XLA's priority fusion). With `blocks` "shared" none of that matters, with "" there is none.

    `whole` are these reductions with their readers, `ends` element-wise rows that only such kernels
    compute, `between` rows of one element a row, and what spreads them, from the first to the second.
    """

    def __init__(self, program: Program, roles: Roles, *, blocks: str) -> None:
        self.whole: dict[int, list[int]] = {}
        self.ends: set[int] = set()
        self.between: set[int] = set()
        self._role = roles.role.tolist()
        self._elements = roles.elements.tolist()
        self._results = roles.results.tolist()
        self._turns = roles.turns.tolist()
        self._moves = roles.moves.tolist()
        self._any = blocks == "shared"
        self._region = program.region.tolist()
        self._start, self._deps = program.dep_start.tolist(), program.deps.tolist()
        self._first, self._rows = (column.tolist() for column in consumers(program))
        self._dims = program.dims
        truth = np.array([name in _TRUTH for name in program.dtypes] or [False], dtype=np.bool_)
        self._truth = truth[program.dtype].tolist()
        for row, role in enumerate(self._role):
            if role == ROWS and blocks:
                self._add(row)
        if self.ends and not self._any:
            self._add_read_along()

    def _add_read_along(self) -> None:
        """Add reductions that only kernels along rows read: XLA's fusion puts them there."""
        others: dict[int, list[int]] = {}
        for row in (r for r, role in enumerate(self._role) if role == ROWS and r not in self.whole):
            if self._fits(row) and not self._is_turned(row):
                others[row] = self._wide_readers(row, int(self._dims[row, 1]))
        along, apart = self._along(), [-1]
        while apart:
            others = {row: readers for row, readers in others.items() if row not in apart}
            near = self._with_operands({*along, *self.whole, *others})
            apart = [r for r, found in others.items() if not found or not near.issuperset(found)]
        for row, readers in others.items():
            self._take(row, readers)
        self.ends |= self._along()

    def _along(self) -> set[int]:
        """Element-wise rows that read, also through others, the last of a kernel along rows.

        Unless something else reads that, which cannot compute it and for which it is stored.
        """
        found = set(self.ends)
        passes = {row for row in self.ends if self._is_computed_again(row)}
        for row in range(min(self.ends), len(self._role)):
            inner = self._deps[self._start[row] : self._start[row + 1]]
            if self._role[row] in (ELEMENT, VIEW) and not passes.isdisjoint(inner):
                found.add(row)
                if self._is_computed_again(row):
                    passes.add(row)
        return found

    def _with_operands(self, along: set[int]) -> set[int]:
        """These rows, and element-wise ones that they alone read."""
        for row in range(max(along))[::-1]:
            readers = self._rows[self._first[row] : self._first[row + 1]]
            if self._role[row] in (ELEMENT, VIEW) and readers and along.issuperset(readers):
                along.add(row)
        return along

    def _is_computed_again(self, row: int) -> bool:
        """Whether all that reads a row is element-wise, or a reduction along rows."""
        readers = self._rows[self._first[row] : self._first[row + 1]]
        return all(self._role[r] in (ELEMENT, VIEW, ROWS) for r in readers)

    def _fits(self, row: int) -> bool:
        return self._any or bool(ReductionDims.of(self._dims[row]).reduced <= ROW_ELEMENTS)

    def _add(self, row: int) -> None:
        if not self._fits(row):
            return
        readers = self._wide_readers(row, int(self._dims[row, 1]))
        if not readers or (len(readers) > 1 and not self._any):
            return
        inner = self._deps[self._start[readers[0]] : self._start[readers[0] + 1]]
        if not self._any and any(self._truth[d] for d in inner):
            return  # it chooses by truth values: XLA's diamonds end in a row of two operands
        above = self._above(row)
        met = all(above & self._above(reader) for reader in readers)
        if self._any or (met and not self._is_turned(row)):
            self._take(row, readers)

    def _take(self, row: int, readers: list[int]) -> None:
        self.whole[row] = readers
        self.between |= self._narrow(row, readers)
        self.ends.update(readers)

    def _wide_readers(self, row: int, rows: int) -> list[int]:
        """Rows of full size that read a reduction, or none if others read it too."""
        found, pending, seen = [], [row], {row}
        while pending:
            for reader in self._rows[self._first[(at := pending.pop())] : self._first[at + 1]]:
                if reader in seen:
                    continue
                seen.add(reader)
                small = self._elements[reader] == rows
                if self._role[reader] not in (ELEMENT, VIEW, ROWS):
                    return []
                if self._region[reader] != self._region[row]:
                    return []
                if small and self._role[reader] != ROWS:
                    pending.append(reader)
                elif self._elements[reader] != self._elements[row]:
                    return []
                elif self._spreads(reader, self._elements[row]):
                    pending.append(reader)
                else:
                    found.append(reader)
        return found

    def _narrow(self, row: int, readers: list[int]) -> set[int]:
        """Rows of one element a row between a reduction and what reads it at full size."""
        found, pending = set[int](), list(readers)
        while pending:
            at = pending.pop()
            for read in self._deps[self._start[at] : self._start[at + 1]]:
                small = self._results[read] <= self._results[row]
                near = small or self._spreads(read, self._elements[row])
                if near and row < read and read not in found:
                    pending.append(read)
                    found.add(read)
        return found

    def _above(self, row: int) -> set[int]:
        """Values that lead to a row one by one, each alone or with what is given for all rows."""
        found: set[int] = set()
        at = row
        for _ in range(_DEPTH):
            wide = self._wide_operands(at, self._elements[row])
            if len(wide) != 1 or (found and self._mixes(at, self._elements[row])):
                return found | (set(wide) if at == row else set())
            at = wide[0]
            found.add(at)
            if self._role[at] not in (ELEMENT, VIEW):
                break
        return found

    def _mixes(self, row: int, size: int) -> bool:
        """Whether a row reads a small value, spread to full size, that was computed."""
        pending = self._deps[self._start[row] : self._start[row + 1]]
        for read in pending:
            if self._spreads(read, size):
                pending += self._deps[self._start[read] : self._start[read + 1]]
            elif self._results[read] < size and self._role[read] in (ELEMENT, ROWS):
                return True
        return False

    def _is_turned(self, row: int) -> bool:
        """Whether a transpose is among the element-wise rows that lead to a row."""
        pending, seen = [row], {row}
        while pending and len(seen) < _DEPTH:
            for read in self._wide_operands(pending.pop(), self._elements[row]):
                if self._turns[read]:
                    return True
                near = self._region[read] == self._region[row]
                if near and self._role[read] in (ELEMENT, VIEW) and read not in seen:
                    seen.add(read)
                    pending.append(read)
        return False

    def _wide_operands(self, row: int, size: int) -> list[int]:
        """Operands of full size that are no broadcasts of smaller values."""
        return [
            read
            for read in self._deps[self._start[row] : self._start[row + 1]]
            if self._results[read] == size and not self._spreads(read, size)
        ]

    def _spreads(self, row: int, size: int) -> bool:
        inner = self._deps[self._start[row] : self._start[row + 1]]
        moves = self._moves[row] or self._role[row] == VIEW
        return (
            moves
            and all(self._results[d] < size or self._spreads(d, size) for d in inner)
            and self._role[row] in (ELEMENT, VIEW)
        )
