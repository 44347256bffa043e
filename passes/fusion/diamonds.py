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

    They can if only element-wise rows of its region read it, some through others of one element a
    row, and each of them also reads what it reduces: the values that lead to it one by one, from
    the last that has two operands of full size; or by any operand, if what is reduced meets no other
    value of one element a row (the gradient of a softmax; that of a norm does) and no array of truth
    values masks what comes after. No transpose may be among those: the rows that it
    reduces lie side by side in memory, no more than `ROW_ELEMENTS`. (XLA's softmax rewriter, the source
    of the name.) With `blocks` "shared" none of that matters, with "" there is none. `find(row)` is the same for rows
    of one such kernel.
    """

    def __init__(self, program: Program, roles: Roles, *, blocks: str) -> None:
        self.whole: dict[int, list[int]] = {}  # with their readers
        self.ends: set[int] = set()  # all readers
        self.between: set[int] = set()
        self.unit = list(range(len(program)))
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

    def _add(self, row: int) -> None:
        if not self._any and ReductionDims.of(self._dims[row]).reduced > ROW_ELEMENTS:
            return
        readers = self._wide_readers(row, int(self._dims[row, 1]))
        if not readers or (len(readers) > 1 and not self._any):
            return
        above = self._above(row)
        met = all(above & self._above(reader) for reader in readers)
        if not met and self._alone(row, int(self._dims[row, 1])):
            met = self._all_meet(row, readers) and not self._masked_later(readers)
        if self._any or (met and not self._is_turned(row)):
            self.whole[row] = readers
            self.between |= self._narrow(row, readers)
            self.ends.update(readers)
            for reader in readers:
                self._join(row, reader)

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
                if row < read and read not in found and self._results[read] <= self._results[row]:
                    found.add(read)
                    pending.append(read)
        return found

    def _above(self, row: int) -> set[int]:
        """Values that lead to a row one by one."""
        found: set[int] = set()
        at = row
        for _ in range(_DEPTH):
            wide = self._wide_operands(at, self._elements[row])
            if len(wide) != 1:
                return found | (set(wide) if at == row else set())
            at = wide[0]
            found.add(at)
            if self._role[at] not in (ELEMENT, VIEW):
                break
        return found

    def _all_meet(self, row: int, readers: list[int]) -> bool:
        """Whether each reader leads, by any of its operands, to a value that the reduction leads to."""
        above = self._all_above(row)
        return all(above & self._all_above(reader) for reader in readers)

    def _all_above(self, row: int) -> set[int]:
        """Values of full size that lead to a row, by any operand."""
        found: set[int] = set()
        pending = [row]
        while pending and len(found) < _DEPTH:
            for read in self._wide_operands(pending.pop(), self._elements[row]):
                if read not in found:
                    found.add(read)
                    pending += [read] if self._role[read] in (ELEMENT, VIEW) else []
        return found

    def _masked_later(self, rows: list[int]) -> bool:
        """Whether what rows lead to is masked by an array of truth values, which no block reads."""
        pending, seen = list(rows), set(rows)
        while pending and len(seen) < _DEPTH:
            row = pending.pop()
            size = self._elements[row]
            for read in self._deps[self._start[row] : self._start[row + 1]]:
                if (
                    self._truth[read]
                    and self._results[read] == size
                    and self._role[read] != ELEMENT
                ):
                    return True
            for reader in self._rows[self._first[row] : self._first[row + 1]]:
                same = self._role[reader] in (ELEMENT, VIEW) and self._elements[reader] == size
                if same and reader not in seen:
                    seen.add(reader)
                    pending.append(reader)
        return False

    def _alone(self, row: int, rows: int) -> bool:
        """Whether what is reduced meets no other value of one element a row before it is spread."""
        pending, seen = [row], {row}
        while pending:
            for reader in self._rows[self._first[(at := pending.pop())] : self._first[at + 1]]:
                if reader in seen or self._elements[reader] != rows:
                    continue
                seen.add(reader)
                pending.append(reader)
                inner = self._deps[self._start[reader] : self._start[reader + 1]]
                others = [d for d in inner if d not in seen and self._results[d] == rows > 1]
                if not all(self._spreads(d, rows) for d in others):
                    return False
        return True

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

    def _join(self, a: int, b: int) -> None:
        self.unit[self.find(a)] = self.find(b)

    def find(self, row: int) -> int:
        """The number of a row's unit."""
        while self.unit[row] != row:
            self.unit[row] = self.unit[self.unit[row]]
            row = self.unit[row]
        return row
