"""Diamonds: a reduction along rows, and all that reads it together with what it reduced."""

from __future__ import annotations

from flint.ir.columns import consumers
from flint.ir.program import Program
from flint.passes.fusion.roles import ELEMENT, ROWS, VIEW, Roles

#: Rows above a reduction that are looked at for a transpose.
_DEPTH = 32


class Diamonds:
    """For each reduction along rows, whether it and its readers can be one kernel.

    They can if only element-wise rows of its region read it, some through others of one element a
    row, and each of them also reads what it reduces: the values that lead to it one by one, from
    the last that has two operands of full size. No transpose may be among those: the rows that it
    reduces lie side by side in memory. (XLA's softmax rewriter, the source of the name.) With
    `blocks` "shared" none of that matters, with "" there is none. `find(row)` is the same for rows
    of one such kernel.
    """

    def __init__(self, program: Program, roles: Roles, *, blocks: str) -> None:
        self.whole: set[int] = set()
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
        for row, role in enumerate(self._role):
            if role == ROWS and blocks:
                self._add(row)

    def _add(self, row: int) -> None:
        readers = self._wide_readers(row, int(self._dims[row, 1]))
        if not readers:
            return
        above = self._above(row)
        met = (above & self._above(reader) for reader in readers)
        if self._any or (all(met) and not self._is_turned(row)):
            self.whole.add(row)
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

    def _is_turned(self, row: int) -> bool:
        """Whether a transpose is among the element-wise rows that lead to a row."""
        pending, seen = [row], {row}
        while pending and len(seen) < _DEPTH:
            for read in self._wide_operands(pending.pop(), self._elements[row]):
                if self._turns[read]:
                    return True
                if self._role[read] in (ELEMENT, VIEW) and read not in seen:
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
