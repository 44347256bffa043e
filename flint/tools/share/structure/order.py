"""Orders of rows: one at random that the operands allow, near to the one before or far from it."""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from flint.tools.share.structure.wiring import Wiring


@dataclass
class _Body:
    """Items of one body, its rows and the loops in it, with what each waits for."""

    items: list[int] = field(default_factory=list)
    after: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))


class Bodies:
    """The bodies of a wiring. Loops are items of the body around them: `~loop`, a negative number."""

    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring
        self._chosen: frozenset[int] = frozenset()
        self._parents = [r.parent for r in wiring.facts.program.regions]
        self._bodies: dict[int, _Body] = defaultdict(_Body)
        for row, region in enumerate(wiring.region):
            if row in wiring.gone:
                continue
            self._bodies[region].items.append(row)
        for loop, parent in enumerate(self._parents):
            self._bodies[parent].items.append(~loop)
        for row, reads in enumerate(wiring.reads):
            for value in reads:
                self._wait(row, value)
                if wiring.alias_of(row) == value and wiring.writes_into(
                    (row, wiring.reads[row].index(value))
                ):
                    self._write_after_readers(row, value)

    def order(
        self, random: np.random.Generator | None, reach: float, chosen: frozenset[int]
    ) -> list[int]:
        """All rows in an order that their operands allow.

        `reach`: how many rows away from its place a row of `chosen` is drawn, about. Without chance
        the order is the one before, with what is new right before what reads it.
        """
        self._chosen = chosen
        return self._ordered(-1, random, reach)

    def _ordered(self, body: int, random: np.random.Generator | None, reach: float) -> list[int]:
        found: list[int] = []
        for item in self._sorted(body, random, reach):
            found.extend([item] if item >= 0 else self._ordered(~item, random, reach))
        return found

    def _sorted(self, body: int, random: np.random.Generator | None, reach: float) -> list[int]:
        """Items of one body: those that are ready, nearest to their drawn places first."""
        items, after = self._bodies[body].items, self._bodies[body].after
        noise = (
            random.normal(0.0, reach, len(items)) if random is not None else np.zeros(len(items))
        )
        keys = {
            item: (*self._place(item), float(n) if item in self._chosen else 0.0)
            for item, n in zip(items, noise, strict=True)
        }
        waits = dict.fromkeys(items, 0)
        for followers in after.values():
            for follower in followers:
                waits[follower] += 1
        ready = [self._entry(keys[i], i) for i in items if not waits[i]]
        heapq.heapify(ready)
        found = []
        while ready:
            item = heapq.heappop(ready)[-1]
            found.append(item)
            for follower in after.get(item, ()):
                waits[follower] -= 1
                if not waits[follower]:
                    heapq.heappush(ready, self._entry(keys[follower], follower))
        assert len(found) == len(items), "operands of rows go in a circle"
        return found

    def _entry(self, key: tuple[int, int, float], item: int) -> tuple[int, float, int, int]:
        """First by group, then by drawn place."""
        group, place, noise = key
        return group, place + noise * (group == 1), -int(self._is_new(item)), item

    def _place(self, item: int) -> tuple[int, int]:
        """Carried values and arguments are first, what a loop carries on and what the step returns last."""
        w = self._wiring
        if item < 0:
            return 1, w.facts.program.regions[~item].start if not w.place else self._begin(~item)
        place = w.place[item] if w.place else item
        if w.is_yield(item):
            return 2, place
        if w.is_view(item):
            return 1, place
        facts = w.facts
        if facts.is_carry[item] or facts.is_parameter[item]:
            return 0, place
        return (2 if facts.is_result[item] else 1), place

    def _is_new(self, item: int) -> bool:
        return item >= 0 and self._wiring.is_view(item)

    def _begin(self, loop: int) -> int:
        return min(self._wiring.place[row] for row in self._rows_of(loop))

    def _rows_of(self, loop: int) -> list[int]:
        found = []
        for item in self._bodies[loop].items:
            found.extend([item] if item >= 0 else self._rows_of(~item))
        return found

    def _wait(self, row: int, value: int) -> None:
        """The item of the row comes after that of the value, in the body around both."""
        one, other = self._chain(row), self._chain(value)
        depth = 0
        while depth < min(len(one), len(other)) - 1 and one[depth] == other[depth]:
            depth += 1
        if one[depth] != other[depth]:
            body = -1 if not depth else ~one[depth - 1]
            self._bodies[body].after[other[depth]].add(one[depth])

    def _write_after_readers(self, row: int, value: int) -> None:
        w = self._wiring
        for reader in w.readers[value]:
            is_before = w.place[reader] < w.place[row] if w.place else reader < row
            if reader != row and is_before:
                self._wait(row, reader)

    def _chain(self, row: int) -> list[int]:
        """The loops around a row from outside, as items, and the row."""
        found, loop = [row], self._wiring.region[row]
        while loop >= 0:
            found.append(~loop)
            loop = self._parents[loop]
        return found[::-1]


def place_rows(
    wiring: Wiring,
    random: np.random.Generator | None = None,
    reach: float = 0.0,
    chosen: frozenset[int] = frozenset(),
) -> None:
    """Give the rows of a wiring an order, and note where each of them is."""
    bodies = Bodies(wiring)
    wiring.order = bodies.order(random, reach, chosen)
    place = [0] * len(wiring)
    for at, row in enumerate(wiring.order):
        place[row] = at
    wiring.place, wiring.begin = place, place.copy()
    starts: dict[int, int] = {}
    for row in wiring.order:
        region = wiring.region[row]
        if region >= 0:
            starts.setdefault(region, place[row])
    for row, is_carry in enumerate(wiring.facts.is_carry):
        if is_carry:
            wiring.begin[row] = starts[wiring.region[row]]
