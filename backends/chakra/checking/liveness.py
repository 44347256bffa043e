"""Whether a set of traces ends whatever its computations and messages last, or ever ends.

ASTRA-sim gives a rank one slot for collectives and sends. Traces end at any times if

- dependencies put the collectives of each rank in one order, and
- there is no circle in what all ranks wait for: dependencies, collectives for all their members, receives
  for their send, and a send for the collectives of its rank that may have the slot before it.

For then, of all that has not ended, there is a collective or send that waits for nothing: nothing else
can have its slot, so it begins, on all members. Where there is a circle without the slots, the traces
never end. What lies between depends on times.

Ranks that are alike (see `partition`) are one *actor*: a circle of actors is one of ranks, and a circle of
ranks is one of actors. Every node of an actor is looked at once.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from flint.backends.chakra.checking.cohorts import Cohort, Labelled
from flint.backends.chakra.checking.messages import AllMessages
from flint.backends.chakra.checking.partition import (
    Uses,
    find_parts,
    make_uses,
    meetings,
    participants,
)
from flint.backends.chakra.reading.slot_order import path_counts
from flint.backends.chakra.reading.trace_class import AT, COMM_SIZE, COMM_TAG, topological_order
from flint.backends.chakra.schema import NodeType
from flint.ir.program import Int64s

#: What stands for a message: (number of its edge, tag, size, how manieth of these).
_Key = tuple[int, int, int, int]
#: Messages of equal ends, tag and size whose order is looked at; with more kinds it is not proved.
_MOST_KINDS = 32


@dataclass(frozen=True)
class Deadlock:
    """Ranks that wait for each other. `only_messages`: nothing but receives is involved."""

    rank: int
    node: int
    only_messages: bool
    sentence: str


@dataclass(frozen=True)
class Doubt:
    """Two nodes (ids) of a rank whose order durations decide, so that others may disagree."""

    rank: int
    nodes: tuple[int, int]

    @property
    def sentence(self) -> str:
        """For people."""
        one, other = self.nodes
        return (
            f"durations decide which of nodes {one} and {other} of rank {self.rank} "
            "communicates first, because neither waits for the other"
        )


class CommunicationStep(NamedTuple):
    """What a position of a cohort communicates.

    `key` is (how manieth of its group) of a collective, (tag, size, how manieth of these) of a message.
    """

    type: NodeType
    label: int
    key: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Situation:
    """All ranks and what they have to do with each other. They have no findings.

    `members` are those of each group by its number.
    """

    cohorts: Sequence[Cohort]
    exchange: AllMessages
    members: Sequence[Sequence[int]]
    world: int

    @cached_property
    def parts(self) -> Int64s:
        """Of each rank the number of those that are alike."""
        return find_parts(self.cohorts, self.exchange, self.members, self.world)


def examine(situation: Situation, parts: Int64s | None = None) -> Deadlock | Doubt | None:
    """None where the traces end at any times, a `Deadlock` where they never end.

    A `Doubt` where that depends on times, or where this proof is too weak: it may be that either
    order is fine. `parts` are those of the situation unless they are given; parts of one rank each are
    always right.
    """
    found = _unordered(situation.cohorts)
    if found is not None:
        return found
    if parts is None:
        parts = situation.parts
    deadlock = _deadlock(situation, parts)
    if deadlock or not any(cohort.nodes.slot_order.held_up for cohort in situation.cohorts):
        return deadlock
    world = _Actors(situation, parts, with_slots=True)
    world.run()
    return world.doubt()


def examine_unbuffered(situation: Situation) -> Deadlock | None:
    """Ranks that wait for each other where a send ends no sooner than its receive begins, as in NCCL.

    Only for traces that `examine` has proved to end.
    """
    if not any(_is_awaited(cohort) for cohort in situation.cohorts):
        return None
    return _deadlock(situation, situation.parts, is_buffered=False)


def _deadlock(situation: Situation, parts: Int64s, *, is_buffered: bool = True) -> Deadlock | None:
    """What never ends if nothing has to wait for the slot."""
    world = _Actors(situation, parts, with_slots=False, is_buffered=is_buffered)
    world.run()
    if world.meets_itself and world.explain():  # each rank's own reason, then
        alone = np.arange(situation.world)
        world = _Actors(situation, alone, with_slots=False, is_buffered=is_buffered)
        world.run()
    return world.explain()


def _is_awaited(cohort: Cohort) -> bool:
    """Whether anything waits for a send."""
    start, _ = cohort.nodes.structure.adjacency
    sends = cohort.sends.lines[:, AT]
    return any(start[at + 1] > start[at] for at in sends.tolist())


def _unordered(cohorts: Sequence[Cohort]) -> Doubt | None:
    """Two collectives, or two equal messages, of which neither waits for the other."""
    found = []
    for cohort in cohorts:
        pair = cohort.nodes.slot_order.unordered or _unordered_messages(cohort)
        if pair is not None:
            one, other = map(cohort.nodes.id_at, pair)
            found.append(Doubt(int(cohort.ranks[0]), (one, other)))
    return min(found, key=lambda d: d.rank, default=None)


def _unordered_messages(cohort: Cohort) -> tuple[int, int] | None:
    """Two sends or receives of equal ends, tag and size of which neither waits for the other.

    They are matched in the order in which they begin.
    """
    structure = cohort.nodes.structure
    for part in (cohort.sends, cohort.receives):
        kinds = [places for places in _by_key(part).values() if len(places) > 1]
        for places in kinds:
            counted = set(places)
            if len(kinds) > _MOST_KINDS:
                return places[0], places[1]
            depth = path_counts(topological_order(structure), structure.adjacency, counted)
            at: dict[int, int] = {}
            for p in places:
                if at.setdefault(depth[p], p) != p:
                    return at[depth[p]], p
    return None


def _by_key(part: Labelled) -> dict[tuple[int, ...], list[int]]:
    found: dict[tuple[int, ...], list[int]] = {}
    lines = part.lines[:, (AT, COMM_TAG, COMM_SIZE)].tolist()
    for (position, *said), label in zip(lines, part.label.tolist(), strict=True):
        found.setdefault((label, *said), []).append(position)
    return found


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
        tag, size, turn = step.key
        return edges[step.label], tag, size, turn


class _ActorState:
    """Where one actor is. `behind` are sends that a collective keeps from the slot."""

    __slots__ = ("actor", "behind", "held", "left", "waits")

    def __init__(self, actor: _Actor, *, with_slots: bool) -> None:
        self.actor = actor
        self.waits: list[int] = actor.cohort.nodes.structure.waits.tolist()
        self.left = len(self.waits)
        self.held: set[int] = set()
        self.behind: dict[int, list[int]] = {}
        if with_slots:
            for send, collective in actor.cohort.nodes.slot_order.held_up.items():
                self.behind.setdefault(collective, []).append(send)
                self.waits[send] += 1


class _Actors:
    """All actors, who do whatever waits for nothing more until nothing is left to do."""

    def __init__(
        self, situation: Situation, parts: Int64s, *, with_slots: bool, is_buffered: bool = True
    ) -> None:
        self.situation = situation
        self.parts = parts
        self.is_buffered = is_buffered
        uses = make_uses(situation.cohorts, situation.exchange, situation.world)
        self.meeting_of = meetings(parts, uses)
        self.sizes = _meeting_sizes(situation, parts, uses, self.meeting_of)
        who = participants(parts, uses)[:, :2]
        #: Whether a part is in one group under two labels, so that one rank does not tell its story.
        self.meets_itself = bool((who[1:] == who[:-1]).all(axis=1).any())
        self.states = [
            _ActorState(actor, with_slots=with_slots)
            for actor in _actors(situation, parts, uses, self.meeting_of)
        ]
        #: Who is at the n-th collective of a meeting: (meeting, n) -> (actor, position).
        self.gathering: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self.sent: set[_Key] = set()
        #: The ends that wait for the other one: (actor, position).
        self.posted: dict[_Key, tuple[int, int]] = {}
        self.todo: deque[tuple[int, int]] = deque()

    def run(self) -> None:
        """Until nothing happens any more."""
        for number, state in enumerate(self.states):
            self.todo.extend((number, p) for p, count in enumerate(state.waits) if not count)
            while self.todo:
                self._begin(*self.todo.pop())

    def _begin(self, number: int, position: int) -> None:
        state = self.states[number]
        step = state.actor.steps.get(position)
        if step is None:
            self._end(number, position)
        elif step.type is NodeType.COMM_COLL:
            self._meet(number, position, state.actor.meetings[step.label], step.key[0])
        elif (key := state.actor.edge(step)) in self.posted:
            self._end(number, position)
            self._end(*self.posted.pop(key))
        elif step.type is NodeType.COMM_SEND and self.is_buffered:
            self._end(number, position)
            self.sent.add(key)
        elif key in self.sent:
            self._end(number, position)
        else:
            state.held.add(position)
            self.posted[key] = number, position

    def _meet(self, number: int, position: int, meeting: int, turn: int) -> None:
        gathered = self.gathering.setdefault((meeting, turn), [])
        gathered.append((number, position))
        self.states[number].held.add(position)
        if len(gathered) == self.sizes[meeting]:
            del self.gathering[meeting, turn]
            for n, p in gathered:
                self._end(n, p)

    def _end(self, number: int, position: int) -> None:
        state = self.states[number]
        state.held.discard(position)
        state.left -= 1
        waits = state.waits
        start, children = state.actor.cohort.nodes.structure.adjacency
        for child in children[start[position] : start[position + 1]]:
            waits[child] -= 1
            if not waits[child]:
                self.todo.append((number, child))
        for send in state.behind.pop(position, ()):
            waits[send] -= 1
            if not waits[send]:
                self.todo.append((number, send))

    def doubt(self) -> Doubt | None:
        """A collective that does not end, and a send that waits for it to leave the slot."""
        found = []
        for number, state in enumerate(self.states):
            id_at = state.actor.cohort.nodes.id_at
            for collective, sends in state.behind.items():
                for send in sends:
                    rank = int(np.flatnonzero(self.parts == number)[0])
                    pair = (id_at(collective), id_at(send))
                    found.append((state.waits[send], Doubt(rank, pair)))
        return min(found, key=lambda f: (f[0], f[1].rank, f[1].nodes))[1] if found else None

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
        if not state.held:
            return -1, None, False, f"rank {rank} has ended"
        row = int(np.searchsorted(cohort.ranks, rank))
        position = min(state.held, key=lambda p: (steps[p].type is NodeType.COMM_RECV, p))
        step, node = steps[position], cohort.nodes.id_at(position)
        if step.type is NodeType.COMM_RECV:
            source = int(cohort.receives.values[row, step.label])
            text = f"rank {rank} waits in node {node} for a message of rank {source}"
            return node, source, True, text
        if step.type is NodeType.COMM_SEND:
            target = int(cohort.sends.values[row, step.label])
            text = f"rank {rank} sends in node {node} until rank {target} receives it"
            return node, target, True, text
        group = int(cohort.collectives.values[row, step.label])
        return self._waits_in(rank, node, group, step)

    def _waits_in(
        self, rank: int, node: int, group: int, step: CommunicationStep
    ) -> tuple[int, int | None, bool, str]:
        there = {n for n, _ in self.gathering[int(self.meeting_of[group]), step.key[0]]}
        members = self.situation.members[group]
        absent = [r for r in members if r >= len(self.parts) or self.parts[r] not in there]
        if not absent:
            return node, None, False, f"rank {rank} waits in node {node}, where its group has met"
        text = f"rank {rank} holds its slot for node {node} until rank {absent[0]} joins"
        return node, absent[0], False, text


def _meeting_sizes(
    situation: Situation, parts: Int64s, uses: Uses, meeting_of: Int64s
) -> list[int]:
    """How many actors each meeting waits for, by label: never fewer than the group lists ranks."""
    sizes: dict[int, int] = {}
    is_alone = len(np.unique(parts)) == len(parts)
    counts = np.bincount(participants(parts, uses)[:, 0], minlength=len(meeting_of)).tolist()
    for group, meeting in enumerate(meeting_of.tolist()):
        count = len(situation.members[group]) if is_alone else counts[group]
        sizes[meeting] = max(count, sizes.get(meeting, 0))
    return [sizes[m] for m in range(len(sizes))]


def _actors(situation: Situation, parts: Int64s, uses: Uses, meeting_of: Int64s) -> list[_Actor]:
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
    """What each position of a cohort communicates, turns by the order of dependencies."""
    structure, slots = cohort.nodes.structure, cohort.nodes.slot_order
    order = topological_order(structure)
    steps: dict[int, CommunicationStep] = {}
    turns: Counter[tuple[int, ...]] = Counter()
    types = (NodeType.COMM_COLL, NodeType.COMM_SEND, NodeType.COMM_RECV)
    columns = ((AT,), (AT, COMM_TAG, COMM_SIZE), (AT, COMM_TAG, COMM_SIZE))
    for number, (node_type, part, wanted) in enumerate(
        zip(types, cohort.parts, columns, strict=True)
    ):
        lines = zip(part.lines[:, wanted].tolist(), part.label.tolist(), strict=True)
        if node_type is not NodeType.COMM_COLL:
            counted = set(part.lines[:, AT].tolist())
            depth = path_counts(order, structure.adjacency, counted)
        else:
            depth = slots.depth if slots.unordered is None else [0] * len(structure)
        for (position, *said), label in sorted(lines, key=lambda x: depth[x[0][0]]):
            key = (number, label, *said)
            steps[position] = CommunicationStep(node_type, label, (*said, turns[key]))
            turns[key] += 1
    return steps
