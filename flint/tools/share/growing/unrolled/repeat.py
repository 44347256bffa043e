"""Layers that are rows of their own, more or fewer of them.

A row of a layer reads rows of its own layer, of the layer before or after, and rows outside all layers.
Where that is the same for two layers that follow each other, copies of one go between it and the next as
often as wanted, or layers between two alike ones go. Rows that read all layers (the sum of
all gradients, what the step returns) read the new ones too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from flint.errors import FlintError
from flint.ir.columns import ROW_COLUMNS, compact_tables, rewired
from flint.ir.program import COLUMN_TYPES, Int64s, Program, Region
from flint.tools.share.growing.unrolled.alignment import (
    AlignedLayers,
    PlacedRow,
    aligned,
    layers_of,
    segments_of,
)

# Numbers of layers in names and scopes: `layers.3.wq` of layer 3 is `layers.7.wq` of layer 7.

_NUMBER = re.compile(r"(\d+)")


@lru_cache(maxsize=1 << 16)
def steps_of(before: str, one: str, after: str) -> tuple[int, ...]:
    """How much each number of a text changes from a layer to the next; empty if no number counts layers.

    The three texts are of layers that follow each other. Empty as well where they differ in anything but
    numbers, or where a number does not change evenly.
    """
    parts = [_NUMBER.split(text) for text in (before, one, after)]
    if any(len(p) != len(parts[1]) or p[::2] != parts[1][::2] for p in parts):
        return ()
    rows = zip(*(p[1::2] for p in parts), strict=True)
    steps = [(int(b) - int(a), int(c) - int(b)) for a, b, c in rows]
    if any(first != second for first, second in steps) or not any(s for s, _ in steps):
        return ()
    return tuple(first for first, _ in steps)


@lru_cache(maxsize=1 << 16)
def moved(text: str, steps: tuple[int, ...], layers: int) -> str:
    """The text as it is so many layers later; unchanged where its numbers are not those that `steps` are of."""
    parts = _NUMBER.split(text)
    if not layers or not steps or len(parts) != 2 * len(steps) + 1:
        return text
    numbers = [int(n) + step * layers for n, step in zip(parts[1::2], steps, strict=True)]
    if min(numbers) < 0:
        return text
    parts[1::2] = map(str, numbers)
    return "".join(parts)


# Where layers may be put in, or taken out: between layers that read the same of their neighbors.


def cut_of(layers: AlignedLayers, more: int) -> int:
    """The layer after which layers come, or go: one that is like its neighbors. The middle is tried first.

    Layers come as copies of it, so it has to read what the one before or after it reads. Layers go between
    two that are alike.
    """
    codes, common = _codes(layers), layers.common
    last = common.stop - 2 if more > 0 else common.stop - 2 + more
    choices = range(common.start + (more > 0), last + 1)
    for m in sorted(choices, key=lambda m: abs(2 * m - _twice_the_middle(common))):
        ends = ((m - 1, m), (m, m + 1)) if more > 0 else ((m, m + 1, m - more, m - more + 1),)
        alike = [any(_are_alike(layers, p, codes, e) for e in ends) for p in layers.placed]
        if all(alike) and _crossings_fit(layers, m, max(-more, 0)):
            return m
    raise not_alike(f"no two layers of {len(common)} read the same from their neighbors")


def _twice_the_middle(common: range) -> int:
    return common.start + common.stop - 1


def _codes(layers: AlignedLayers) -> Int64s:
    """For each dependency, what is read as seen from the layer: a place and how many layers away, or a row.

    Numbers of rows outside layers are negative.
    """
    p = layers.program
    owner, read = p.dep_owner.astype(np.int64), p.deps.astype(np.int64)
    return _coded(layers, owner, read)


def _coded(layers: AlignedLayers, owner: Int64s, read: Int64s) -> Int64s:
    rows = len(layers.program) + 1
    starts = np.array([q.segment.start for q in layers.placed], dtype=np.int64)
    number = layers.segment[read]
    place = starts[number] + layers.offset[read]
    away = layers.layer[read] - layers.layer[owner]
    inside = (number >= 0) & (layers.segment[owner] >= 0)
    return np.where(inside, (away + rows) * rows + place, -1 - read)


def _are_alike(
    layers: AlignedLayers, placed: PlacedRow, codes: Int64s, which: tuple[int, ...]
) -> bool:
    """Whether rows of these layers read the same, as seen from the layer, and share the same storage."""
    told = [_told(layers, placed, codes, layer) for layer in which]
    return all(len(t) == len(told[0]) and (t == told[0]).all() for t in told[1:])


def _told(layers: AlignedLayers, placed: PlacedRow, codes: Int64s, layer: int) -> Int64s:
    """All that rows of a block read, and the storage that they share, in one row of numbers."""
    p = layers.program
    start = placed.segment.start + placed.block(layer) * placed.segment.period
    rows = np.arange(start, start + placed.segment.period)
    links = slice(int(p.dep_start[start]), int(p.dep_start[rows[-1] + 1]))
    owner = p.dep_owner[links] - start
    order = np.lexsort((codes[links], owner))
    alias = p.alias[rows].astype(np.int64)
    shared = np.where(alias >= 0, _coded(layers, rows, np.maximum(alias, 0)), -len(p) - 2)
    return np.concatenate([owner, codes[links][order], shared])


def _crossings_fit(layers: AlignedLayers, cut: int, removed: int) -> bool:
    """Whether all that crosses the cut goes from a layer to the next, or is of rows that read all layers."""
    p = layers.program
    owner, read = p.dep_owner.astype(np.int64), p.deps.astype(np.int64)
    inside = (layers.segment[owner] >= 0) & (layers.segment[read] >= 0)
    one, other = layers.layer[owner], layers.layer[read]
    low, high = np.minimum(one, other), np.maximum(one, other)
    crosses = inside & (low <= cut) & (high > cut + removed)
    if (high - low)[crosses].max(initial=0) > 1:
        return False
    return all(
        len({layer in found for layer in range(cut, cut + removed + 2)}) == 1
        for found in read_from_outside(layers).values()
    )


def read_from_outside(layers: AlignedLayers) -> dict[tuple[int, int, int], set[int]]:
    """Layers that rows outside layers read, by row, segment and place in the block."""
    p = layers.program
    links = np.flatnonzero((layers.segment[p.dep_owner] < 0) & (layers.segment[p.deps] >= 0))
    found: dict[tuple[int, int, int], set[int]] = {}
    for owner, read in zip(p.dep_owner[links].tolist(), p.deps[links].tolist(), strict=True):
        key = owner, int(layers.segment[read]), int(layers.offset[read])
        found.setdefault(key, set()).add(int(layers.layer[read]))
    return found


def not_alike(why: str) -> FlintError:
    """The error for layers that cannot be told from each other, or are of several kinds."""
    return FlintError(
        "FL926",
        f"the number of layers cannot be changed: {why}",
        help="capture the model with its layers as a loop, or with the desired number",
    )


#: Columns of texts that may have the number of a layer.
_TEXTS = ("name", "scope", "location", "cause")


def unrolled_layers(program: Program) -> int:
    """How many layers a program has as rows of their own; 1 where none repeat three times or more."""
    segments = segments_of(program)
    return layers_of(program, segments)[0] if segments else 1


def with_layers(program: Program, layers: int) -> Program:
    """The program with so many layers, each as the others are.

    Raises FlintError FL926 where layers are not alike, and FL922 for a number that whole blocks do not
    make (of layers that alternate) or that is less than two.
    """
    segments = segments_of(program)
    if not segments:
        raise not_alike("no rows repeat as layers do")
    now, each = layers_of(program, segments)
    more, left = divmod(layers - now, each)
    if left or layers < 2:
        raise FlintError(
            "FL922",
            f"{layers} layers are not possible: the program has {now}"
            + (f", of {each} kinds in turn" if each > 1 else ""),
            help=f"give a multiple of {each}, at least 2" if each > 1 else "give at least 2",
        )
    found = aligned(program, segments)
    if not more:
        return program
    return _Repeated(found, cut_of(found, more), more).program()


@dataclass(frozen=True)
class _Rows:
    """Rows of the new program: which row each is like, and its layer there."""

    source: Int64s
    layer: Int64s


class _Repeated:
    """A program with `more` layers after layer `cut` (fewer: those after it go)."""

    def __init__(self, layers: AlignedLayers, cut: int, more: int) -> None:
        self.layers, self.cut, self.more = layers, cut, more
        self.rows = self._rows()
        p, rows = layers.program, self.rows
        self.outside = np.full(len(p), -1, dtype=np.int64)
        free = layers.segment[rows.source] < 0
        self.outside[rows.source[free]] = np.flatnonzero(free)
        self.starts = [self._starts(i) for i in range(len(layers.placed))]

    def _rows(self) -> _Rows:
        """Rows in their new order. Blocks of one segment follow each other, in its direction."""
        sources, layer, at = [], [], 0
        program, old = self.layers.program, self.layers.layer
        for placed in self.layers.placed:
            s = placed.segment
            sources.append(np.arange(at, s.start))
            layer.append(np.zeros(s.start - at, dtype=np.int64))
            for new, like in self._blocks(placed.layers)[:: placed.step]:
                start = s.start + placed.block(like) * s.period
                sources.append(np.arange(start, start + s.period))
                layer.append(np.full(s.period, new, dtype=np.int64))
            at = s.stop
        sources.append(np.arange(at, len(program)))
        layer.append(old[at:])
        return _Rows(np.concatenate(sources), np.concatenate(layer))

    def _blocks(self, layers: range) -> list[tuple[int, int]]:
        """New layers of a segment, ascending, and the old layer that each is like."""
        cut, more = self.cut, self.more
        kept = [(n, n) for n in layers if n <= cut]
        new = [(cut + i, cut) for i in range(1, more + 1)]
        later = [(n + more, n) for n in layers if n > cut + max(-more, 0)]
        return kept + new + later

    def _starts(self, number: int) -> dict[int, int]:
        """The first row of each block of a segment in the new program, by layer."""
        rows, placed = self.rows, self.layers.placed[number]
        first = (self.layers.segment[rows.source] == number) & (
            self.layers.offset[rows.source] == 0
        )
        at = np.flatnonzero(first)
        found = dict(zip(rows.layer[at].tolist(), at.tolist(), strict=True))
        assert (
            len(found) * placed.segment.period == (self.layers.segment[rows.source] == number).sum()
        )
        return found

    def program(self) -> Program:
        """The new program."""
        p, rows = self.layers.program, self.rows
        columns: dict[str, Any] = {name: getattr(p, name)[rows.source] for name in ROW_COLUMNS}
        owner, target = self._links()
        columns["alias"] = self._aliases()
        none = np.zeros(len(rows.source) + 1, dtype=np.int64)
        short = replace(
            p, **columns, regions=self._regions(), dep_start=none, deps=np.zeros(0, np.int32)
        )
        return compact_tables(self._named(rewired(short, (owner, target))))

    def _places(self, owner: Int64s, read: Int64s) -> Int64s:
        """New numbers of old rows `read` as new rows `owner` read them."""
        layers, rows = self.layers, self.rows
        found = self.outside[read].copy()
        like = rows.source[owner]
        for number in range(len(layers.placed)):
            mine = np.flatnonzero(layers.segment[read] == number)
            inside = layers.segment[like[mine]] >= 0
            away = layers.layer[read[mine]] - layers.layer[like[mine]]
            seen = np.where(
                inside, rows.layer[owner[mine]] + away, self._renumbered(layers.layer[read[mine]])
            )
            starts = [self.starts[number][n] for n in seen.tolist()]
            found[mine] = np.array(starts, dtype=np.int64) + layers.offset[read[mine]]
        return found

    def _renumbered(self, layer: Int64s) -> Int64s:
        return np.where(layer > self.cut, layer + self.more, layer)

    def _links(self) -> tuple[Int64s, Int64s]:
        """Dependencies between new numbers; rows outside that read all layers read new ones as well."""
        p, layers = self.layers.program, self.layers
        counts = np.diff(p.dep_start)[self.rows.source]
        owner = np.repeat(np.arange(len(counts)), counts)
        begin = np.repeat(p.dep_start[self.rows.source] - (np.cumsum(counts) - counts), counts)
        read = p.deps[begin + np.arange(len(begin))].astype(np.int64)
        gone = (layers.segment[read] >= 0) & (layers.segment[self.rows.source[owner]] < 0)
        gone &= (layers.layer[read] > self.cut) & (layers.layer[read] <= self.cut - self.more)
        owner, read = owner[~gone], read[~gone]
        target = self._places(owner, read)
        added = [
            (self.outside[row], self.starts[number][n] + offset)
            for (row, number, offset), found in read_from_outside(layers).items()
            if {self.cut, self.cut + 1} <= found
            for n in range(self.cut + 1, self.cut + 1 + self.more)
        ]
        new = np.array(added, dtype=np.int64).reshape(-1, 2)
        return np.append(owner, new[:, 0]), np.append(target, new[:, 1])

    def _aliases(self) -> Int64s:
        alias = self.layers.program.alias[self.rows.source].astype(np.int64)
        has = np.flatnonzero(alias >= 0)
        alias[has] = self._places(has, alias[has])
        return alias.astype(COLUMN_TYPES["alias"])

    def _regions(self) -> tuple[Region, ...]:
        p, layers = self.layers.program, self.layers
        first = np.full(
            len(p), -1, dtype=np.int64
        )  # where each old row is, outside or in its block
        for number, placed in enumerate(layers.placed):
            s = placed.segment
            ends = {s.start: 0, s.stop - 1: -1}
            blocks = sorted(self.starts[number].values())
            for row, which in ends.items():
                first[row] = blocks[which] + (s.period - 1 if which else 0)
        first = np.where(layers.segment < 0, self.outside, first)
        found = []
        for region in p.regions:
            ends_known = first[region.start] >= 0 and first[region.stop - 1] >= 0
            if not ends_known or any(first[a] < 0 or first[b] < 0 for a, b in region.carries):
                raise not_alike("loops begin or end within its layers")
            carries = tuple((int(first[a]), int(first[b])) for a, b in region.carries)
            found.append(
                replace(
                    region,
                    start=int(first[region.start]),
                    stop=int(first[region.stop - 1]) + 1,
                    carries=carries,
                )
            )
        return tuple(found)

    def _named(self, program: Program) -> Program:
        """Numbers of layers in texts go on."""
        p, rows = self.layers.program, self.rows
        table = {text: i for i, text in reversed(list(enumerate(p.strings)))}
        by = np.where(
            self.layers.segment[rows.source] >= 0, rows.layer - self.layers.layer[rows.source], 0
        )
        columns: dict[str, Any] = {}
        for name in _TEXTS:
            column = getattr(p, name)
            new = column[rows.source].copy()
            for at in np.flatnonzero(by).tolist():
                steps = self._steps(column, int(rows.source[at]))
                text = moved(p.strings[new[at]], steps, int(by[at]))
                new[at] = table.setdefault(text, len(table))
            for row, steps in self._beyond(column):
                text = moved(p.strings[column[row]], steps, self.more)
                new[self.outside[row]] = table.setdefault(text, len(table))
            columns[name] = new
        strings = [""] * len(table)
        for text, number in table.items():
            strings[number] = text
        return replace(program, **columns, strings=tuple(strings))

    def _beyond(self, column: Any) -> list[tuple[int, tuple[int, ...]]]:
        """Rows of the layer after the last of a segment, of which not all rows are like in others."""
        layers, strings, found = self.layers, self.layers.program.strings, []
        for placed in layers.placed:
            s = placed.segment
            after = placed.step > 0
            rows = range(s.stop, s.stop + s.period) if after else range(s.start - s.period, s.start)
            for row in rows:
                like = row - s.period * placed.step
                if not 0 <= row < len(layers.program) or layers.segment[row] >= 0:
                    continue
                steps = self._steps(column, like)
                if steps and moved(strings[column[like]], steps, 1) == strings[column[row]]:
                    found.append((row, steps))
        return found

    def _steps(self, column: Any, row: int) -> tuple[int, ...]:
        """How numbers of a text change from layer to layer, as three layers around the cut have it."""
        layers, number = self.layers, int(self.layers.segment[row])
        placed, middle = layers.placed[number], max(self.cut, layers.common.start + 1)
        texts = []
        for layer in (middle - 1, middle, middle + 1):
            start = placed.segment.start + placed.block(layer) * placed.segment.period
            texts.append(layers.program.strings[int(column[start + layers.offset[row]])])
        return steps_of(*texts)
