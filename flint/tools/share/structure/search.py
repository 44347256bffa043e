"""The search for a wiring that is far from what was captured, and costs what it cost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from flint.tools.share.structure.cells import Cell, Cells, Weight
from flint.tools.share.structure.moves import Boldness, add_views, move
from flint.tools.share.structure.order import place_rows
from flint.tools.share.structure.wiring import Wiring

#: Draws that are measured: fewer of longer programs, as each takes longer.
_ROWS_MEASURED, _LEAST_DRAWS, _MOST_DRAWS = 16_000, 14, 40
#: The share of operands that are read through new views is drawn between these; of which cells.
_VIEWS = (0.3, 0.5)
_SEEN = (Weight.LIGHT, Weight.MIDDLING)
#: How boldly cells are moved first, and where that moves too much of what is measured.
_BOLD = {weight: Boldness() for weight in Weight}
_LEAST = Boldness(reach=2, rounds=1, exchanges=1, redirects=0.1, views=0.1)


@dataclass
class Found:
    """The wiring, by how much it moved what is measured, and the cells that were moved.

    `nearest` is the least by which a draw that was left moved it.
    """

    wiring: Wiring
    drift: float
    moved: frozenset[Cell] = frozenset()
    nearest: float = float("inf")


def search(
    wiring: Wiring,
    drift_of: Callable[[Wiring], float],
    keep: float,
    random: np.random.Generator,
    draws: int | None = None,
) -> Found:
    """Move cells at random as long as nothing that is measured moves by more than `keep` (a share).

    Cells are tried together; where that moves too much, in halves, the lighter ones first, and
    those that are left alone once more with a smaller reach.
    """
    cells = Cells.of(wiring.facts)
    left = draws or max(min(_ROWS_MEASURED // max(len(wiring), 1), _MOST_DRAWS), _LEAST_DRAWS)
    views = float(random.uniform(*_VIEWS))
    place_rows(wiring)
    best = Found(wiring, drift_of(wiring))
    every = cells.all(wiring)
    queue: _Queue = deque()
    for _ in range(left):
        queue = queue or _again(every)
        chosen, bold = queue.popleft()
        tried = best.wiring.copy()
        seen = frozenset(c for c in set(chosen) - best.moved if c.weight in _SEEN)
        add_views(tried, cells, seen, views, random)
        move(tried, cells, frozenset(chosen), bold, random)
        found = drift_of(tried)
        if found <= keep:
            best = Found(tried, found, best.moved | set(chosen), best.nearest)
        else:
            best.nearest = min(best.nearest, found)
            _again_smaller(queue, chosen, bold)
    return best


_Queue = deque[tuple[tuple[Cell, ...], Boldness]]


def _again(every: Sequence[Cell]) -> _Queue:
    """All cells, those of one weight together, light ones first."""
    groups = [tuple(c for c in every if c.weight is weight) for weight in Weight]
    return deque((group, _BOLD[group[0].weight]) for group in groups if group)


def _again_smaller(queue: _Queue, chosen: tuple[Cell, ...], bold: Boldness) -> None:
    """Try halves next, the first before the second; of a cell alone less, after all others."""
    half = len(chosen) // 2
    if half:
        queue.extendleft([(chosen[half:], bold), (chosen[:half], bold)])
    elif bold != _LEAST:
        queue.append((chosen, _LEAST))
