"""Columns of a program as expressions: which of the different ones each row has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flint.errors import FlintError
from flint.ir.mesh import Mesh
from flint.ir.program import MOST_INT64, Int64s, Program
from flint.tools.share.sizes.expression import Expression, Factor
from flint.tools.share.sizes.rows import Rows
from flint.tools.share.sizes.symbols import Symbols, Term
from flint.tools.share.sizes.work import SizedWork, Sum

#: Columns that follow from sizes.
NUMBERS = ("result_bytes", "operand_bytes", "flops", "comm_bytes")


class SizeTable:
    """Different expressions, each once. Numbers of all of them are computed at once."""

    def __init__(self, symbols: Symbols, numbers: dict[int, int]) -> None:
        self._symbols = symbols
        self._numbers = numbers
        self._kept: dict[Term, Expression] = {}
        self._sums: dict[Sum, int] = {}
        self._index: dict[Expression, int] = {}
        self.entries: list[Expression] = []

    def term(self, term: Term) -> int:
        """The entry of a term."""
        return self.sum((term,))

    def sum(self, terms: Sum) -> int:
        """The entry of a sum of terms."""
        key = tuple(map(self._symbols.expand, terms))
        if key not in self._sums:
            parts = [self._symbols.expression(t, self._numbers, self._kept) for t in key]
            self._sums[key] = self._entry(parts[0] if len(parts) == 1 else Expression.sum(parts))
        return self._sums[key]

    def _entry(self, expression: Expression) -> int:
        if expression not in self._index:
            self._index[expression] = len(self.entries)
            self.entries.append(expression)
        return self._index[expression]

    def values(self, of: Mapping[Factor, int]) -> list[int]:
        """What every entry is, exactly."""
        return [e.value(of) for e in self.entries]


@dataclass(frozen=True, eq=False)
class Columns:
    """A program whose sizes are entries of a table.

    `shapes` are its different shapes as entries, `shape` which of them each row has; `numbers` are
    entries of columns by name, `dims` those of the four dims, `trips` those of regions.
    """

    program: Program
    shapes: tuple[tuple[int, ...], ...]
    shape: Int64s
    numbers: Mapping[str, Int64s]
    dims: Int64s
    trips: tuple[int, ...]

    @classmethod
    def of(cls, rows: Rows, works: Iterable[SizedWork], table: SizeTable) -> Columns:
        """Columns of rows whose numbers come about as `works` say."""
        shapes: dict[tuple[int, ...], int] = {}
        shape = [shapes.setdefault(tuple(map(table.term, dims)), len(shapes)) for dims in rows.dims]
        found: dict[str, list[int]] = {name: [] for name in NUMBERS}
        dims_found = []
        for work in works:
            for name in NUMBERS:
                found[name].append(table.sum(getattr(work, name)))
            dims_found.append([table.sum(d) for d in work.dims])
        return cls(
            rows.program,
            tuple(shapes),
            np.array(shape, dtype=np.int64),
            {name: np.array(entries, dtype=np.int64) for name, entries in found.items()},
            np.array(dims_found, dtype=np.int64).reshape(-1, 4),
            tuple(map(table.term, rows.trips)),
        )

    def resized(self, values: list[int], mesh: Mesh) -> Program:
        """The program for these values of entries. Raises FlintError FL905 for what is too large."""
        if max(values, default=0) > MOST_INT64:
            raise FlintError("FL905", "sizes beyond what a program can hold: give smaller ones")
        entries = np.array(values, dtype=np.int64)
        p = self.program
        regions = tuple(
            replace(r, trip_count=values[t]) for r, t in zip(p.regions, self.trips, strict=True)
        )
        shape, shapes = self._shapes(values)
        columns: dict[str, Any] = {name: entries[c] for name, c in self.numbers.items()}
        columns |= {"dims": entries[self.dims], "shape": shape, "shapes": shapes}
        return replace(p, mesh=mesh, regions=regions, **columns)

    def _shapes(self, values: list[int]) -> tuple[np.ndarray, tuple[tuple[int, ...], ...]]:
        """The table of shapes in the order of the old one, without entries that no row uses.

        Where nothing changed it is the old table.
        """
        p = self.program
        new = [tuple(values[e] for e in entries) for entries in self.shapes]
        first = np.full(len(new), -1, dtype=np.int64)
        first[self.shape[::-1]] = np.arange(len(p))[::-1]
        old = p.shape[first].astype(np.int64)
        if all(p.shapes[o] == n for o, n in zip(old.tolist(), new, strict=True)):
            return p.shape, p.shapes
        order = sorted(range(len(new)), key=lambda i: (old[i], first[i]))
        table: dict[tuple[int, ...], int] = {}
        for i in order:
            table.setdefault(new[i], len(table))
        number = np.array([table[shape] for shape in new], dtype=np.int32)
        return number[self.shape], tuple(table)
