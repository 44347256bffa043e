"""Run all ranks under ASTRA-sim's rule of one communication at a time, and see if they end.

A rank issues, of the nodes that are ready, the one with the smallest id, and holds its only
communication slot until that collective or send ends; receives hold none, a send ends when it
arrives, computation takes no time. A collective ends one step after its last member issued it.
Every node is looked at once: the work is that of reading the traces.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flint.backends.chakra.schema import NodeType
from flint.backends.chakra.structure import Structure

#: What a communication is: (type, group, kind and size) or (type, key of the message).
Operation = tuple[NodeType, int, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class RankWork:
    """One rank: its graph, and what each position communicates (positions without do not)."""

    structure: Structure
    operations: Mapping[int, Operation]
    ids: list[int]


@dataclass(frozen=True)
class Deadlock:
    """Ranks that wait for each other. `only_messages`: nothing but receives is involved."""

    rank: int
    node: int
    only_messages: bool
    sentence: str


def find_deadlock(
    ranks: Mapping[int, RankWork], members: Sequence[Sequence[int]]
) -> Deadlock | None:
    """Simulate; None if every rank ends, which is the proof. `members` by group number."""
    world = _World(ranks, members)
    world.run()
    return world.explain()


class _Rank:
    """Where one rank is."""

    __slots__ = ("in_flight", "issued", "left", "ready", "receives", "waits", "work")

    def __init__(self, work: RankWork) -> None:
        self.work = work
        self.waits = list(work.structure.waits)
        self.left = len(self.waits)
        self.ready: list[int] = []
        self.in_flight = -1
        self.issued: dict[int, int] = {}
        self.receives: dict[int, None] = {}


class _World:
    def __init__(self, ranks: Mapping[int, RankWork], members: Sequence[Sequence[int]]) -> None:
        self.ranks = {rank: _Rank(work) for rank, work in ranks.items()}
        self.members = members
        #: Members that have issued the n-th collective of a group: (group, n) -> (rank, position).
        self.gathering: dict[tuple[int, int], list[tuple[int, int]]] = {}
        #: Messages that arrived before their receive was posted, and receives that wait.
        self.arrived: dict[tuple[int, ...], int] = {}
        self.posted: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        self.events: list[tuple[int, int, int]] = []

    def run(self) -> None:
        """Until nothing happens any more."""
        for rank, state in self.ranks.items():
            first = [p for p, count in enumerate(state.waits) if not count]
            self._start(rank, state, first, 0)
            self._issue(rank, state, 0)
        while self.events:
            now, rank, position = heapq.heappop(self.events)
            state = self.ranks[rank]
            self._end(rank, state, position, now)
            while self.events and self.events[0][:2] == (now, rank):
                self._end(rank, state, heapq.heappop(self.events)[2], now)
            self._issue(rank, state, now)

    def _end(self, rank: int, state: _Rank, position: int, now: int) -> None:
        if state.in_flight == position:
            state.in_flight = -1
        state.receives.pop(position, None)
        state.left -= 1
        waits, freed = state.waits, []
        for child in state.work.structure.children[position]:
            waits[child] -= 1
            if not waits[child]:
                freed.append(child)
        if freed:
            self._start(rank, state, freed, now)

    def _start(self, rank: int, state: _Rank, positions: list[int], now: int) -> None:
        """Positions whose dependencies have ended: computation ends at once, with what it frees."""
        operations, children, waits = (
            state.work.operations,
            state.work.structure.children,
            state.waits,
        )
        while positions:
            position = positions.pop()
            operation = operations.get(position)
            if operation is None:
                state.left -= 1
                for child in children[position]:
                    waits[child] -= 1
                    if not waits[child]:
                        positions.append(child)
            elif operation[0] is NodeType.COMM_RECV:
                self._post(rank, state, position, operation[2], now)
            else:
                heapq.heappush(state.ready, position)

    def _post(self, rank: int, state: _Rank, position: int, key: tuple[int, ...], now: int) -> None:
        if self.arrived.get(key, 0):
            self.arrived[key] -= 1
            heapq.heappush(self.events, (now, rank, position))
            return
        state.receives[position] = None
        self.posted.setdefault(key, []).append((rank, position))

    def _issue(self, rank: int, state: _Rank, now: int) -> None:
        if state.in_flight >= 0 or not state.ready:
            return
        position = state.in_flight = heapq.heappop(state.ready)
        node_type, group, key = state.work.operations[position]
        if node_type is NodeType.COMM_SEND:
            heapq.heappush(self.events, (now + 1, rank, position))
            waiting = self.posted.get(key)
            if waiting:
                heapq.heappush(self.events, (now + 1, *waiting.pop(0)))
            else:
                self.arrived[key] = self.arrived.get(key, 0) + 1
            return
        turn = state.issued.get(group, 0)
        state.issued[group] = turn + 1
        gathered = self.gathering.setdefault((group, turn), [])
        gathered.append((rank, position))
        if len(gathered) < len(self.members[group]):
            return
        kinds = {self.ranks[r].work.operations[p][2] for r, p in gathered}
        if len(kinds) == 1:
            del self.gathering[group, turn]
            for r, p in gathered:
                heapq.heappush(self.events, (now + 1, r, p))

    def explain(self) -> Deadlock | None:
        """Follow who waits for whom from the first rank that does not end, until it repeats."""
        stuck = [rank for rank, state in self.ranks.items() if state.left]
        if not stuck:
            return None
        awaited: int | None = min(stuck)
        path: dict[int, int] = {}
        steps: list[tuple[int, bool, str]] = []
        while awaited is not None and awaited not in path:
            path[awaited] = len(path)
            node, following, receives, text = self._waits_for(awaited)
            steps.append((node, receives, text))
            awaited = following
        first = path[awaited] if awaited is not None else 0
        cycle, texts = steps[first:], [text for _, _, text in steps[first:]]
        shown = texts if len(texts) <= 6 else [*texts[:5], f"... {len(texts) - 5} more"]
        only_messages = all(receives for _, receives, _ in cycle)
        return Deadlock(list(path)[first], cycle[0][0], only_messages, "; ".join(shown))

    def _waits_for(self, rank: int) -> tuple[int, int | None, bool, str]:
        """Node that holds `rank` up, the rank it waits for, whether by a receive, in words."""
        state = self.ranks[rank]
        ids, operations = state.work.ids, state.work.operations
        if state.in_flight >= 0:
            node, group = ids[state.in_flight], operations[state.in_flight][1]
            turn = state.issued[group] - 1
            there = {r for r, _ in self.gathering[group, turn]}
            absent = [r for r in self.members[group] if r not in there]
            if not absent:
                text = (
                    f"rank {rank} holds its slot for node {node}, where its group met for another"
                )
                return node, None, False, text
            text = f"rank {rank} holds its slot for node {node} until rank {absent[0]} joins"
            return node, absent[0], False, text
        for position in state.receives:
            source = operations[position][2][1]
            text = f"rank {rank} waits in node {ids[position]} for a message of rank {source}"
            return ids[position], source, True, text
        return -1, None, False, f"rank {rank} has ended"
