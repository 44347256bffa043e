"""Layers that are rows of their own, more or fewer of them.

A row of a layer reads rows of its own layer, of the layer before or after, and rows outside all layers.
Where that is the same for two layers that follow each other, copies of one go between it and the next as
often as wanted, or layers between two alike ones go. Rows that read all layers (the sum of
all gradients, what the step returns) read the new ones too.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache, lru_cache, partial
from typing import Any

import numpy as np

from flint.errors import FlintError
from flint.ir.columns import ROW_COLUMNS, compact_tables, rewired
from flint.ir.program import COLUMN_TYPES, Program, Region
from flint.tools.share.growing.alignment import (
    AlignedLayers,
    Place,
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
    told, common = cache(partial(_told, layers)), layers.common
    last = common.stop - 2 if more > 0 else common.stop - 2 + more
    choices = range(common.start + (more > 0), last + 1)
    for m in sorted(choices, key=lambda m: abs(2 * m - (common.start + common.stop - 1))):
        ends = ((m - 1, m), (m, m + 1)) if more > 0 else ((m, m + 1, m - more, m - more + 1),)
        if all(
            any(all(told(p, n) == told(p, end[0]) for n in end[1:]) for end in ends)
            for p in layers.placed
        ) and _crossings_fit(layers, m, max(-more, 0)):
            return m
    raise not_alike(f"no two layers of {len(common)} read the same from their neighbors")


def _told(layers: AlignedLayers, placed: PlacedRow, layer: int) -> list[list[Place | None]]:
    """What each row of a block reads, and whose storage it shares, as seen from its layer."""
    p, start = layers.program, placed.start(layer)
    return [
        [
            *sorted(layers.seen(row, read) for read in p.dependencies(row).tolist()),
            layers.seen(row, int(p.alias[row])) if p.alias[row] >= 0 else None,
        ]
        for row in range(start, start + placed.segment.period)
    ]


def _crossings_fit(layers: AlignedLayers, cut: int, removed: int) -> bool:
    """Whether all that crosses the cut goes to one of the next two layers, or is of rows that read all layers.

    It goes to the second where blocks begin within a layer: half of their rows are of the next one.
    """
    p = layers.program
    owner, read = p.dep_owner.astype(np.int64), p.deps.astype(np.int64)
    inside = (layers.segment[owner] >= 0) & (layers.segment[read] >= 0)
    one, other = layers.layer[owner], layers.layer[read]
    low, high = np.minimum(one, other), np.maximum(one, other)
    crosses = inside & (low <= cut) & (high > cut + removed)
    if (high - low)[crosses].max(initial=0) > 2:
        return False
    return all(
        len({layer in found for layer in range(cut, cut + removed + 2)}) == 1
        for found in read_from_outside(layers).values()
    )


def read_from_outside(layers: AlignedLayers) -> dict[tuple[int, int, int], set[int]]:
    """Layers that rows outside layers read, by row, segment and place in the block."""
    p, found = layers.program, dict[tuple[int, int, int], set[int]]()
    for owner, read in zip(p.dep_owner.tolist(), p.deps.tolist(), strict=True):
        segment, layer, place = layers.places[read]
        if segment >= 0 and layers.places[owner][0] < 0:
            found.setdefault((owner, segment, place), set()).add(layer)
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


class _Repeated:
    """A program with `more` layers after layer `cut` (fewer: those after it go)."""

    def __init__(self, layers: AlignedLayers, cut: int, more: int) -> None:
        self.layers, self.cut, self.more = layers, cut, more
        self.places, self.rows = layers.places, self._rows()
        self.at = {
            (self.places[like][0], layer, self.places[like][2]): new
            for new, (like, layer) in enumerate(self.rows)
        }

    def _rows(self) -> list[tuple[int, int]]:
        """For each new row the row that it is like, and its layer. Blocks of one segment follow each other."""
        found: list[tuple[int, int]] = []
        at = 0
        for placed in self.layers.placed:
            s = placed.segment
            found += [(row, 0) for row in range(at, s.start)]
            for new, like in self._blocks(placed.layers)[:: placed.step]:
                start = placed.start(like)
                found += [(row, new) for row in range(start, start + s.period)]
            at = s.stop
        return found + [(row, 0) for row in range(at, len(self.layers.program))]

    def _blocks(self, layers: range) -> list[tuple[int, int]]:
        """New layers of a segment, ascending, and the old layer that each is like."""
        cut, more = self.cut, self.more
        kept = [(n, n) for n in layers if n <= cut]
        new = [(cut + i, cut) for i in range(1, more + 1)]
        later = [(n + more, n) for n in layers if n > cut + max(-more, 0)]
        return kept + new + later

    def program(self) -> Program:
        p = self.layers.program
        sources = [like for like, _ in self.rows]
        columns: dict[str, Any] = {name: getattr(p, name)[sources] for name in ROW_COLUMNS}
        alias = [
            self._read(n, a) if a >= 0 else -1 for n, a in enumerate(columns["alias"].tolist())
        ]
        columns["alias"] = np.array(alias, dtype=COLUMN_TYPES["alias"])
        none = np.zeros(len(sources) + 1, dtype=np.int64)
        short = replace(
            p, **columns, regions=self._regions(), dep_start=none, deps=np.zeros(0, np.int32)
        )
        owner, target = np.array(self._links(), dtype=np.int64).reshape(-1, 2).T
        return compact_tables(self._named(rewired(short, (owner, target))))

    def _read(self, owner: int, read: int) -> int:
        """The new number of old row `read` as new row `owner` reads it."""
        segment, layer, place = self.places[read]
        like, new = self.rows[owner]
        if segment >= 0 and self.places[like][0] >= 0:
            layer += new - self.places[like][1]
        elif segment >= 0 and layer > self.cut:
            layer += self.more
        return self.at[segment, layer, place]

    def _links(self) -> list[tuple[int, int]]:
        """Dependencies between new numbers; rows outside that read all layers read new ones as well."""
        p, gone = self.layers.program, range(self.cut + 1, self.cut - self.more + 1)
        found = []
        for owner, (like, _) in enumerate(self.rows):
            is_outside = self.places[like][0] < 0
            for read in p.dependencies(like).tolist():
                segment, layer, _ = self.places[read]
                if not (is_outside and segment >= 0 and layer in gone):
                    found.append((owner, self._read(owner, read)))
        return found + [
            (self.at[-1, 0, row], self.at[number, n, place])
            for (row, number, place), read in read_from_outside(self.layers).items()
            if {self.cut, self.cut + 1} <= read
            for n in range(self.cut + 1, self.cut + 1 + self.more)
        ]

    def _end(self, row: int) -> int:
        """Where an old row is that is outside, or the first or last of its segment."""
        segment, _, place = self.places[row]
        if segment < 0:
            return self.at[-1, 0, place]
        s = self.layers.placed[segment].segment
        own = [new for new, (like, _) in enumerate(self.rows) if self.places[like][0] == segment]
        if row not in (s.start, s.stop - 1):
            raise not_alike("loops begin or end within its layers")
        return own[0] if row == s.start else own[-1]

    def _regions(self) -> tuple[Region, ...]:
        return tuple(
            replace(
                region,
                start=self._end(region.start),
                stop=self._end(region.stop - 1) + 1,
                carries=tuple((self._end(a), self._end(b)) for a, b in region.carries),
            )
            for region in self.layers.program.regions
        )

    def _named(self, program: Program) -> Program:
        """Numbers of layers in texts go on."""
        p = self.layers.program
        table = {text: i for i, text in reversed(list(enumerate(p.strings)))}
        columns: dict[str, Any] = {}
        for name in _TEXTS:
            column = getattr(p, name)
            new = column[[like for like, _ in self.rows]]
            for at, (like, layer) in enumerate(self.rows):
                if by := layer - self.places[like][1]:
                    text = moved(p.strings[new[at]], self._steps(column, like), by)
                    new[at] = table.setdefault(text, len(table))
            for row, steps in self._beyond(column):
                text = moved(p.strings[column[row]], steps, self.more)
                new[self.at[-1, 0, row]] = table.setdefault(text, len(table))
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
            start = placed.start(layer)
            texts.append(layers.program.strings[int(column[start + layers.places[row][2]])])
        return steps_of(*texts)
