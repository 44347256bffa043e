"""Kernels while they grow: which rows are together, and whether two kernels may become one."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from flint.ir.columns import edges
from flint.ir.program import Int64s, Kind, Program
from flint.passes.fusion.merging import segments

#: Kernels that a search for a way around looks at before it gives up and refuses the merge. It
#: bounds the time for long programs; between neighbors in a model ways are shorter.
SEARCH_LIMIT = 256


class Groups:
    """A partition of rows into kernels that read each other in no circle.

    Rows of different segments are never together. Collectives and messages keep their order: each
    counts as read by the next of its segment.
    """

    def __init__(
        self, program: Program, marks: list[int] | None = None, apart: list[int] | None = None
    ) -> None:
        """`marks` are bits of each row; a kernel has those of all its rows.

        Rows with different numbers in `apart` are never together.
        """
        self._apart = list(apart) if apart else [0] * len(program)
        self._marks = list(marks) if marks else [0] * len(program)
        self._segment = segments(program).tolist()
        self._of = list(range(len(program)))
        self._rows: dict[int, list[int]] = {}
        self._low = list(range(len(program)))
        self._high = list(range(len(program)))
        self._readers = _readers(program, self._segment)

    def of(self, row: int) -> int:
        """The kernel of a row: a number, and of one of its rows."""
        return self._of[row]

    def marks(self, group: int) -> int:
        """Bits that any row of a kernel has."""
        return self._marks[group]

    def rows(self, group: int) -> list[int]:
        """The rows of a kernel."""
        return self._rows.get(group, [group])

    def apart(self, one: int, other: int) -> int:
        """Rows between two kernels; none or less where they overlap."""
        return max(self._low[one] - self._high[other], self._low[other] - self._high[one])

    def kernels(self, stands: Int64s) -> Int64s:
        """For each row, the row that stands for its kernel: the last of the highest `stands`."""
        rank = stands.tolist()
        kernel = np.arange(len(rank))
        for rows in self._rows.values():
            kernel[rows] = max(rows, key=lambda row: (rank[row], row))
        return kernel

    def merge_beside(self, a: int, b: int) -> bool:
        """`merge`, of kernels that start together: neither reads the other."""
        first, second = self._of[a], self._of[b]
        if first != second and (self._reads(first, second) or self._reads(second, first)):
            return False
        return self.merge(a, b)

    def _reads(self, group: int, read: int) -> bool:
        return any(self._of[to] == group for row in self.rows(read) for to in self._readers[row])

    def merge(self, a: int, b: int) -> bool:
        """Make the kernels of rows `a` and `b` one; False if that is impossible."""
        first, second = self._of[a], self._of[b]
        if first == second:
            return True
        if self._segment[a] != self._segment[b] or self._apart[first] != self._apart[second]:
            return False
        if self._around(first, second) or self._around(second, first):
            return False
        self._join(first, second)
        return True

    def merge_all(self, rows: set[int]) -> bool:
        """Make some rows, each a kernel by itself so far, one kernel; False if that is impossible.

        It is if they are not of one segment, or a row outside reads one and is read by another.
        """
        first = min(rows)
        alone = all(self.rows(self._of[row]) == [row] for row in rows)
        if not alone or any(self._segment[row] != self._segment[first] for row in rows):
            return False
        if self._leads_back(rows):
            return False
        for row in rows:
            if self._of[row] != self._of[first]:
                self._join(self._of[first], self._of[row])
        return True

    def _leads_back(self, rows: set[int]) -> bool:
        """Whether a kernel outside `rows` reads them and is read by them, through others or not."""
        bound = max(rows)
        seen: set[int] = set()
        pending = [row for row in rows for row in self._readers[row] if row not in rows]
        while pending:
            group = self._of[pending.pop()]
            if group in seen or self._low[group] > bound:
                continue
            seen.add(group)
            readers = [to for row in self.rows(group) for to in self._readers[row]]
            if any(to in rows for to in readers):
                return True
            pending += readers
        return False

    def _join(self, first: int, second: int) -> None:
        one, other = self.rows(first), self.rows(second)
        if len(one) < len(other):
            first, second, one, other = second, first, other, one
        self._rows[first] = one + other
        self._rows.pop(second, None)
        for row in other:
            self._of[row] = first
        self._marks[first] |= self._marks[second]
        self._low[first] = min(self._low[first], self._low[second])
        self._high[first] = max(self._high[first], self._high[second])

    def _around(self, start: int, end: int) -> bool:
        """Whether a third kernel reads `start` and is read, through others, by `end`."""
        bound = self._high[end]
        seen = {start, end}
        pending = self._next(start, seen, bound)
        while pending:
            group = pending.pop()
            for row in self.rows(group):
                for reader in self._readers[row]:
                    to = self._of[reader]
                    if to == end:
                        return True
                    if to not in seen and self._low[to] < bound:
                        seen.add(to)
                        pending.append(to)
            if len(seen) > SEARCH_LIMIT:
                return True
        return False

    def _next(self, start: int, seen: set[int], bound: int) -> list[int]:
        found = []
        for row in self.rows(start):
            for reader in self._readers[row]:
                to = self._of[reader]
                if to not in seen and self._low[to] < bound:
                    seen.add(to)
                    found.append(to)
        return found


def _readers(program: Program, segment: list[int]) -> list[list[int]]:
    """For each row, the rows of its segment that read it or must come after it."""
    found: list[list[int]] = [[] for _ in range(len(program))]
    owner, target = edges(program)
    for reader, read in zip(owner.tolist(), target.tolist(), strict=True):
        if segment[reader] == segment[read]:
            found[read].append(reader)
    talks = np.flatnonzero(program.kind >= Kind.COLLECTIVE).tolist()
    for before, after in pairwise(talks):
        if segment[before] == segment[after]:
            found[before].append(after)
    return found
