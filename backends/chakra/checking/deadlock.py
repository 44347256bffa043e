"""Run all ranks under ASTRA-sim's rule of one communication at a time, and see if they end.

A rank issues, of the nodes that are ready, the one with the smallest id, and holds its only
communication slot until that collective or send ends; receives hold none, a send ends when it
arrives, computation takes no time. A collective ends one step after its last member issued it.
Ranks that are in step (see `partition`) are simulated once, as one *actor*. Every node of an actor
is looked at once.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from flint.backends.chakra.checking.cohorts import Cohort
from flint.backends.chakra.checking.messages import AllMessages
from flint.backends.chakra.checking.partition import Uses, find_parts, make_uses, meetings
from flint.backends.chakra.reading.trace_class import AT, COMM_KIND, COMM_SIZE, COMM_TAG
from flint.backends.chakra.schema import NodeType
from flint.ir.program import Int64s

#: What stands for a message: (number of its edge, tag, size).
_Key = tuple[int, int, int]


@dataclass(frozen=True)
class Deadlock:
    """Ranks that wait for each other. `only_messages`: nothing but receives is involved."""

    rank: int
    node: int
    only_messages: bool
    sentence: str


class CommunicationStep(NamedTuple):
    """What a position of a cohort communicates: (kind, size) of a collective, (tag, size) else."""

    type: NodeType
    label: int
    key: tuple[int, int]


@dataclass(frozen=True, eq=False)
class Situation:
    """All ranks and what they have to do with each other. They have no findings.

    `members` are those of each group by its number.
    """

    cohorts: Sequence[Cohort]
    exchange: AllMessages
    members: Sequence[Sequence[int]]
    world: int


def find_deadlock(situation: Situation, parts: Int64s | None = None) -> Deadlock | None:
    """Simulate; None if every rank ends, which is the proof.

    `parts` are those of `find_parts` unless they are given; parts of one rank each are always
    right.
    """
    if parts is None:
        s = situation
        parts = find_parts(s.cohorts, s.exchange, s.members, s.world)
    world = _Actors(situation, parts)
    world.run()
    return world.explain()


@dataclass(frozen=True, eq=False)
class _Actor:
    """One rank for all of its part: numbers of the meetings and edges by label."""

    cohort: Cohort
    steps: dict[int, CommunicationStep]
    meetings: list[int]
    targets: list[int]
    sources: list[int]

    def edge(self, step: CommunicationStep) -> _Key:
        """What a send and its receive have in common."""
        edges = self.targets if step.type is NodeType.COMM_SEND else self.sources
        return (edges[step.label], *step.key)


class _ActorState:
    """Where one actor is."""

    __slots__ = ("actor", "in_flight", "issued", "left", "ready", "receives", "waits")

    def __init__(self, actor: _Actor) -> None:
        self.actor = actor
        self.waits: list[int] = actor.cohort.nodes.structure.waits.tolist()
        self.left = len(self.waits)
        self.ready: list[int] = []
        self.in_flight = -1
        self.issued: dict[int, int] = {}
        self.receives: set[int] = set()


class _Actors:
    def __init__(self, situation: Situation, parts: Int64s) -> None:
        self.situation = situation
        self.parts = parts
        uses = make_uses(situation.cohorts, situation.exchange, situation.world)
        self.meeting_of = meetings(parts, uses)
        self.sizes = _meeting_sizes(situation, parts, uses, self.meeting_of)
        self.states = [
            _ActorState(actor) for actor in _actors(situation, parts, uses, self.meeting_of)
        ]
        #: Actors that have issued the n-th collective of a meeting: (meeting, n) -> (actor,
        #: position).
        self.gathering: dict[tuple[int, int], list[tuple[int, int]]] = {}
        #: When messages arrive that were sent before their receive was posted; receives that wait.
        self.arrivals: dict[_Key, deque[int]] = {}
        self.posted: dict[_Key, list[tuple[int, int]]] = {}
        self.events: list[tuple[int, int, int]] = []

    def run(self) -> None:
        """Until nothing happens any more."""
        for number, state in enumerate(self.states):
            first = [p for p, count in enumerate(state.waits) if not count]
            self._start(number, state, first, 0)
            self._issue(number, state, 0)
        while self.events:
            now, number, position = heapq.heappop(self.events)
            state = self.states[number]
            self._end(number, state, position, now)
            while self.events and self.events[0][:2] == (now, number):
                self._end(number, state, heapq.heappop(self.events)[2], now)
            self._issue(number, state, now)

    def _end(self, number: int, state: _ActorState, position: int, now: int) -> None:
        if state.in_flight == position:
            state.in_flight = -1
        state.receives.discard(position)
        state.left -= 1
        waits, freed = state.waits, []
        start, children = state.actor.cohort.nodes.structure.adjacency
        for child in children[start[position] : start[position + 1]]:
            waits[child] -= 1
            if not waits[child]:
                freed.append(child)
        if freed:
            self._start(number, state, freed, now)

    def _start(self, number: int, state: _ActorState, positions: list[int], now: int) -> None:
        """Positions whose dependencies have ended: computation ends at once, with what it frees."""
        steps, waits = state.actor.steps, state.waits
        start, children = state.actor.cohort.nodes.structure.adjacency
        while positions:
            position = positions.pop()
            step = steps.get(position)
            if step is None:
                state.left -= 1
                for child in children[start[position] : start[position + 1]]:
                    waits[child] -= 1
                    if not waits[child]:
                        positions.append(child)
            elif step.type is NodeType.COMM_RECV:
                self._post(number, state, position, state.actor.edge(step), now)
            else:
                heapq.heappush(state.ready, position)

    def _post(self, number: int, state: _ActorState, position: int, key: _Key, now: int) -> None:
        arrivals = self.arrivals.get(key)
        if arrivals:
            heapq.heappush(self.events, (max(now, arrivals.popleft()), number, position))
            return
        state.receives.add(position)
        self.posted.setdefault(key, []).append((number, position))

    def _issue(self, number: int, state: _ActorState, now: int) -> None:
        if state.in_flight >= 0 or not state.ready:
            return
        position = state.in_flight = heapq.heappop(state.ready)
        step = state.actor.steps[position]
        if step.type is NodeType.COMM_SEND:
            self._send(number, position, state.actor.edge(step), now)
            return
        meeting = state.actor.meetings[step.label]
        turn = state.issued.get(meeting, 0)
        state.issued[meeting] = turn + 1
        gathered = self.gathering.setdefault((meeting, turn), [])
        gathered.append((number, position))
        if len(gathered) < self.sizes[meeting]:
            return
        if len({self.states[n].actor.steps[p].key for n, p in gathered}) == 1:
            del self.gathering[meeting, turn]
            for n, p in gathered:
                heapq.heappush(self.events, (now + 1, n, p))

    def _send(self, number: int, position: int, key: _Key, now: int) -> None:
        heapq.heappush(self.events, (now + 1, number, position))
        waiting = self.posted.get(key)
        if waiting:
            heapq.heappush(self.events, (now + 1, *waiting.pop(0)))
        else:
            self.arrivals.setdefault(key, deque()).append(now + 1)

    def explain(self) -> Deadlock | None:
        """Follow who waits for whom from the first rank that does not end, until it repeats."""
        is_stuck = np.array([state.left > 0 for state in self.states], dtype=np.bool_)
        stuck = np.flatnonzero(is_stuck[self.parts]) if len(is_stuck) else self.parts[:0]
        if not len(stuck):
            return None
        awaited: int | None = int(stuck[0])
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
        if rank >= self.situation.world:
            return -1, None, False, f"there is no rank {rank}"
        state = self.states[self.parts[rank]]
        cohort, steps = state.actor.cohort, state.actor.steps
        row = int(np.searchsorted(cohort.ranks, rank))
        if state.in_flight >= 0:
            step = steps[state.in_flight]
            group = int(cohort.collectives.values[row, step.label])
            return self._waits_in(rank, cohort.nodes.id_at(state.in_flight), group, state)
        for position in sorted(state.receives):
            source = int(cohort.receives.values[row, steps[position].label])
            node = cohort.nodes.id_at(position)
            text = f"rank {rank} waits in node {node} for a message of rank {source}"
            return node, source, True, text
        return -1, None, False, f"rank {rank} has ended"

    def _waits_in(
        self, rank: int, node: int, group: int, state: _ActorState
    ) -> tuple[int, int | None, bool, str]:
        """The same for a rank that has issued a collective."""
        meeting = int(self.meeting_of[group])
        turn = state.issued[meeting] - 1
        there = {number for number, _ in self.gathering[meeting, turn]}
        members = self.situation.members[group]
        absent = [r for r in members if r >= len(self.parts) or self.parts[r] not in there]
        if not absent:
            text = f"rank {rank} holds its slot for node {node}, where its group met for another"
            return node, None, False, text
        text = f"rank {rank} holds its slot for node {node} until rank {absent[0]} joins"
        return node, absent[0], False, text


def _meeting_sizes(
    situation: Situation, parts: Int64s, uses: Uses, meeting_of: Int64s
) -> list[int]:
    """How many actors each meeting waits for: never fewer than the group lists."""
    sizes: dict[int, int] = {}
    is_alone = len(np.unique(parts)) == len(parts)
    who = np.unique(np.column_stack((uses.group, parts[uses.group_rank])), axis=0)
    counts = np.bincount(who[:, 0], minlength=len(meeting_of)).tolist()
    for group, meeting in enumerate(meeting_of.tolist()):
        count = len(situation.members[group]) if is_alone else counts[group]
        sizes[meeting] = max(count, sizes.get(meeting, 0))
    return [sizes[m] for m in range(len(sizes))]


def _actors(situation: Situation, parts: Int64s, uses: Uses, meeting_of: Int64s) -> list[_Actor]:
    """One actor for each part, of its first rank."""
    _, firsts = np.unique(parts, return_index=True)
    edges = uses.edges
    keys = np.column_stack((parts[edges[:, 0]], edges[:, 1]))
    _, number = np.unique(keys, axis=0, return_inverse=True) if len(keys) else (None, parts[:0])
    number = number.reshape(-1)
    targets = _by_rank(edges[:, 0], edges[:, 1], number, firsts)
    sources = _by_rank(edges[:, 2], edges[:, 3], number, firsts)
    steps: dict[int, dict[int, CommunicationStep]] = {}
    actors = []
    for rank in firsts.tolist():
        index = int(uses.cohort[rank])
        cohort = situation.cohorts[index]
        row = int(np.searchsorted(cohort.ranks, rank))
        known = steps.get(index)
        if known is None:
            known = steps[index] = _steps(cohort)
        met = meeting_of[cohort.collectives.values[row]].tolist()
        actors.append(_Actor(cohort, known, met, targets.get(rank, []), sources.get(rank, [])))
    return actors


def _by_rank(rank: Int64s, label: Int64s, number: Int64s, wanted: Int64s) -> dict[int, list[int]]:
    """Numbers of edges by label, of the ranks that are wanted."""
    inside = np.flatnonzero(np.isin(rank, wanted))
    inside = inside[np.lexsort((label[inside], rank[inside]))]
    found: dict[int, list[int]] = {}
    for at, edge in zip(rank[inside].tolist(), number[inside].tolist(), strict=True):
        found.setdefault(at, []).append(edge)
    return found


def _steps(cohort: Cohort) -> dict[int, CommunicationStep]:
    """What each position of a cohort communicates."""
    steps: dict[int, CommunicationStep] = {}
    types = (NodeType.COMM_COLL, NodeType.COMM_SEND, NodeType.COMM_RECV)
    columns = ((AT, COMM_KIND, COMM_SIZE), (AT, COMM_TAG, COMM_SIZE), (AT, COMM_TAG, COMM_SIZE))
    for node_type, part, wanted in zip(types, cohort.parts, columns, strict=True):
        lines = part.lines[:, wanted].tolist()
        for (position, *key), label in zip(lines, part.label.tolist(), strict=True):
            steps[position] = CommunicationStep(node_type, label, (key[0], key[1]))
    return steps
