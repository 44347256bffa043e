"""Editor: rows of a Program changed, removed, added, merged and moved, then a Program again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flint.ir.columns import (
    ROW_COLUMNS,
    TABLE_OF,
    Edges,
    Mask,
    compact_tables,
    edges,
    forwarded,
    rewired,
    use_counts,
)
from flint.ir.program import COLUMN_TYPES, Int64s, Kind, Program, Region, RegionKind

#: What a row without work has, whatever row it is modeled on.
IDLE: dict[str, Any] = {
    "kind": Kind.VALUE,
    "flops": 0,
    "operand_bytes": 0,
    "comm_bytes": 0,
    "dims": (0, 0, 0, 0),
    "product": "",
    "mask": 0,
    "collective": 0,
    "group": -1,
    "route": -1,
    "channel": -1,
    "stream": "compute",
    "cause": "",
    "flags": 0,
    "cycles": 0,
    "measured_ns": 0,
}
_NAMELESS: dict[str, Any] = {
    **dict.fromkeys(("dtype", "name", "scope", "location"), ""),
    "shape": (),
    "result_bytes": 0,
    "phase": 0,
    "compiled": 0,
    "launcher": 0,
}


class Edited(NamedTuple):
    """The new program, and for each row of the editor its number there (-1: it is gone)."""

    program: Program
    place: Int64s


class _New(NamedTuple):
    template: int
    at: int
    end: bool  # after row `at` rather than before it
    region: int


class Editor:
    """Changes to a program, collected and applied at once by `build`.

    Rows keep their numbers until then; added rows have numbers from `len(program)` on and may be
    read like others. Columns are set to values: texts, shapes and groups as themselves (a whole number
    is an index into the table), `alias` to a row. What is left must not read what is gone. A value
    that a loop carries leaves the loop with either of its rows; a region without rows disappears.
    """

    def __init__(self, program: Program, keep: Iterable[int] | None = None) -> None:
        """All rows stay, or those of `keep`."""
        self.program = program
        self._stays = np.full(len(program), keep is None, dtype=np.bool_)
        if keep is not None:
            self._stays[keep if isinstance(keep, np.ndarray) else list(keep)] = True
        self._new: list[_New] = []
        self._set_rows: set[int] = set()
        self._gone_again: set[int] = set()  # rows that were added and removed
        self._values: dict[str, tuple[list[int], list[Any]]] = {}
        self._tables: dict[str, dict[Any, int]] = {}
        self._entries: dict[str, list[Any]] = {}
        self._deps: dict[int, list[int]] = {}
        self._source = np.arange(len(program))
        self._stand: Int64s | None = None
        self._rank: Int64s | None = None
        self._carries: dict[int, list[tuple[int, int]]] = {}
        self._handed_on: dict[tuple[int, int], int] = {}
        self._loops: list[Region] = []

    # what there is now ----------------------------------------------------------------------------

    @cached_property
    def _read(self) -> tuple[list[int], list[int]]:
        return self.program.dep_start.tolist(), self.program.deps.tolist()

    @cached_property
    def _uses(self) -> list[int]:
        """For each row, how many rows read it; a loop that carries it on counts as one more."""
        counts: list[int] = use_counts(self.program).tolist()
        return counts

    def reads(self, row: int) -> list[int]:
        """What a row reads now."""
        known = self._deps.get(row)
        if known is not None:
            return known
        start, deps = self._read
        return deps[start[row] : start[row + 1]]

    def uses(self, row: int) -> int:
        """How many rows read a row of the program now; a loop that carries it on is one more."""
        return self._uses[row]

    def like(self, row: int) -> int:
        """The row of the program whose columns a row has now."""
        return int(self._source[row])

    def is_new(self, row: int) -> bool:
        """Whether columns of a row are set: it is no longer what it was, nor what another was."""
        return row in self._set_rows

    def stays(self, row: int) -> bool:
        """Whether a row of the program is not removed."""
        return bool(self._stays[row])

    def rows(self) -> Int64s:
        """The rows of the program that are not removed."""
        return np.flatnonzero(self._stays)

    # changes --------------------------------------------------------------------------------------

    def change(self, row: int, *, deps: Iterable[int] | None = None, **columns: Any) -> None:
        """Set columns of a row, and what it reads."""
        if columns:
            self._set_rows.add(row)
        for name, value in columns.items():
            rows, values = self._values.setdefault(name, ([], []))
            rows.append(row)
            values.append(self.index(name, value))
        if deps is not None:
            self._set_reads(row, list(dict.fromkeys(deps)))

    def set(self, rows: NDArray[Any], **columns: Any) -> None:
        """Set columns of many rows: to one value, or to one for each."""
        for name, value in columns.items():
            known, values = self._values.setdefault(name, ([], []))
            known.extend(rows.tolist())
            if isinstance(value, np.ndarray):
                values.extend(value.tolist())
            else:
                values.extend([self.index(name, value)] * len(rows))

    def remove(self, rows: Iterable[int]) -> None:
        """Remove rows."""
        for row in rows:
            self._set_reads(row, [])
            if row < len(self.program):
                self._stays[row] = False
            else:
                self._gone_again.add(row)

    def swap(self, one: int, other: int) -> None:
        """Exchange the columns of two rows of the program; each reads and is read as before."""
        self._source[[one, other]] = self._source[[other, one]]

    def become(self, row: int, other: int) -> None:
        """Give a row of the program all columns that `other` has."""
        self._source[row] = self._source[other]

    def copy(
        self, template: int, before: int, region: int, deps: Iterable[int], **columns: Any
    ) -> int:
        """Add a row like `template` in front of row `before`; returns its number.

        `region` is that of `before`, the parent of a region that begins there, or a region that
        ends there: then the row is its last. Rows of one place keep their order.
        """
        inside = before == len(self.program) or self._is_around(region, before)
        at = (before, False) if inside and not self._ends(region, before) else (before - 1, True)
        return self._add(_New(template, *at, region), deps, columns)

    def add(self, before: int, region: int, deps: Iterable[int], **columns: Any) -> int:
        """Add a row with these columns, and with those of a row without work where not given."""
        return self.copy(0, before, region, deps, **{**IDLE, **_NAMELESS, **columns})

    def value(
        self, template: int, before: int, region: int, deps: Iterable[int], **columns: Any
    ) -> int:
        """Like `copy`, but a row without work: its kind is VALUE unless `columns` say otherwise."""
        return self.copy(template, before, region, deps, **{**IDLE, **columns})

    def value_at_end(self, template: int, region: int, deps: Iterable[int], **columns: Any) -> int:
        """Like `value`, but as the last row of a region."""
        stop = self.program.regions[region].stop
        return self.value(template, stop, region, deps, **columns)

    def loop(self, parent: int, trip_count: int, name: str = "") -> int:
        """Begin a loop for rows that are added; returns its region."""
        self._loops.append(Region(RegionKind.LOOP, 0, 0, trip_count, parent, name))
        return len(self.program.regions) + len(self._loops) - 1

    def carry(self, region: int, carried: int, produced: int) -> None:
        """Let a loop carry one more value."""
        self._carries.setdefault(region, []).append((carried, produced))

    def hand_on(self, region: int, carried: int, produced: int) -> None:
        """Let a loop hand another row on to its next iteration than it did."""
        self._handed_on[region, carried] = produced

    def merge(self, into: Int64s, sums: Sequence[str] = ()) -> None:
        """Make row `into[i]` stand for each row i of the program: it reads and is read for it.

        The others go. Columns of `sums` add up; cycles and times of what merges are not known. What
        shared storage with a row that goes shares it with none.
        """
        self._stand = into
        self._stays &= into == np.arange(len(into))
        for name in sums:
            total = np.zeros_like(getattr(self.program, name))
            np.add.at(total, into, getattr(self.program, name))
            rows = np.flatnonzero(self._stays)
            self.set(rows, **{name: total[rows]})
        known = [c for c in ("cycles", "measured_ns") if getattr(self.program, c).any()]
        if known:
            several = np.bincount(into, minlength=len(into)) > 1
            self.set(np.flatnonzero(several & self._stays), **dict.fromkeys(known, 0))

    def order(self, rows: Int64s) -> None:
        """Put the rows of the program in this order. Those of a region stay together."""
        self._rank = np.empty(len(rows), dtype=np.int64)
        self._rank[rows] = np.arange(len(rows))

    # the result -----------------------------------------------------------------------------------

    def build(self) -> Edited:
        """Apply everything."""
        p, order = self.program, self._order()
        place = np.full(len(p) + len(self._new) + 1, -1, dtype=np.int64)  # the last: for -1
        place[order] = np.arange(len(order))
        templates = np.array([new.template for new in self._new], dtype=np.int64)
        source = np.append(self._source, templates)[order]
        columns: dict[str, Any] = {name: getattr(p, name)[source] for name in ROW_COLUMNS}
        alias = np.append(np.where(self._moved, -1, p.alias), np.full(len(self._new), -1))
        columns["alias"] = place[alias[order]].astype(np.int32)
        self._write(columns, place)
        columns["region"], regions = self._regions(order, place)
        columns |= {name: tuple(entries) for name, entries in self._entries.items()}
        none = np.zeros(len(order) + 1, dtype=np.int64)
        short = replace(p, **columns, regions=regions, dep_start=none, deps=np.zeros(0, np.int32))
        owner, target = self._links(place)
        return Edited(compact_tables(rewired(short, (owner, target))), place[:-1])

    @property
    def _moved(self) -> NDArray[np.bool_]:
        return np.asarray(self._source != np.arange(len(self.program)))

    def _order(self) -> Int64s:
        """Rows in their new order. At one place, rows of outer regions come before inner ones."""
        rows = self.rows()
        at = rows if self._rank is None else self._rank[rows]
        if not self._new:
            return rows if self._rank is None else rows[np.argsort(at, kind="stable")]
        assert self._rank is None, "rows are added to a program that is being reordered"
        depth = [self._depth(r) for r in range(len(self.program.regions))]
        depths = np.array([*depth, 0], dtype=np.int64)  # the last: for -1
        new = [
            (n.at, n.end, (-1 if n.end else 1) * depths[self._old(n.region)], 0, number)
            for number, n in enumerate(self._new, len(self.program))
            if number not in self._gone_again
        ]
        zeros, ones = np.zeros_like(rows), np.ones_like(rows)
        base = np.stack([at, zeros, depths[self.program.region[rows]], ones, rows])
        keys = np.concatenate([base, np.array(new, dtype=np.int64).reshape(-1, 5).T], axis=1)
        return np.asarray(keys[4][np.lexsort(keys[::-1])])

    def _links(self, place: Int64s) -> Edges:
        """Dependencies, between new numbers."""
        p = self.program
        owner, target = edges(p)
        stand = np.arange(len(p) + len(self._new))
        if self._stand is not None:
            stand[: len(p)] = self._stand
        set_here = np.zeros(len(p), dtype=np.bool_)
        set_here[[row for row in self._deps if row < len(p)]] = True
        stays = ~set_here[owner]
        reads = [(row, d) for row, deps in self._deps.items() for d in deps]
        fresh = np.array(reads, dtype=np.int64).reshape(-1, 2)
        owner = stand[np.append(owner[stays], fresh[:, 0])]
        target = stand[np.append(target[stays], fresh[:, 1])]
        used = (owner != target) & (place[owner] >= 0)
        owner, target = place[owner[used]], place[target[used]]
        assert (target >= 0).all(), "a row reads one that is removed"
        return owner, target

    def _write(self, columns: dict[str, Any], place: Int64s) -> None:
        for name, (rows, values) in self._values.items():
            at = place[np.array(rows, dtype=np.int64)]
            there = at >= 0
            written = np.array(values, dtype=np.int64)[there]
            if name == "alias":
                written = place[written]
            columns[name][at[there]] = written.astype(COLUMN_TYPES[name])

    def index(self, name: str, value: Any) -> Any:
        """A value as it is in a column: its place in a table, where it is put if new, or itself."""
        table = TABLE_OF.get(name)
        if table is None or isinstance(value, int | np.integer):
            return value
        known = self._tables.get(table)
        if known is None:
            known = self._tables[table] = {}
            self._entries[table] = list(getattr(self.program, table))
            for number, entry in enumerate(self._entries[table]):
                known.setdefault(entry, number)  # a file may have one twice
        if value not in known:
            known[value] = len(self._entries[table])
            self._entries[table].append(value)
        return known[value]

    def _set_reads(self, row: int, deps: list[int]) -> None:
        counts = self.__dict__.get("_uses")
        if counts is not None:
            counts.extend([0] * (len(self.program) + len(self._new) - len(counts)))
            for read in self.reads(row) if row < len(self.program) or row in self._deps else ():
                counts[read] -= 1
            for read in deps:
                counts[read] += 1
        self._deps[row] = deps

    def _add(self, new: _New, deps: Iterable[int], columns: dict[str, Any]) -> int:
        row = len(self.program) + len(self._new)
        self._new.append(new)
        self.change(row, deps=deps, **columns)
        return row

    # regions --------------------------------------------------------------------------------------

    @cached_property
    def _region_of(self) -> list[int]:
        return [*self.program.region.tolist(), -1]

    def _old(self, region: int) -> int:
        """The region itself, or the one of the program that a loop which is added is in."""
        while region >= len(self.program.regions):
            region = self._loops[region - len(self.program.regions)].parent
        return region

    def _depth(self, region: int) -> int:
        depth = 0
        while region >= 0:
            region, depth = self.program.regions[region].parent, depth + 1
        return depth

    def _is_around(self, region: int, row: int) -> bool:
        """Whether a region (-1: the program) is the row's or around it."""
        region, inner = self._old(region), self._region_of[row]
        while inner >= 0 and inner != region:
            inner = self.program.regions[inner].parent
        return inner == region

    def _ends(self, region: int, row: int) -> bool:
        region = self._old(region)
        return region >= 0 and self.program.regions[region].stop == row

    def _regions(self, order: Int64s, place: Int64s) -> tuple[Any, tuple[Region, ...]]:
        """The region of each row, and the regions that still hold rows."""
        regions = [*self.program.regions, *self._loops]
        added = np.array([new.region for new in self._new], dtype=np.int64)
        inner = np.append(self.program.region.astype(np.int64), added)[order]
        parents = np.array([r.parent for r in regions], dtype=np.int64)
        spans = list(_spans(inner, parents))
        left = [i for i, (first, last) in enumerate(spans) if first <= last]
        if self._loops:  # regions are numbered as they begin, outer ones first
            left.sort(key=lambda i: (spans[i][0], -spans[i][1], i))
        number = np.full(len(regions) + 1, -1, dtype=np.int32)
        number[left] = np.arange(len(left))
        found = tuple(
            replace(
                regions[i],
                start=spans[i][0],
                stop=spans[i][1] + 1,
                parent=int(number[parents[i]]),
                carries=tuple(self._carried(i, regions[i], place)),
            )
            for i in left
        )
        return number[inner], found

    def _carried(self, number: int, region: Region, place: Int64s) -> Iterator[tuple[int, int]]:
        stand = self._stand
        for carried, before in (*region.carries, *self._carries.get(number, ())):
            produced = self._handed_on.get((number, carried), before)
            made = produced if stand is None or produced >= len(stand) else stand[produced]
            if place[carried] >= 0 and place[made] >= 0:
                yield int(place[carried]), int(place[made])


def _spans(inner: Int64s, parents: Int64s) -> Iterator[tuple[int, int]]:
    """First and last row of each region; the first is larger where it has none."""
    count = len(parents)
    first = np.full(count + 1, len(inner), dtype=np.int64)
    last = np.full(count + 1, -1, dtype=np.int64)
    np.minimum.at(first, inner, np.arange(len(inner)))
    np.maximum.at(last, inner, np.arange(len(inner)))
    for region in reversed(range(count)):
        parent = parents[region]
        first[parent] = min(first[parent], first[region])
        last[parent] = max(last[parent], last[region])
    return zip(first[:-1].tolist(), last[:-1].tolist(), strict=True)


def kept(program: Program, keep: Mask) -> Program:
    """The rows of `keep`, with only the regions and table entries that they need.

    No kept row may read a dropped one. A carried value that is dropped leaves its loop; one that
    stays must keep the row that produces it. An empty region disappears.
    """
    carries = (pair for region in program.regions for pair in region.carries)
    assert all(keep[made] for row, made in carries if keep[row]), "a loop lost a yielded row"
    return Editor(program, np.flatnonzero(keep)).build().program


def passed_over(program: Program, gone: Mask) -> Program:
    """The program without `gone` rows, whose readers read what they read, through any chain."""
    return kept(forwarded(program, gone), ~gone)
