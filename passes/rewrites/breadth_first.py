"""Order rows as a runtime with many threads starts them: first ready, first started."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flint.ir.columns import carried, is_any
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Int64s, Program
from flint.passes.base import Pass
from flint.passes.rewrites.combine_collectives import independent
from flint.passes.rewrites.delay_past_loops import moved, unit_edges, units


@dataclass(frozen=True)
class BreadthFirst(Pass):
    """Rows in the order of a queue: a row enters it once all that it reads has left it.

    XLA for CPUs orders kernels so, to keep its threads busy (`BFScheduler`, the default of
    `xla_cpu_enable_concurrency_optimized_scheduler`). Compilers for accelerators do not: this order
    starts weight gradients, gathers and recomputation early, which takes memory.

    A loop or branch waits in the queue as a whole; inside it, carried values come first. What
    the step returns comes last.

    With `together`, all-reduces that do not need each other start at once, when what all of them
    read is there: XLA joins them.
    """

    together: bool = False
    name: ClassVar[str] = "breadth-first"

    def apply(self, program: Program) -> Program:
        """Return the program in that order."""
        sets = independent(program, Collective.ALL_REDUCE) if self.together else []
        queues = _Queues(program, sets)
        return moved(program, np.array(queues.rows, dtype=np.int64), queues.spans)


class _Queues:
    """The new order, found region by region. Unit u < n is row u, unit n + j is region j.

    Units after those are points at which the rows of a set are ready together.
    """

    def __init__(self, program: Program, together: list[list[int]]) -> None:
        self.program = program
        self.sets = together
        self.count = len(program)
        self.late: set[int] = set(np.flatnonzero(is_any(program, OpClass.RESULT)).tolist())
        self.early: set[int] = set(np.flatnonzero(carried(program)).tolist())
        self.readers, self.waits = self._links()
        self.rows: list[int] = []
        #: (start, stop) of each region in the new order.
        self.spans = [(0, 0)] * len(program.regions)
        self._inside = units(program)
        for number, rows in enumerate(together):
            point = self.count + len(program.regions) + number
            self._inside[int(program.region[rows[0]])].append(point)
        self._emit(-1)

    def _links(self) -> tuple[list[list[int]], list[int]]:
        """Which units read each unit, and how many units each one reads."""
        total = self.count + len(self.program.regions) + len(self.sets)
        reader, read = self._waiting(*unit_edges(self.program))
        keys = np.unique(read[reader != read] * total + reader[reader != read])
        readers: list[list[int]] = [[] for _ in range(total)]
        for source, owner in zip((keys // total).tolist(), (keys % total).tolist(), strict=True):
            readers[source].append(owner)
        return readers, np.bincount(keys % total, minlength=total).tolist()

    def _waiting(self, reader: Int64s, read: Int64s) -> tuple[Int64s, Int64s]:
        """The edges, of which those to rows of a set go through its point."""
        point = np.arange(self.count + len(self.program.regions))
        first = len(point)
        for number, rows in enumerate(self.sets):
            point[rows] = first + number
        waits = [(row, first + number) for number, rows in enumerate(self.sets) for row in rows]
        pairs = np.array(waits, dtype=np.int64).reshape(-1, 2)
        return np.append(point[reader], pairs[:, 0]), np.append(read, pairs[:, 1])

    def _emit(self, region: int) -> None:
        """Append the rows of a region, and of those inside it."""
        for unit in self._queued(self._inside[region]):
            if unit < self.count:
                self.rows.append(unit)
                continue
            start = len(self.rows)
            self._emit(unit - self.count)
            self.spans[unit - self.count] = (start, len(self.rows))

    def _queued(self, units: list[int]) -> list[int]:
        ready = [u for u in units if not self.waits[u] and u not in self.late]
        queue = deque(sorted(ready, key=lambda u: u not in self.early))
        found = []
        while queue:
            unit = queue.popleft()
            if unit < self.count + len(self.program.regions):
                found.append(unit)
            for reader in self.readers[unit]:
                self.waits[reader] -= 1
                if not self.waits[reader] and reader not in self.late:
                    queue.append(reader)
        return found + [u for u in units if u in self.late]
