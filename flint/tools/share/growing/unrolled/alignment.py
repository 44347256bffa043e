"""Which layer each block of rows is of: blocks of a backward pass come in turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from flint.ir.program import Int64s, Kind, Program
from flint.tools.share.growing.unrolled.periods import Segment


@dataclass(frozen=True, slots=True)
class Placed:
    """A segment whose block `b` is of layer `first + step * b`; `step` is 1 or -1."""

    segment: Segment
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
class Layers:
    """Segments with the layers of their blocks. Rows that are in no segment have segment -1."""

    program: Program
    placed: tuple[Placed, ...]

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


def aligned(program: Program, segments: Sequence[Segment]) -> Layers:
    """Segments by layers, counted along the largest of parameters alone, else along the largest.

    Segments that no dependency ties to it are left out.
    """
    own = [s for s in segments if (program.kind[s.start : s.stop] == Kind.PARAMETER).all()]
    largest = max(own or segments, key=lambda s: s.blocks * s.period)
    placed = {segments.index(largest): Placed(largest, 0, 1)}
    links = _Links(program, segments)
    while (found := next(_ties(links, placed), None)) is not None:
        number, place = found
        placed[number] = place
    return Layers(program, tuple(placed[i] for i in sorted(placed)))


class _Links:
    """Dependencies between blocks of two segments, by the places of their rows."""

    def __init__(self, program: Program, segments: Sequence[Segment]) -> None:
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


def _ties(links: _Links, placed: dict[int, Placed]) -> Iterator[tuple[int, Placed]]:
    """Segments that links tie to one that has its place."""
    for number, segment in enumerate(links.segments):
        if number in placed:
            continue
        for known, place in placed.items():
            own, other, places = links.between(number, known)
            if found := _tied(own, place.first + place.step * other, places):
                yield number, Placed(segment, *found)
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
