"""The backward pass of a softmax, by what it computes: it has no exponential of its own."""

from __future__ import annotations

import numpy as np

from flint.ir.columns import Mask, consumers, is_any
from flint.ir.op_class import OpClass
from flint.ir.program import Program
from flint.passes.fusion.roles import ELEMENT, ROWS, VIEW, Roles


def softmax_gradients(program: Program, roles: Roles) -> Mask:
    """The rows that end the derivative of a softmax of which the result was kept.

    For a result y and its gradient g these are y * (g - sum(y * g)) and y * g - y * sum(y * g),
    whatever scales the sum: what is summed is multiplied by the same factor again. In derivatives
    of norms that factor is no longer applied once the sum is added to the rest.
    """
    found = np.zeros(len(program), dtype=np.bool_)
    reductions = np.flatnonzero(roles.role == ROWS).tolist()
    if reductions:
        graph = _Graph(program, roles)
        for row in reductions:
            found[graph.ends(row)] = True
    return found


class _Graph:
    """A program as lists, to walk from a reduction in both directions."""

    def __init__(self, program: Program, roles: Roles) -> None:
        self._results: list[int] = roles.results.tolist()
        self._size: list[int] = roles.elements.tolist()
        element = roles.role == ELEMENT
        self._idle = ((roles.role == VIEW) | (element & (program.flops == 0))).tolist()
        self._element = element.tolist()
        self._times = (is_any(program, OpClass.MULTIPLY) & element).tolist()
        self._plus = (
            is_any(program, frozenset({OpClass.ADD, OpClass.SUBTRACT})) & element
        ).tolist()
        self._start: list[int] = program.dep_start.tolist()
        self._deps: list[int] = program.deps.tolist()
        first, rows = consumers(program)
        self._first: list[int] = first.tolist()
        self._rows: list[int] = rows.tolist()

    def ends(self, reduction: int) -> list[int]:
        """Rows that apply a factor of what `reduction` sums to what its sum was added to."""
        size = self._size[reduction]
        products = {r for r in self._sources(reduction, size) if self._times[r]}
        factors = {f for p in products for f in self._sources(p, size)}
        return [
            end for row in self._spread(reduction) for end in self._ends(row, products, factors)
        ]

    def _ends(self, row: int, products: set[int], factors: set[int]) -> list[int]:
        size = self._results[row]
        if self._plus[row]:
            return [
                r
                for r in self._through(row)
                if self._times[r] and not factors.isdisjoint(self._sources(r, size))
            ]
        if self._times[row] and not factors.isdisjoint(self._sources(row, size)):
            return [
                r
                for r in self._through(row)
                if self._plus[r] and not products.isdisjoint(self._sources(r, size))
            ]
        return []

    def _sources(self, row: int, size: int) -> list[int]:
        """What a row reads that has `size` elements, before changes of layout and type."""
        found: list[int] = []
        for read in self._deps[self._start[row] : self._start[row + 1]]:
            while self._idle[read] and self._results[read] == size:
                above = self._deps[self._start[read] : self._start[read + 1]]
                if len(above) != 1 or self._results[above[0]] != size:
                    break
                read = above[0]
            if self._results[read] == size:
                found.append(read)
        return found

    def _spread(self, reduction: int) -> list[int]:
        """The first rows that calculate with the sum over whole rows again."""
        size, found = self._size[reduction], list[int]()
        pending, seen = [reduction], {reduction}
        while pending:
            for reader in self._readers(pending.pop()):
                if reader in seen:
                    continue
                seen.add(reader)
                narrow = self._results[reader] < size and self._element[reader]
                if narrow or self._idle[reader]:
                    pending.append(reader)
                elif self._results[reader] == size:
                    found.append(reader)
        return found

    def _through(self, row: int) -> list[int]:
        """Readers of a row, through changes of layout and type."""
        found: list[int] = []
        pending, seen = [row], {row}
        while pending:
            for reader in self._readers(pending.pop()):
                if reader in seen:
                    continue
                seen.add(reader)
                (pending if self._idle[reader] else found).append(reader)
        return found

    def _readers(self, row: int) -> list[int]:
        return self._rows[self._first[row] : self._first[row + 1]]
