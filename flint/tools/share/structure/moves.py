"""Random moves: a wiring as far from what it was as its types and phases allow, cell by cell."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flint.tools.share.structure.cells import Cell, Cells
from flint.tools.share.structure.order import place_rows
from flint.tools.share.structure.prices import another
from flint.tools.share.structure.wiring import Slot, Wiring


@dataclass(frozen=True)
class Boldness:
    """How far one draw goes.

    `reach`: about how many operands of a type, and how many rows, away moves reach. `rounds` of
    moves, each with `exchanges` an operand. The share `redirects` of all operands is read from another
    value of the type, `views` from one of another shape, `operations` of all rows do another operation.
    """

    reach: int = 8
    rounds: int = 3
    exchanges: int = 4
    redirects: float = 0.5
    views: float = 0.3
    operations: float = 1.0


def move(
    wiring: Wiring,
    cells: Cells,
    chosen: frozenset[Cell],
    bold: Boldness,
    random: np.random.Generator,
) -> None:
    """Move operands, operations and places of the chosen cells at random."""
    for _ in range(bold.rounds):
        groups = _groups(wiring, cells, chosen)
        for slots in groups.values():
            _exchange(wiring, slots, bold, random)
            _redirect(wiring, slots, bold, random)
        _see(wiring, groups, bold, random)
        place_rows(wiring, random, bold.reach, cells.places(wiring, chosen))
    _operate(wiring, cells.rows(chosen), bold, random)


def add_views(
    wiring: Wiring,
    cells: Cells,
    chosen: frozenset[Cell],
    share: float,
    random: np.random.Generator,
) -> None:
    """Let a share of the operands of cells be read through two views, of another shape and back."""
    slots = [s for s in wiring.slots() if cells.of_slot(wiring, s) in chosen]
    for at in np.flatnonzero(random.random(len(slots)) < share).tolist():
        row, number = slots[at]
        if number < len(wiring.reads[row]):
            sort = wiring.types[wiring.type[wiring.reads[row][number]]]
            wiring.detour(slots[at], _other_shape(sort.shape, random))
    place_rows(wiring)


def _other_shape(shape: tuple[int, ...], random: np.random.Generator) -> tuple[int, ...]:
    """As many elements: two dimensions as one, or a dimension of 1 more."""
    if len(shape) > 1 and random.random() < 0.7:
        at = int(random.integers(len(shape) - 1))
        return (*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :])
    at = int(random.integers(len(shape) + 1))
    return (*shape[:at], 1, *shape[at:])


def _groups(wiring: Wiring, cells: Cells, chosen: frozenset[Cell]) -> dict[int, list[Slot]]:
    """Operands of the chosen cells by type, those of one type by the place of what they read."""
    groups: dict[int, list[Slot]] = defaultdict(list)
    for slot in wiring.slots():
        if cells.of_slot(wiring, slot) in chosen:
            groups[wiring.type[wiring.reads[slot[0]][slot[1]]]].append(slot)
    for slots in groups.values():
        slots.sort(key=lambda s: (wiring.place[wiring.reads[s[0]][s[1]]], s))
    return groups


def _exchange(
    wiring: Wiring, slots: Sequence[Slot], bold: Boldness, random: np.random.Generator
) -> None:
    count = len(slots) * bold.exchanges
    one = random.integers(0, len(slots), count)
    other = one + random.integers(-bold.reach, bold.reach + 1, count)
    for i, j in zip(one.tolist(), other.tolist(), strict=True):
        if 0 <= j < len(slots) and i != j:
            wiring.exchange(slots[i], slots[j])


def _redirect(
    wiring: Wiring, slots: Sequence[Slot], bold: Boldness, random: np.random.Generator
) -> None:
    """Other numbers of readers: some read what others read as well."""
    chosen = np.flatnonzero(random.random(len(slots)) < bold.redirects)
    steps = random.integers(-bold.reach, bold.reach + 1, len(chosen))
    for i, j in zip(chosen.tolist(), (chosen + steps).tolist(), strict=True):
        if 0 <= j < len(slots) and wiring.is_there(slots[j]):
            row, number = slots[j]
            wiring.redirect(slots[i], wiring.reads[row][number])


def _see(
    wiring: Wiring, groups: dict[int, list[Slot]], bold: Boldness, random: np.random.Generator
) -> None:
    """New views: operands come from values of as many elements in another shape."""
    values: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for type_, slots in groups.items():
        read = {wiring.reads[r][n] for r, n in slots if wiring.is_there((r, n))}
        if not wiring.types[type_].more_bytes:
            values[wiring.types[type_].alike] += [(wiring.place[v], v) for v in sorted(read)]
    for found in values.values():
        found.sort()
    for type_, slots in groups.items():
        others = values.get(wiring.types[type_].alike, [])
        chosen = np.flatnonzero(random.random(len(slots)) < bold.views)
        back = random.integers(1, bold.reach + 2, len(chosen))
        for i, steps in zip(chosen.tolist(), back.tolist(), strict=True):
            before = bisect_left(others, (wiring.place[slots[i][0]], -1))
            if before >= steps and wiring.type[others[before - steps][1]] != type_:
                wiring.see(slots[i], others[before - steps][1])


def _operate(
    wiring: Wiring, rows: Sequence[tuple[int, int]], bold: Boldness, random: np.random.Generator
) -> None:
    for row, price in rows:
        if random.random() < bold.operations:
            wiring.operations[row] = another(price, random)
