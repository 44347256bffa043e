"""Rows whose result nothing needs before a loop has ended run after that loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flint.ir.columns import carried, yielded
from flint.ir.program import Kind, Program
from flint.passes.base import Pass
from flint.passes.rewrites.units import moved, unit_edges, units


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
        """Which units read each unit."""
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
