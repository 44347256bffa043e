"""One rank class that waits for no other, in time: loops are followed until they repeat themselves.

A node starts at the maximum of what it waits for. If in two iterations each node came later by a
constant of its own, and nothing that it waits for moves faster than it does, then the next iteration
moves in the same way, and so do all that follow: they are written down without being followed. Times
that are multiples of one power of two (`GRID_NS`) make this exact; loops with others are followed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flint.backends.chakra.writing.expand import Nodes
from flint.ir.arrays import Float64s
from flint.ir.program import Int64s, Program, RegionKind

#: Prices are rounded to multiples of this, so that sums of them are exact up to two hours.
GRID_NS = 2.0**-10
#: Loops with fewer iterations are followed to their end.
LEAST_TRIPS = 4


def place_alone(
    program: Program, nodes: Nodes, previous: list[int], limits: list[int], duration_ns: Float64s
) -> tuple[Float64s, Float64s]:
    """Start and end of each node, in ns.

    `previous` is the node before it on its stream, `limits` one that has to have begun before; -1
    where there is none. `duration_ns` goes by node.
    """
    placing = _Placing(program, nodes, previous, limits, duration_ns)
    placing.span(0, len(nodes), -1)
    return np.array(placing.start, dtype=np.float64), np.array(placing.end, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class _Repeats:
    """A loop in steady form: from iteration `since` on, each waits for what the last one did.

    Node `owner[e]` of the body waits for node `source[e]` of the same iteration or of one of the
    `lag` before.
    """

    since: int
    lag: int
    owner: Int64s
    source: Int64s


class _Placing:
    def __init__(
        self,
        program: Program,
        nodes: Nodes,
        previous: list[int],
        limits: list[int],
        duration_ns: Float64s,
    ) -> None:
        self.nodes, self.program = nodes, program
        self.first, self.deps = nodes.dep_start.tolist(), nodes.deps.tolist()
        self.previous, self.limits = previous, limits
        self.before, self.bounds = np.array(previous), np.array(limits)
        self.duration = duration_ns.tolist()
        self.is_exact = bool((duration_ns % GRID_NS == 0).all())
        self.start = [0.0] * len(nodes)
        self.end = [0.0] * len(nodes)

    def span(self, low: int, high: int, region: int) -> None:
        """Place nodes `low:high`, one iteration of `region`."""
        rows = self.nodes.row[low:high]
        for loop in self._loops(region):
            where = self.program.regions[loop]
            inside = np.flatnonzero((rows >= where.start) & (rows < where.stop))
            if len(inside):
                begin, stop = low + int(inside[0]), low + int(inside[-1]) + 1
                self._one_by_one(low, begin)
                self._loop(begin, stop, loop)
                rows, low = rows[stop - low :], stop
        self._one_by_one(low, high)

    def _loops(self, region: int) -> list[int]:
        """Loops directly in a region or in a branch of it, in program order."""
        found = []
        for number, where in enumerate(self.program.regions):
            if where.parent == region:
                is_loop = where.kind is RegionKind.LOOP
                found += [number] if is_loop else self._loops(number)
        return sorted(found, key=lambda r: self.program.regions[r].start)

    def _one_by_one(self, low: int, high: int) -> None:
        start, end, deps, first = self.start, self.end, self.deps, self.first
        for node in range(low, high):
            ready = 0.0
            for dep in deps[first[node] : first[node + 1]]:
                ready = max(ready, end[dep])
            if self.previous[node] >= 0:
                ready = max(ready, end[self.previous[node]])
            if self.limits[node] >= 0:
                ready = max(ready, start[self.limits[node]])
            start[node] = ready
            end[node] = ready + self.duration[node]

    def _loop(self, low: int, high: int, region: int) -> None:
        trips = self.program.regions[region].trip_count
        size, rest = divmod(high - low, trips)
        if rest:
            self._one_by_one(low, high)
            return
        # The last iteration may differ: nothing is gathered ahead in it.
        steady_trips = trips - 1
        repeats = (
            self._repeats(low, steady_trips, size)
            if steady_trips >= LEAST_TRIPS and self.is_exact
            else None
        )
        steps: Float64s = np.zeros(0)
        steady = 0
        for turn in range(trips):
            begin = low + turn * size
            self.span(begin, begin + size, region)
            if repeats is None or turn <= repeats.since:
                continue
            now = np.array(self.start[begin : begin + size])
            moved = now - np.array(self.start[begin - size : begin])
            steady = steady + 1 if np.array_equal(moved, steps) else 1
            steps = moved
            slower = (steps[repeats.source] <= steps[repeats.owner]).all()
            if steady >= repeats.lag and slower and turn < steady_trips:
                self._write(begin, size, steady_trips - 1 - turn, steps)
                self.span(high - size, high, region)
                return

    def _write(self, last: int, size: int, turns: int, steps: Float64s) -> None:
        """So many more iterations after the one that begins with node `last`."""
        ahead = np.arange(1, turns + 1)[:, None] * steps
        begin, stop = last + size, last + size * (turns + 1)
        self.start[begin:stop] = (np.array(self.start[last:begin]) + ahead).ravel().tolist()
        self.end[begin:stop] = (np.array(self.end[last:begin]) + ahead).ravel().tolist()

    def _repeats(self, low: int, trips: int, size: int) -> _Repeats | None:
        """How iterations wait for each other, if they do so in the same way long enough."""
        starts = self.nodes.dep_start[low : low + trips * size + 1]
        counts = np.diff(starts).reshape(trips, size)
        since = _last_change(counts[1:] == counts[:-1])
        if since > trips - LEAST_TRIPS:
            return None
        width = int(counts[-1].sum())
        sources = self.nodes.deps[starts[since * size] : starts[-1]].reshape(trips - since, width)
        links = np.concatenate(
            (
                sources,
                self.before[low + since * size : low + trips * size].reshape(-1, size),
                self.bounds[low + since * size : low + trips * size].reshape(-1, size),
            ),
            axis=1,
        )
        inside = links >= low
        step = np.diff(links, axis=0) == np.where(inside[1:], size, 0)
        since += _last_change(step & (inside[1:] == inside[:-1]))
        if since > trips - LEAST_TRIPS:
            return None
        body = np.arange(size)
        owner = np.concatenate((np.repeat(body, counts[-1]), body, body))[inside[-1]]
        relative = links[-1][inside[-1]] - low
        lag = int((trips - 1 - relative // size).max(initial=0))
        return _Repeats(since, max(lag, 1), owner, relative % size)


def _last_change(same: NDArray[np.bool_]) -> int:
    """The first iteration after which all are like the next one; one row a pair of iterations."""
    different = np.flatnonzero(~same.all(axis=1))
    return int(different[-1]) + 1 if len(different) else 0
