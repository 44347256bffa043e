"""Edit: rows dropped, changed and added, then a Program again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flint.ir.columns import ROW_COLUMNS, compact_tables
from flint.ir.program import Int32s, Int64s, Program, Region

#: The table that a column indexes.
_TABLE_OF = {
    "opcode": "opcodes",
    "dtype": "dtypes",
    "shape": "shapes",
    "name": "strings",
    "scope": "strings",
    "location": "strings",
    "cause": "strings",
    "stream": "streams",
}
#: What a new row without work has, whatever row it is modelled on.
_IDLE: dict[str, Any] = {
    "flops": 0,
    "operand_bytes": 0,
    "comm_bytes": 0,
    "dims": (0, 0, 0, 0),
    "product": 0,
    "collective": 0,
    "group": -1,
    "route": -1,
    "channel": -1,
    "stream": "compute",
    "cause": "",
    "flags": 0,
}


@dataclass(frozen=True)
class _New:
    template: int
    before: tuple[int, int]  # (row, 0) in front of it and its regions; (row, 1) at a region's end
    region: int


class Edit:
    """Changes to a program, collected and applied at once.

    Rows keep their numbers until `apply`; added rows have numbers from `len(program)` on, and may
    be read like others. Dropped rows must not be read. A value that a loop carries leaves the loop
    with either of its rows; a region without rows disappears.
    """

    def __init__(self, program: Program, keep: Iterable[int] | None = None) -> None:
        self.program = program
        self.keep = set(range(len(program)) if keep is None else keep)
        self._new: list[_New] = []
        self._columns: dict[int, dict[str, Any]] = {}
        self._deps: dict[int, list[int]] = {}
        self._read_start: list[int] = program.dep_start.tolist()
        self._read: list[int] = program.deps.tolist()
        self._regions_of: list[int] = program.region.tolist()
        self._carries: dict[int, list[tuple[int, int]]] = {}

    def change(self, row: int, *, deps: Iterable[int] | None = None, **columns: Any) -> None:
        """Set columns of a row: texts, shapes and dtypes as themselves, `alias` as a row."""
        self._columns.setdefault(row, {}).update(columns)
        if deps is not None:
            self._deps[row] = list(deps)

    def deps(self, row: int) -> list[int]:
        """What a row reads now."""
        known = self._deps.get(row)
        if known is not None:
            return known
        return self._read[self._read_start[row] : self._read_start[row + 1]]

    def drop(self, rows: Iterable[int]) -> None:
        """Drop rows."""
        self.keep.difference_update(rows)

    def copy(
        self, template: int, before: int, region: int, deps: Iterable[int], **columns: Any
    ) -> int:
        """Add a row like `template` in front of row `before`; returns its number.

        `region` is that of `before`, or the parent of a region that begins there.
        """
        return self._add(_New(template, (before, 0), region), deps, columns)

    def value(
        self, template: int, before: int, region: int, deps: Iterable[int], **columns: Any
    ) -> int:
        """Like `copy`, but a row without work: its kind is VALUE unless `columns` say otherwise."""
        return self.copy(template, before, region, deps, **{"kind": 1, **_IDLE, **columns})

    def value_at_end(self, template: int, region: int, deps: Iterable[int], **columns: Any) -> int:
        """Like `value`, but as the last row of a region."""
        at = (self.program.regions[region].stop - 1, 1)
        return self._add(_New(template, at, region), deps, {"kind": 1, **_IDLE, **columns})

    def carry(self, region: int, carried: int, produced: int) -> None:
        """Let a loop carry one more value."""
        self._carries.setdefault(region, []).append((carried, produced))

    def apply(self) -> tuple[Program, Mapping[int, int]]:
        """The edited program, and the new number of each row that it has."""
        p = self.program
        order = self._order()
        place = {row: i for i, row in enumerate(order)}
        source = np.array([self._template(row) for row in order], dtype=np.int64)
        columns = {name: getattr(p, name)[source] for name in ROW_COLUMNS}
        tables = self._set_columns(columns, place)
        old_regions = [self._region(row) for row in order]
        regions, number = self._regions(old_regions, place)
        columns["region"] = np.array([number[r] for r in old_regions], dtype=np.int32)
        columns["dep_start"], columns["deps"] = self._links(order, place)
        return compact_tables(replace(p, **columns, **tables, regions=regions)), place

    def _links(self, order: list[int], place: Mapping[int, int]) -> tuple[Int64s, Int32s]:
        """Dependencies of the rows in their new order."""
        start, read = [0], []
        for row in order:
            deps = self.deps(row)
            read += deps if row not in self._deps else sorted(set(deps), key=place.__getitem__)
            start.append(len(read))
        number = np.full(len(self.program) + len(self._new), -1, dtype=np.int32)
        number[order] = np.arange(len(order), dtype=np.int32)
        links = number[np.array(read, dtype=np.int64)]
        assert (links >= 0).all(), "a row reads one that is dropped"
        return np.array(start, dtype=np.int64), links

    def _add(self, new: _New, deps: Iterable[int], columns: dict[str, Any]) -> int:
        row = len(self.program) + len(self._new)
        self._new.append(new)
        self.keep.add(row)
        self.change(row, deps=deps, **{"alias": -1, **columns})
        return row

    def _template(self, row: int) -> int:
        return row if row < len(self.program) else self._new[row - len(self.program)].template

    def _region(self, row: int) -> int:
        n = len(self._regions_of)
        return self._regions_of[row] if row < n else self._new[row - n].region

    def _depth(self, region: int) -> int:
        return 0 if region < 0 else 1 + self._depth(self.program.regions[region].parent)

    def _order(self) -> list[int]:
        """Rows in their new order. At one place, rows of outer regions come before inner ones."""
        n = len(self.program)
        depth = [self._depth(region) for region in range(len(self.program.regions))] + [0]
        keyed: list[tuple[int, int, int, int, int]] = []
        for row in self.keep:
            if row < n:
                keyed.append((row, 0, depth[self._regions_of[row]], n, row))
                continue
            new = self._new[row - n]
            at, end = new.before
            keyed.append((at, end, -depth[new.region] if end else depth[new.region], 0, row))
        return [key[-1] for key in sorted(keyed)]

    def _set_columns(self, columns: dict[str, Any], place: Mapping[int, int]) -> dict[str, Any]:
        """Write the changed entries; returns the tables that grew."""
        p = self.program
        number = np.full(len(p) + 1, -1, dtype=np.int32)  # the last entry answers for -1
        kept = [row for row in place if row < len(p)]
        number[kept] = [place[row] for row in kept]
        columns["alias"] = number[columns["alias"]]
        tables: dict[str, dict[Any, int]] = {}
        for row, changes in self._columns.items():
            at = place.get(row, -1)
            for name, value in changes.items() if at >= 0 else ():
                if name == "alias":
                    value = place.get(value, -1)
                elif name in _TABLE_OF and not isinstance(value, int):
                    table = _TABLE_OF[name]
                    known = tables.setdefault(
                        table, {v: i for i, v in enumerate(getattr(p, table))}
                    )
                    value = known.setdefault(value, len(known))
                columns[name][at] = value
        return {name: tuple(table) for name, table in tables.items()}

    def _regions(
        self, rows: list[int], place: Mapping[int, int]
    ) -> tuple[tuple[Region, ...], dict[int, int]]:
        """Regions that still hold rows, and the new number of each old one."""
        spans: dict[int, list[int]] = {}
        for at, inner in enumerate(rows):
            while inner >= 0:
                spans.setdefault(inner, [at, at])[1] = at
                inner = self.program.regions[inner].parent
        left: list[Region] = []
        number = {-1: -1}
        for i, region in enumerate(self.program.regions):
            if i not in spans:
                continue
            number[i] = len(left)
            pairs = [*region.carries, *self._carries.get(i, ())]
            carries = tuple((place[a], place[b]) for a, b in pairs if a in place and b in place)
            first, last = spans[i]
            left.append(
                replace(
                    region,
                    start=first,
                    stop=last + 1,
                    parent=number[region.parent],
                    carries=carries,
                )
            )
        return tuple(left), number


def spec(dtype: str, shape: tuple[int, ...], num_bytes: int) -> dict[str, Any]:
    """Columns of a value's type."""
    return {"dtype": dtype, "shape": shape, "result_bytes": num_bytes}
