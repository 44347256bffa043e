"""Rows whose result nothing needs before a loop has ended run after that loop."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from flint.ir.columns import ROW_COLUMNS, carried, edges, rewired, yielded
from flint.ir.program import Int64s, Kind, Program
from flint.passes.base import Pass


@dataclass(frozen=True)
class DelayPastLoops(Pass):
    """What is read only after a loop or branch runs after it; what one begins with, just before it.

    XLA's schedulers start at the results and go back: the gradient of an output projection, which
    only the optimizer reads, runs after the loop that goes back through the layers, and what it is
    made of waits. Zeros that a loop's sums begin as are filled when it begins.

    Rows keep their order between two loops. Arguments and what a loop carries stay where they are.
    """

    name: ClassVar[str] = "delay-past-loops"

    def apply(self, program: Program) -> Program:
        """Return the program in that order."""
        if not program.regions:
            return program
        order = _Order(program)
        return moved(program, np.array(order.rows, dtype=np.int64), order.spans)


class _Order:
    """The new order, found region by region."""

    def __init__(self, program: Program) -> None:
        self._count = len(program)
        stays = (program.kind == Kind.PARAMETER) | carried(program) | yielded(program)
        self._stays: list[bool] = stays.tolist()
        self._readers = self._links(program)
        self._inside = units(program)
        self.rows: list[int] = []
        #: (start, stop) of each region in the new order.
        self.spans = [(0, 0)] * len(program.regions)
        self._emit(-1)

    def _links(self, program: Program) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in range(self._count + len(program.regions))]
        reader, read = unit_edges(program)
        for owner, target in zip(reader.tolist(), read.tolist(), strict=True):
            if owner != target:
                found[target].append(owner)
        return found

    def _emit(self, region: int) -> None:
        for unit in self._ordered(self._inside[region]):
            if unit < self._count:
                self.rows.append(unit)
                continue
            start = len(self.rows)
            self._emit(unit - self._count)
            self.spans[unit - self._count] = (start, len(self.rows))

    def _ordered(self, inside: list[int]) -> list[int]:
        """The units of one region, by how many loops and branches come before each."""
        loops = np.cumsum([unit >= self._count for unit in inside])
        before = {
            unit: int(n) - (unit >= self._count) for unit, n in zip(inside, loops, strict=True)
        }
        for unit in reversed(inside):
            if unit < self._count and not self._stays[unit]:
                needed = [before[r] for r in self._readers[unit] if r in before]
                before[unit] = min(needed, default=before[unit])
        return sorted(inside, key=lambda unit: (before[unit], unit >= self._count))


# The units of a region, which an order is of: rows, and loops and branches as a whole.
#
# Unit u < n is row u of a program of n rows, unit n + j is region j.


def units(program: Program) -> dict[int, list[int]]:
    """The units directly inside each region (-1: the step), in program order."""
    count = len(program)
    found: dict[int, list[tuple[int, int]]] = {i: [] for i in range(-1, len(program.regions))}
    for row, region in enumerate(program.region.tolist()):
        found[region].append((row, row))
    for index, inner in enumerate(program.regions):
        found[inner.parent].append((inner.start, count + index))
    return {region: [unit for _, unit in sorted(units)] for region, units in found.items()}


def unit_edges(program: Program) -> tuple[Int64s, Int64s]:
    """Each dependency (reader, read) between units of the innermost region that holds both ends."""
    owner, target = edges(program)
    reader, read = owner.copy(), target.copy()
    chains = [*_chains(program), ()]
    regions = np.stack([program.region[owner], program.region[target]])
    for pair in np.unique(regions, axis=1).T.tolist():
        at = (regions[0] == pair[0]) & (regions[1] == pair[1])
        for side, ends in zip(pair, (reader, read), strict=True):
            below = len([r for r in chains[pair[0]] if r in chains[pair[1]]])
            if len(chains[side]) > below:
                ends[at] = len(program) + chains[side][below]
    return reader, read


def _chains(program: Program) -> list[tuple[int, ...]]:
    """For each region those around it, from outside, and itself."""
    found: list[tuple[int, ...]] = []
    for index, region in enumerate(program.regions):
        found.append((*(found[region.parent] if region.parent >= 0 else ()), index))
    return found


def moved(program: Program, order: Int64s, spans: list[tuple[int, int]]) -> Program:
    """A copy in which row i is row order[i], and region j is rows spans[j]."""
    place = np.empty(len(program) + 1, dtype=np.int64)  # the last entry answers for -1
    place[order] = np.arange(len(program))
    place[-1] = -1
    columns = {name: getattr(program, name)[order] for name in ROW_COLUMNS}
    columns["alias"] = place[columns["alias"]].astype(np.int32)
    regions = tuple(
        replace(
            region,
            start=start,
            stop=stop,
            carries=tuple((int(place[row]), int(place[made])) for row, made in region.carries),
        )
        for region, (start, stop) in zip(program.regions, spans, strict=True)
    )
    owner, target = edges(program)
    return rewired(replace(program, **columns, regions=regions), (place[owner], place[target]))
