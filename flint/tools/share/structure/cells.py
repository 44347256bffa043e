"""Cells: parts of a program, by place and by weight, that are moved or left as they are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from flint.ir.program import Kind
from flint.tools.share.structure.facts import Facts
from flint.tools.share.structure.prices import prices_of
from flint.tools.share.structure.wiring import Slot, Wiring

#: Shares of the bytes of the largest value up to which one is light, and middling.
_LIGHT, _MIDDLING = 0.002, 0.03
#: Rows of one part, about, of bodies that are longer.
_PART = 400
#: Bodies with fewer rows belong to the part before them.
_LEAST = 12


class Weight(IntEnum):
    """What is moved: operands and operations by the size of values, and the order of rows."""

    LIGHT = 0
    MIDDLING = 1
    PLACES = 2  #: the order of rows
    SENT = 3  #: operands and results of collectives
    HEAVY = 4


class Cell(NamedTuple):
    """One cell: lighter ones first."""

    weight: Weight
    part: int


@dataclass(frozen=True, eq=False)
class Cells:
    """`part` of each row, `weight` of each type, rows of collectives, and `prices` of operations."""

    facts: Facts
    part: tuple[int, ...]
    weight: tuple[Weight, ...]
    sends: tuple[bool, ...]
    prices: tuple[int, ...]

    @classmethod
    def of(cls, facts: Facts) -> Cells:
        """The cells of a program."""
        works = np.flatnonzero(facts.works)
        sizes = [facts.types[t].num_bytes + facts.types[t].more_bytes for t in facts.type]
        largest = max((sizes[row] for row in works.tolist()), default=1)
        return cls(
            facts,
            _parts(facts),
            tuple(_weight(t.num_bytes + t.more_bytes, largest) for t in facts.types),
            tuple((facts.program.kind >= Kind.COLLECTIVE).tolist()),
            prices_of(facts.program),
        )

    def all(self, wiring: Wiring) -> tuple[Cell, ...]:
        """Every cell that has something to move, lighter ones first."""
        found = {self.of_slot(wiring, slot) for slot in wiring.slots()}
        found |= {Cell(Weight.PLACES, part) for part in self.part}
        return tuple(sorted(found))

    def of_slot(self, wiring: Wiring, slot: Slot) -> Cell:
        """The cell of an operand: the part of the row that reads, the weight of what it reads."""
        row, value = slot[0], wiring.reads[slot[0]][slot[1]]
        part = self._part(wiring, row)
        if self._sends(row) or self._sends(value):
            return Cell(Weight.SENT, part)
        type_ = wiring.type[value]
        if type_ < len(self.weight):
            return Cell(self.weight[type_], part)
        return Cell(self.weight[_like(wiring, value)], part)

    def rows(self, chosen: frozenset[Cell]) -> list[tuple[int, int]]:
        """Rows of the cells whose operation has others of its price, with that."""
        return [
            (row, price)
            for row, price in enumerate(self.prices)
            if price >= 0 and Cell(self.weight[self.facts.type[row]], self.part[row]) in chosen
        ]

    def places(self, wiring: Wiring, chosen: Iterable[Cell]) -> frozenset[int]:
        """Rows whose places are drawn."""
        parts = {cell.part for cell in chosen if cell.weight is Weight.PLACES}
        return frozenset(r for r in range(len(wiring)) if self._part(wiring, r) in parts)

    def _part(self, wiring: Wiring, row: int) -> int:
        if wiring.is_view(row):
            return self.part[wiring.views[row - wiring.first_view]]
        if wiring.is_yield(row):
            return self.part[wiring.yields[row - wiring.first_yield][1]]
        return self.part[row]

    def _sends(self, row: int) -> bool:
        return row < len(self.sends) and self.sends[row]


def _like(wiring: Wiring, value: int) -> int:
    """The type that a view of a new shape is of."""
    while wiring.type[value] >= len(wiring.facts.types):
        value = wiring.reads[value][0]
    return wiring.type[value]


def _weight(num_bytes: int, largest: int) -> Weight:
    if num_bytes <= _LIGHT * largest:
        return Weight.LIGHT
    return Weight.MIDDLING if num_bytes <= _MIDDLING * largest else Weight.HEAVY


def _parts(facts: Facts) -> tuple[int, ...]:
    """Bodies, long ones in pieces, short ones with the body around them."""
    regions = [r.parent for r in facts.program.regions]
    counts = np.bincount(np.array(facts.region) + 1, minlength=len(regions) + 1)
    numbers: dict[tuple[int, int], int] = {}
    seen = [0] * (len(regions) + 1)
    found = []
    for region in facts.region:
        body = region
        while body >= 0 and counts[body + 1] < _LEAST:
            body = regions[body]
        pieces = max(int(counts[body + 1]) // _PART, 1)
        piece = min(seen[body + 1] * pieces // max(int(counts[body + 1]), 1), pieces - 1)
        seen[body + 1] += region == body
        found.append(numbers.setdefault((body, piece), len(numbers)))
    return tuple(found)
