"""Which layer each block of rows is of: blocks of a backward pass come in turn."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

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


#: A row in a layer: its segment, layer and place in the block; outside of layers -1, 0 and its number.
Place: TypeAlias = tuple[int, int, int]


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

    def start(self, layer: int) -> int:
        """The first row of the block of a layer."""
        return self.segment.start + (layer - self.first) * self.step * self.segment.period


@dataclass(frozen=True)
class AlignedLayers:
    """Segments with the layers of their blocks. Rows that are in no segment have segment -1."""

    program: Program
    placed: tuple[PlacedRow, ...]

    @cached_property
    def places(self) -> list[Place]:
        """For each row, where it is."""
        number, block, offset = _blocks_of(self.program, [p.segment for p in self.placed])
        first, step = np.array([*((p.first, p.step) for p in self.placed), (0, 0)]).T
        own = np.where(number < 0, np.arange(len(number)), offset)
        columns = (number, first[number] + step[number] * block, own)
        return list(zip(*(c.tolist() for c in columns), strict=True))

    @cached_property
    def segment(self) -> Int64s:
        """For each row, its segment."""
        return np.array([segment for segment, _, _ in self.places], dtype=np.int64)

    @cached_property
    def layer(self) -> Int64s:
        """For each row, its layer; 0 in no segment."""
        return np.array([layer for _, layer, _ in self.places], dtype=np.int64)

    def seen(self, owner: int, read: int) -> Place:
        """A row as another one sees it: of two in layers, how many layers away."""
        segment, layer, place = self.places[read]
        own, from_layer, _ = self.places[owner]
        return (segment, layer - from_layer, place) if min(own, segment) >= 0 else (-1, 0, read)

    @property
    def common(self) -> range:
        """Layers of which every segment has a block."""
        low = max(p.layers.start for p in self.placed)
        return range(low, max(min(p.layers.stop for p in self.placed), low))


def _blocks_of(program: Program, segments: Sequence[LayerSegment]) -> tuple[Int64s, Int64s, Int64s]:
    """For each row its segment (-1: none), its block there and its place in the block."""
    number = np.full(len(program), -1, dtype=np.int64)
    block, offset = np.zeros_like(number), np.zeros_like(number)
    for i, s in enumerate(segments):
        number[s.start : s.stop] = i
        block[s.start : s.stop] = np.repeat(np.arange(s.blocks), s.period)
        offset[s.start : s.stop] = np.tile(np.arange(s.period), s.blocks)
    return number, block, offset


def aligned(program: Program, segments: Sequence[LayerSegment]) -> AlignedLayers:
    """Segments by layers, counted along the largest of parameters alone, else along the largest.

    Segments that no dependency ties to it are omitted.
    """
    own = [s for s in segments if (program.kind[s.start : s.stop] == Kind.PARAMETER).all()]
    largest = max(own or segments, key=lambda s: s.blocks * s.period)
    placed = {segments.index(largest): PlacedRow(largest, 0, 1)}
    links = _links(program, segments)
    while (found := next(_ties(segments, links, placed), None)) is not None:
        number, place = found
        placed[number] = place
    return AlignedLayers(program, tuple(placed[i] for i in sorted(placed)))


def _links(
    program: Program, segments: Sequence[LayerSegment]
) -> dict[tuple[int, int], list[tuple[int, int, Place]]]:
    """Dependencies between two segments, in either direction: the blocks, and the places of the rows."""
    number, block, offset = (column.tolist() for column in _blocks_of(program, segments))
    found: dict[tuple[int, int], list[tuple[int, int, Place]]] = defaultdict(list)
    for owner, read in zip(program.dep_owner.tolist(), program.deps.tolist(), strict=True):
        one, other = number[owner], number[read]
        if min(one, other) >= 0:
            places = offset[owner], offset[read]
            found[one, other].append((block[owner], block[read], (1, *places)))
            found[other, one].append((block[read], block[owner], (-1, *places)))
    return found


def _ties(
    segments: Sequence[LayerSegment],
    links: dict[tuple[int, int], list[tuple[int, int, Place]]],
    placed: dict[int, PlacedRow],
) -> Iterator[tuple[int, PlacedRow]]:
    for number, segment in enumerate(segments):
        if number in placed:
            continue
        for known, place in placed.items():
            if found := _tied(links[number, known], place):
                yield number, PlacedRow(segment, *found)
                break


def _tied(links: list[tuple[int, int, Place]], place: PlacedRow) -> tuple[int, int] | None:
    """First layer and step that most links agree on, None if no kind of link runs along all blocks."""
    best: tuple[int, int, int] | None = None
    for step in (1, -1):
        kinds = Counter(
            (where, place.first + place.step * other - step * own) for own, other, where in links
        )
        votes: Counter[int] = Counter()
        for (_, first), count in kinds.items():
            votes[first] += count if count >= 3 else 0
        most = max(votes, key=lambda f: (votes[f], -f), default=0)
        if votes[most] > (best[0] if best else 0):
            best = votes[most], most, step
    return best and best[1:]
