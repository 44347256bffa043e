"""Which layer each block of rows is of: blocks of a backward pass come in turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from flint.ir.columns import ROW_COLUMNS
from flint.ir.program import Int64s, Kind, Program

# Repeated blocks of rows: what layers without a loop look like.
#
# Rows are alike if all their columns are, but names, places in the source and which rows they read. Rows
# `i` and `i + p` alike over a long stretch are blocks of `p` rows, one after the other: layers of a forward
# pass, those of a backward pass in turn, their parameters, updates of these.

#: Columns that differ between layers that do the same.
_OF_ONE_LAYER = frozenset(
    {"name", "scope", "location", "cause", "alias", "compiled", "launcher", "dims"}
)
#: Blocks that are found at least: of two nobody knows what a third would read.
FEWEST_BLOCKS = 3


@dataclass(frozen=True, slots=True)
class LayerSegment:
    """`blocks` blocks of `period` rows, from row `start` on."""

    start: int
    period: int
    blocks: int

    @property
    def stop(self) -> int:
        """The row after its last."""
        return self.start + self.period * self.blocks


@dataclass(frozen=True, slots=True)
class _Run:
    length: int
    period: int
    start: int

    @property
    def blocks(self) -> int:
        return self.length // self.period + 1


def segments_of(program: Program) -> tuple[LayerSegment, ...]:
    """Repeated blocks of a program, by row; empty where less than three layers repeat.

    The longest stretch says how many blocks there are; others have as many, or one more or less, where
    rows at an end are not as in other layers. Shorter blocks come together: of layers that
    alternate between two kinds, two are one block.
    """
    runs = sorted(_runs(_labels(program)), key=lambda r: (-r.length, r.period, r.start))
    if not runs:
        return ()
    whole = runs[0].blocks
    found: list[LayerSegment] = []
    for run in runs:
        times = max(round(run.blocks / whole), 1)
        period = run.period * times
        blocks = (run.length + run.period) // period
        if abs(blocks - whole) > 1 or blocks < FEWEST_BLOCKS:
            continue
        segment = LayerSegment(run.start, period, blocks)
        if all(segment.stop <= s.start or s.stop <= segment.start for s in found):
            found.append(segment)
    return tuple(sorted(found, key=lambda s: s.start))


def layers_of(program: Program, segments: tuple[LayerSegment, ...]) -> tuple[int, int]:
    """The number of layers, and how many of them are one block.

    Parameters say it, of which each layer has its own (the fewest, as each may have several moments); without
    parameters the stretch with most rows.
    """
    own = [s for s in segments if (program.kind[s.start : s.stop] == Kind.PARAMETER).all()]
    labels = _labels(program)
    told = own or [max(segments, key=lambda s: s.blocks * s.period)]
    each = [(s, _smallest_period(labels[s.start : s.stop], s.period)) for s in told]
    segment, part = min(each, key=lambda item: item[0].blocks * (item[0].period // item[1]))
    return segment.blocks * (segment.period // part), segment.period // part


def _smallest_period(labels: Int64s, period: int) -> int:
    """The shortest part of a block that repeats within it as well."""
    for part in range(1, period):
        if period % part == 0 and (labels[part:] == labels[:-part]).all():
            return part
    return period


def _labels(program: Program) -> Int64s:
    """For each row a number that rows which are alike share."""
    columns = [c for c in ROW_COLUMNS if c not in _OF_ONE_LAYER]
    entries = [getattr(program, c).astype(np.int64) for c in columns]
    entries += [*program.dims.T, np.diff(program.dep_start)]
    _, label = np.unique(np.stack(entries, axis=1), axis=0, return_inverse=True)
    return np.asarray(label.reshape(-1), dtype=np.int64)


def _runs(labels: Int64s) -> Iterator[_Run]:
    """Stretches in which every row is like the one a period later, of three blocks or more."""
    for period in range(1, len(labels) // FEWEST_BLOCKS + 1):
        alike = np.zeros(len(labels) - period + 2, dtype=np.int8)
        alike[1:-1] = labels[:-period] == labels[period:]
        steps = np.diff(alike)
        begins, ends = np.flatnonzero(steps == 1), np.flatnonzero(steps == -1)
        lengths = ends - begins
        for i in np.flatnonzero(lengths >= (FEWEST_BLOCKS - 1) * period).tolist():
            yield _Run(int(lengths[i]), period, int(begins[i]))


@dataclass(frozen=True, slots=True)
class PlacedRow:
    """A segment whose block `b` is of layer `first + step * b`; `step` is 1 or -1."""

    segment: LayerSegment
    first: int
    step: int

    @property
    def layers(self) -> range:
        """The layers of its blocks, the smallest first."""
        last = self.first + self.step * (self.segment.blocks - 1)
        return range(min(self.first, last), max(self.first, last) + 1)

    def block(self, layer: int) -> int:
        """The block of a layer."""
        return (layer - self.first) * self.step


@dataclass(frozen=True)
class AlignedLayers:
    """Segments with the layers of their blocks. Rows that are in no segment have segment -1."""

    program: Program
    placed: tuple[PlacedRow, ...]

    @cached_property
    def segment(self) -> Int64s:
        """For each row, its segment."""
        found = np.full(len(self.program), -1, dtype=np.int64)
        for number, p in enumerate(self.placed):
            found[p.segment.start : p.segment.stop] = number
        return found

    @cached_property
    def layer(self) -> Int64s:
        """For each row, its layer; 0 in no segment."""
        found = np.zeros(len(self.program), dtype=np.int64)
        for p in self.placed:
            s = p.segment
            blocks = np.repeat(np.arange(s.blocks), s.period)
            found[s.start : s.stop] = p.first + p.step * blocks
        return found

    @cached_property
    def offset(self) -> Int64s:
        """For each row, its place in its block; 0 in no segment."""
        found = np.zeros(len(self.program), dtype=np.int64)
        for p in self.placed:
            s = p.segment
            found[s.start : s.stop] = np.tile(np.arange(s.period), s.blocks)
        return found

    @property
    def common(self) -> range:
        """Layers of which every segment has a block."""
        low = max(p.layers.start for p in self.placed)
        return range(low, max(min(p.layers.stop for p in self.placed), low))


def aligned(program: Program, segments: Sequence[LayerSegment]) -> AlignedLayers:
    """Segments by layers, counted along the largest of parameters alone, else along the largest.

    Segments that no dependency ties to it are omitted.
    """
    own = [s for s in segments if (program.kind[s.start : s.stop] == Kind.PARAMETER).all()]
    largest = max(own or segments, key=lambda s: s.blocks * s.period)
    placed = {segments.index(largest): PlacedRow(largest, 0, 1)}
    links = _Links(program, segments)
    while (found := next(_ties(links, placed), None)) is not None:
        number, place = found
        placed[number] = place
    return AlignedLayers(program, tuple(placed[i] for i in sorted(placed)))


class _Links:
    """Dependencies between blocks of two segments, by the places of their rows."""

    def __init__(self, program: Program, segments: Sequence[LayerSegment]) -> None:
        self.segments = segments
        number = np.full(len(program), -1, dtype=np.int64)
        block, offset = np.zeros_like(number), np.zeros_like(number)
        for i, s in enumerate(segments):
            number[s.start : s.stop] = i
            block[s.start : s.stop] = np.repeat(np.arange(s.blocks), s.period)
            offset[s.start : s.stop] = np.tile(np.arange(s.period), s.blocks)
        owner, read = program.dep_owner.astype(np.int64), program.deps.astype(np.int64)
        inside = (number[owner] >= 0) & (number[read] >= 0)
        owner, read = owner[inside], read[inside]
        self.pairs = np.stack([number[owner], number[read]], axis=1)
        self.blocks = np.stack([block[owner], block[read]], axis=1)
        self.places = offset[owner] * (len(program) + 1) + offset[read]

    def between(self, one: int, other: int) -> tuple[Int64s, Int64s, Int64s]:
        """Blocks of `one`, blocks of `other`, and places, of links in either direction."""
        forth = (self.pairs == (one, other)).all(axis=1)
        back = (self.pairs == (other, one)).all(axis=1)
        blocks = np.concatenate([self.blocks[forth], self.blocks[back][:, ::-1]])
        places = np.concatenate([self.places[forth], -1 - self.places[back]])
        return blocks[:, 0], blocks[:, 1], places


def _ties(links: _Links, placed: dict[int, PlacedRow]) -> Iterator[tuple[int, PlacedRow]]:
    """Segments that links tie to one that has its place."""
    for number, segment in enumerate(links.segments):
        if number in placed:
            continue
        for known, place in placed.items():
            own, other, places = links.between(number, known)
            if found := _tied(own, place.first + place.step * other, places):
                yield number, PlacedRow(segment, *found)
                break


def _tied(blocks: Int64s, layers: Int64s, places: Int64s) -> tuple[int, int] | None:
    """First layer and step that most links agree on, None if no kind of link runs along all blocks."""
    best: tuple[int, int, int] | None = None
    for step in (1, -1):
        first = layers - step * blocks
        keys, counts = np.unique(np.stack([places, first], axis=1), axis=0, return_counts=True)
        regular = counts >= 3
        if not regular.any():
            continue
        values, which = np.unique(keys[regular, 1], return_inverse=True)
        votes = np.bincount(which.reshape(-1), weights=counts[regular])
        most = int(np.argmax(votes))
        if best is None or votes[most] > best[0]:
            best = int(votes[most]), int(values[most]), step
    return None if best is None else (best[1], best[2])
