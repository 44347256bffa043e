"""Rank classes that wait for each other, in time: what follows on a stream without waiting is one run.

A node that waits for nothing but the one before it on its stream begins when that ends. Such nodes
are a run with the first of them, and only runs are followed. What a node waits for on another stream
is omitted where an earlier node of its own stream waited for that or for a later one: ends on a
stream only grow. Times that are multiples of `GRID_NS` make sums exact in any order, so that the
result is that of following each node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flint.backends.chakra.writing.expand import Nodes
from flint.backends.cost.simulate.steady_state import GRID_NS
from flint.ir.arrays import Float64s, Mask
from flint.ir.program import Int64s, Kind, Program

#: Sums of multiples of GRID_NS are exact below.
MOST_NS = 2.0**42


@dataclass(frozen=True, eq=False)
class Lane:
    """A rank class. `stream`, `limits` and `turn` go by node, the others as in `ClassWork`."""

    program: Program
    nodes: Nodes
    stream: Int64s
    duration_ns: Float64s
    limits: Sequence[int]
    turn: Sequence[int]
    peers: Mapping[int, int]
    together: Mapping[int, tuple[int, ...]]
    recorded: bool


def is_exact(lanes: Sequence[Lane]) -> bool:
    """Whether all times are multiples of `GRID_NS`, and none of their sums is too large."""
    total = 0.0
    for lane in lanes:
        if (lane.duration_ns % GRID_NS != 0).any():
            return False
        total += float(lane.duration_ns[lane.nodes.row].sum())
    return total < MOST_NS


def place_together(lanes: Sequence[Lane]) -> list[tuple[Float64s, Float64s]] | None:
    """Start and end of each node of each class, in ns; None if they wait for each other forever.

    The times must be `is_exact`.
    """
    return _World([_Runs(lane) for lane in lanes]).placed()


class _Runs:
    """The runs of a class; run i is of nodes in the order of their stream, streams one by one."""

    def __init__(self, lane: Lane) -> None:
        self.lane, count = lane, len(lane.nodes)
        row = lane.nodes.row
        self.order = np.argsort(lane.stream, kind="stable")
        begins = np.ones(count, dtype=np.bool_)
        begins[1:] = np.diff(lane.stream[self.order]) != 0
        self.position = np.empty(count, dtype=np.int64)
        self.position[self.order] = np.arange(count)
        owner, source, is_start = self._waits()
        received = lane.program.kind[row] == Kind.RECV
        heads = received.copy()
        heads[owner] = True
        heads |= np.isin(row, np.array(list(lane.together), dtype=np.int64))
        head = heads[self.order] | begins
        head[1:] |= received[self.order][:-1]
        self._number(head, begins)
        self._measure(received, head)
        #: For runs that wait: runs of other streams, and how long after their begin.
        self.waits: dict[int, list[tuple[int, float]]] = {}
        offset = np.where(is_start, self.starts[source], self.ends[source]).tolist()
        pairs = zip(self.run[owner].tolist(), self.run[source].tolist(), offset, strict=True)
        for run, waited, after in pairs:
            self.waits.setdefault(run, []).append((waited, after))

    def _waits(self) -> tuple[Int64s, Int64s, Mask]:
        """What nodes wait for on other streams and is not said by earlier nodes; whether its start."""
        lane, counts = self.lane, np.diff(self.lane.nodes.dep_start)
        limits = np.asarray(lane.limits, dtype=np.int64)
        limited = np.flatnonzero(limits >= 0)
        owner = np.append(np.repeat(np.arange(len(counts)), counts), limited)
        source = np.append(lane.nodes.deps, limits[limited])
        is_start = np.arange(len(owner)) >= len(lane.nodes.deps)
        other = lane.stream[owner] != lane.stream[source]
        owner, source, is_start = owner[other], source[other], is_start[other]
        streams = int(lane.stream.max(initial=0)) + 1
        group = (lane.stream[owner] * streams + lane.stream[source]) * 2 + is_start
        order = np.lexsort((self.position[owner], group))
        far = group[order] * (len(counts) + 1) + self.position[source[order]]
        new = np.ones(len(order), dtype=np.bool_)
        new[1:] = far[1:] > np.maximum.accumulate(far)[:-1]
        kept = order[new]
        return owner[kept], source[kept], is_start[kept]

    def _number(self, head: Mask, begins: Mask) -> None:
        self.run = np.empty(len(head), dtype=np.int64)
        self.run[self.order] = np.cumsum(head) - 1
        self.count = int(head.sum())
        #: The first run of each stream, and the number of runs.
        self.bounds = [*self.run[self.order[begins]].tolist(), self.count]

    def _measure(self, received: Mask, head: Mask) -> None:
        """Starts and ends of nodes from where their run begins, the length of runs."""
        lane, row = self.lane, self.lane.nodes.row
        taken = lane.duration_ns[row].copy()
        from_others = np.isin(row, np.array(list(lane.peers), dtype=np.int64))
        taken[received & (from_others | (not lane.recorded))] = 0.0
        ends = np.cumsum(taken[self.order])
        begun = (ends - taken[self.order])[head]
        self.starts, self.ends = np.empty(len(row)), np.empty(len(row))
        self.starts[self.order] = ends - taken[self.order] - begun[self.run[self.order]]
        self.ends[self.order] = self.starts[self.order] + taken[self.order]
        last = np.append(head[1:], True)
        self.length: list[float] = self.ends[self.order[last]].tolist() if len(row) else []

    def nodes_of(self, kind: Kind) -> list[int]:
        return np.flatnonzero(self.lane.program.kind[self.lane.nodes.row] == kind).tolist()


class _World:
    """All classes; runs and streams have numbers over all of them.

    `base` is when a run begins, a received message when it is there; below 0 before that is known.
    """

    def __init__(self, classes: Sequence[_Runs]) -> None:
        self.classes = classes
        self.first = np.cumsum([0, *(c.count for c in classes)]).tolist()
        self.base = [-1.0] * self.first[-1]
        self.ready = [0.0] * self.first[-1]
        self.length = [length for c in classes for length in c.length]
        self.waits = {
            first + run: [(first + waited, after) for waited, after in waits]
            for first, c in zip(self.first, classes, strict=False)
            for run, waits in c.waits.items()
        }
        self.heads, self.stops, self.free = list[int](), list[int](), list[float]()
        for first, c in zip(self.first, classes, strict=False):
            self.heads += [first + at for at in c.bounds[:-1]]
            self.stops += [first + at for at in c.bounds[1:]]
        self.free = [0.0] * len(self.heads)
        #: What a run sends: the message's key and when it has left, from the run's begin.
        self.sends: dict[int, list[tuple[object, float]]] = {}
        self.receives: dict[int, object] = {}
        self.meets: dict[int, tuple[object, int]] = {}
        for number in range(len(classes)):
            self._talk(number)
        self.arrived: dict[object, float] = {}
        #: When each run of a meeting could begin.
        self.met: dict[object, dict[int, float]] = {}
        #: Streams that wait for a run, a message or a meeting.
        self.waiting: dict[object, list[int]] = {}

    def _talk(self, number: int) -> None:
        c, first = self.classes[number], self.first[number]
        rows, lane = c.lane.nodes.row.tolist(), c.lane
        channel = lane.program.channel.tolist()
        for node in c.nodes_of(Kind.SEND):
            key = (number, channel[rows[node]], lane.turn[node])
            sent = self.sends.setdefault(first + int(c.run[node]), [])
            sent.append((key, float(c.ends[node])))
        for node in c.nodes_of(Kind.RECV):
            if (source := lane.peers.get(rows[node])) is not None:
                key = (source, channel[rows[node]], lane.turn[node])
                self.receives[first + int(c.run[node])] = key
        for node in c.nodes_of(Kind.COLLECTIVE) if lane.together else ():
            if (met := lane.together.get(rows[node])) is not None:
                group = lane.program.met_over(rows[node])
                # groups over the same axes may be of other classes
                self.meets[first + int(c.run[node])] = ((group, met, lane.turn[node]), len(met))

    def placed(self) -> list[tuple[Float64s, Float64s]] | None:
        """Follow all streams as far as they come."""
        awake = list(range(len(self.heads)))[::-1]
        while awake:
            self._advance(awake.pop(), awake)
        if self.heads != self.stops:
            return None
        return [self._times(number) for number in range(len(self.classes))]

    def _advance(self, stream: int, awake: list[int]) -> None:
        """Place the runs of a stream up to one that waits; what waited for them is awake again."""
        head, stop, free = self.heads[stream], self.stops[stream], self.free[stream]
        while head < stop:
            begin = self._begin(head, free, stream, awake)
            if begin < 0:
                break
            self.base[head] = begin
            free = begin + self.length[head]
            for key, after in self.sends.get(head, ()):
                self.arrived[key] = begin + after
                awake += self.waiting.pop(key, ())
            awake += self.waiting.pop(head, ())
            head += 1
        self.heads[stream], self.free[stream] = head, free

    def _begin(self, run: int, free: float, stream: int, awake: list[int]) -> float:
        """The `base` of a run whose stream is free at `free`; -1 while it waits."""
        ready, base = free, self.base
        for waited, after in self.waits.get(run, ()):
            if base[waited] < 0:
                self.waiting.setdefault(waited, []).append(stream)
                return -1.0
            ready = max(ready, base[waited] + after)
        self.ready[run] = ready
        if run in self.receives:
            key = self.receives[run]
            if key not in self.arrived:
                self.waiting.setdefault(key, []).append(stream)
                return -1.0
            return max(ready, self.arrived[key])
        return self._meeting(run, ready, stream, awake) if run in self.meets else ready

    def _meeting(self, run: int, ready: float, stream: int, awake: list[int]) -> float:
        meeting, size = self.meets[run]
        here = self.met.setdefault(meeting, {})
        here[run] = ready
        if len(here) < size:
            self.waiting.setdefault(meeting, []).append(stream)
            return -1.0
        awake += self.waiting.pop(meeting, ())
        return max(here.values())

    def _times(self, number: int) -> tuple[Float64s, Float64s]:
        c, first = self.classes[number], self.first[number]
        base = np.array(self.base[first : first + c.count])[c.run]
        start, end = base + c.starts, base + c.ends
        ready = self.ready[first : first + c.count]
        for node in c.nodes_of(Kind.RECV):
            start[node] = ready[int(c.run[node])]
        return start, end
