"""One order for all that takes a rank's only slot for communication, written as dependencies.

ASTRA-sim gives a rank one slot for collectives and sends and issues what is ready first. Two that are
ready in either order take it in the order that durations say, so that one slow rank is enough: it
takes its slot for one collective while the others wait for it in another, forever. So each
collective and send waits for the one before it, in one order that all ranks share. Then the
least that has not ended is ready on all its members, whatever anything lasts.

The order is that of a run by ASTRA-sim's rules (`flint.backends.cost.astrasim.run`) in which no rank is
late, so that it costs nothing there: what had the slot before still has it before. All ranks of a program
then do the same at the same moment, so the run of one of them is that of all. Where one rank of each
program cannot stand for all, it is the order of the programs.
"""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from flint.backends.chakra.schema import CommType, NodeType
from flint.backends.chakra.writing.lower import (
    LoweredNodes,
    Names,
    communicates,
    moves_memory,
    remote_bytes,
    with_pairs,
)
from flint.backends.chakra.writing.simulator_files import SimulatedHardware, system_file
from flint.backends.cost.astrasim.ring import Collectives, Dimension, Fabric
from flint.cluster.astrasim.memory import host_memory
from flint.cluster.astrasim.system import SystemFile
from flint.ir.program import Int64s, Program

#: Nodes of several programs (one rank of each) above which their run takes too long.
_MOST_NODES = 400_000
#: What a node takes part in: (group numbers or None for a message, tag).
_Meeting = tuple[frozenset[int] | None, int]


@dataclass(frozen=True, eq=False)
class Order:
    """What one program's rank did: the nodes that took its slot for communication, in that order, and
    all nodes, in the order in which they ended."""

    issued: list[int]
    ended: list[int]


def in_one_order(
    programs: Sequence[Program],
    lowered: Sequence[LoweredNodes],
    names: Names,
    hardware: SimulatedHardware,
) -> list[LoweredNodes]:
    """The nodes of all programs, with the dependencies that put communication in one order.

    None is added where others say the order already.
    """
    orders = [_of_program(nodes) for nodes in lowered]
    missing = [_missing(n, o) for n, o in zip(lowered, orders, strict=True)]
    if not any(len(owners) for owners, _ in missing):
        return list(lowered)
    if len(lowered) == 1 or sum(map(len, lowered)) <= _MOST_NODES:
        found = undisturbed_orders(programs, lowered, names, hardware)
        if found is not None:
            missing = [_missing(n, o) for n, o in zip(lowered, found, strict=True)]
    return [_with(n, *pairs) for n, pairs in zip(lowered, missing, strict=True)]


def _with(nodes: LoweredNodes, owners: Int64s, targets: Int64s) -> LoweredNodes:
    if not len(owners):
        return nodes
    dep_start, deps = with_pairs(nodes.dep_start, nodes.deps, owners, targets)
    return replace(nodes, dep_start=dep_start, deps=deps)


def _of_program(nodes: LoweredNodes) -> Order:
    """Program order, which is that of ids."""
    slotted = (nodes.type == NodeType.COMM_COLL) | (nodes.type == NodeType.COMM_SEND)
    return Order(np.flatnonzero(slotted).tolist(), list(range(len(nodes))))


def _missing(nodes: LoweredNodes, order: Order) -> tuple[Int64s, Int64s]:
    """(who waits, for whom) of each that does not wait for the one before it already."""
    turn = np.full(len(nodes), -1, dtype=np.int64)
    turn[order.issued] = np.arange(len(order.issued))
    turns, issued = turn.tolist(), order.issued
    start, deps, after = nodes.dep_start.tolist(), nodes.deps.tolist(), nodes.after.tolist()
    reached = [-1] * len(turns)  # the last of `issued` that a node is or waits for
    owners = []
    for node in order.ended:
        last = reached[after[node]] if after[node] >= 0 else -1
        for dep in deps[start[node] : start[node + 1]]:
            last = max(last, reached[dep])
        own = turns[node]
        if own >= 0:
            if last != own - 1:
                owners.append(node)
            last = own
        reached[node] = last
    owning = np.array(owners, dtype=np.int64)
    return owning, np.array(issued, dtype=np.int64)[turn[owning] - 1]


def undisturbed_orders(
    programs: Sequence[Program],
    lowered: Sequence[LoweredNodes],
    names: Names,
    hardware: SimulatedHardware,
) -> list[Order] | None:
    """The orders of each program; None where one rank of each cannot stand for all of them.

    That is where a rank waits for another of its own program (stages that share one), or where only
    some ranks of two programs meet.
    """
    times = _Times(names, hardware)
    actors = [
        _Actor(n, times.takes(p, n), times.meetings(n))
        for p, n in zip(programs, lowered, strict=True)
    ]
    for actor in actors:
        for node in np.flatnonzero(actor.nodes.type == NodeType.COMM_COLL).tolist():
            actor.takes[node] = times.collective_ns(actor.nodes, node)
        for node in np.flatnonzero(actor.nodes.type == NodeType.COMM_SEND).tolist():
            actor.takes[node] = times.message_ns(actor.nodes, node)
    run = _Run(actors)
    run.run()
    if any(len(a.ended) < len(a.takes) for a in actors):
        return None
    return [Order(a.issued, a.ended) for a in actors]


class _Times:
    """Nanoseconds on the hardware that stands beside the traces."""

    def __init__(self, names: Names, hardware: SimulatedHardware) -> None:
        dims = hardware.dimensions
        links = (
            Dimension(d.bandwidth_gb_per_s, d.latency_ns, 2 if d.topology == "Switch" else 1)
            for d in dims
        )
        self._fabric = Fabric(
            tuple(d.topology for d in dims), tuple(d.size for d in dims), tuple(links)
        )
        self._hardware = hardware
        system = SystemFile.model_validate(json.loads(system_file(hardware)))
        self._collectives = Collectives(self._fabric, system)
        self._names = names
        self._members = {number: ranks for (ranks, _), number in names.groups.members.items()}
        self._known: dict[tuple[object, ...], int] = {}

    def takes(self, program: Program, nodes: LoweredNodes) -> list[int]:
        """Of each node that computes or moves memory; 0 for the others."""
        if self._hardware.has_durations:
            ns = nodes.duration_micros * 1000
        else:
            row = nodes.row
            flops = np.maximum(program.flops[row], 1).astype(np.float64)
            moved = program.result_bytes[row].astype(np.float64)
            if not self._names.producers_only:
                moved = moved + program.operand_bytes[row]
            by_memory = np.maximum(moved, 1) / (self._hardware.memory_gb_per_s * 1e9)
            by_peak = flops / (self._hardware.peak_tflops * 1e12)
            ns = (np.maximum(by_memory, by_peak) * 1e9).astype(np.int64)
        memory = host_memory(self._hardware.remote_gb_per_s)
        for node in np.flatnonzero(moves_memory(nodes.type)).tolist():
            ns[node] = memory.takes_ns(remote_bytes(program, nodes.row[node]))
        found: list[int] = np.where(communicates(nodes.type), 0, np.maximum(ns, 1)).tolist()
        return found

    def meetings(self, nodes: LoweredNodes) -> dict[int, _Meeting]:
        """What each node of communication takes part in."""
        groups = [
            frozenset(s.values[s.values >= 0].tolist()) if s.is_group else None for s in nodes.slots
        ]
        whole = frozenset((-1,))
        found: dict[int, _Meeting] = {}
        for node in np.flatnonzero(communicates(nodes.type)).tolist():
            slot = int(nodes.slot[node])
            group = whole if slot < 0 else groups[slot]
            found[node] = group, int(nodes.tag[node])
        return found

    def collective_ns(self, nodes: LoweredNodes, node: int) -> int:
        """A collective whose members begin together."""
        slot, dimensions = int(nodes.slot[node]), int(nodes.dimensions[node])
        kind, size = CommType(int(nodes.comm_type[node])), int(nodes.comm_bytes[node])
        key = (id(nodes), slot, dimensions, kind, size)
        found = self._known.get(key)
        if found is None:
            members, involved = self._of_one(nodes, slot, dimensions)
            found = self._known[key] = self._collectives.together(kind, size, members, involved)
        return found

    def _of_one(
        self, nodes: LoweredNodes, slot: int, dimensions: int
    ) -> tuple[Sequence[int], tuple[bool, ...] | None]:
        """The members of one group of a collective, and along which dimensions it goes."""
        if slot < 0:
            return (0,), nodes.dimension_flags[dimensions]
        values = nodes.slots[slot].values
        members = self._members[int(values[values >= 0][0])]
        if len(members) == self._fabric.world:
            return sorted(members), (True,) * len(self._fabric.sizes)
        return members, None

    def message_ns(self, nodes: LoweredNodes, node: int) -> int:
        """A message of the first rank that sends it."""
        slot, size = int(nodes.slot[node]), int(nodes.comm_bytes[node])
        key = (id(nodes), slot, size)
        found = self._known.get(key)
        if found is None:
            targets = nodes.slots[slot].values
            sender = int(np.flatnonzero(targets >= 0)[0]) if (targets >= 0).any() else -1
            found = 1 if sender < 0 else self._fabric.message_ns(sender, int(targets[sender]), size)
            self._known[key] = found
        return found


#: Slots: of computation, of the host, of communication and remote memory; receives have none.
_COMPUTE, _HOST, _COMM, _NONE = range(4)


class _Actor:
    """One program's rank on its way."""

    def __init__(
        self, nodes: LoweredNodes, takes: list[int], meetings: dict[int, _Meeting]
    ) -> None:
        self.nodes = nodes
        self.takes = takes
        self.meetings = meetings
        self.slot = _slots(nodes)
        self.waits, self.child_start, self.children = _children(nodes)
        self.ready: tuple[list[int], ...] = ([], [], [], [])
        self.busy = [False, False, False]
        self.issued: list[int] = []
        self.ended: list[int] = []

    def end(self, node: int) -> None:
        self.ended.append(node)
        slot = self.slot[node]
        if slot != _NONE:
            self.busy[slot] = False
        waits, ready = self.waits, self.ready
        for child in self.children[self.child_start[node] : self.child_start[node + 1]]:
            waits[child] -= 1
            if not waits[child]:
                heapq.heappush(ready[self.slot[child]], child)

    def issuable(self) -> list[int]:
        """What begins now, by id; taken."""
        found = self.ready[_NONE].copy()
        self.ready[_NONE].clear()
        for slot in (_COMPUTE, _HOST, _COMM):
            if self.ready[slot] and not self.busy[slot]:
                self.busy[slot] = True
                found.append(heapq.heappop(self.ready[slot]))
        found.sort()
        return found


def _slots(nodes: LoweredNodes) -> list[int]:
    slot = np.full(len(nodes), _COMM, dtype=np.int64)
    slot[nodes.type == NodeType.COMP] = _COMPUTE
    slot[nodes.of_host] = _HOST
    slot[nodes.type == NodeType.COMM_RECV] = _NONE
    found: list[int] = slot.tolist()
    return found


def _children(nodes: LoweredNodes) -> tuple[list[int], list[int], list[int]]:
    """How many each node waits for, and who waits for each, as columns."""
    count = len(nodes)
    owner = np.repeat(np.arange(count, dtype=np.int64), np.diff(nodes.dep_start))
    later = np.flatnonzero(nodes.after >= 0)
    owner = np.concatenate((owner, later))
    source = np.concatenate((nodes.deps, nodes.after[later]))
    start = np.concatenate(([0], np.cumsum(np.bincount(source, minlength=count))))
    by_source = owner[np.lexsort((owner, source))]
    waits = np.bincount(owner, minlength=count)
    return waits.tolist(), start.tolist(), by_source.tolist()


@dataclass(eq=False)
class _Message:
    """One message: has it arrived, and which node of whom waits for it."""

    arrived: bool = False
    receiver: tuple[int, int] | None = None


@dataclass
class _Run:
    """All actors. An event is (time, when it was made, number, actor, node)."""

    actors: list[_Actor]
    events: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    count: int = 0
    gathered: dict[_Meeting, list[tuple[int, int]]] = field(default_factory=dict)
    messages: dict[_Meeting, _Message] = field(default_factory=dict)

    def run(self) -> None:
        """Until nothing happens any more."""
        self.sizes = Counter(
            meeting
            for actor in self.actors
            for node, meeting in actor.meetings.items()
            if meeting[0] is not None
        )
        for number, actor in enumerate(self.actors):
            for node in (n for n, count in enumerate(actor.waits) if not count):
                heapq.heappush(actor.ready[actor.slot[node]], node)
            self._issue(number, 0)
        while self.events:
            now, _, _, number, node = heapq.heappop(self.events)
            actor = self.actors[number]
            actor.end(node)
            self._issue(number, now)
            if actor.nodes.type[node] == NodeType.COMM_SEND:
                self._arrive(actor.meetings[node], now)

    def _later(self, at: int, now: int, number: int, node: int) -> None:
        self.count += 1
        heapq.heappush(self.events, (at, now, self.count, number, node))

    def _issue(self, number: int, now: int) -> None:
        actor = self.actors[number]
        for node in actor.issuable():
            slot = actor.slot[node]
            if slot == _NONE:
                self._receive(number, node, now)
                continue
            if actor.nodes.type[node] >= NodeType.COMM_SEND:
                actor.issued.append(node)
                if actor.nodes.type[node] == NodeType.COMM_COLL:
                    self._meet(number, node, now)
                    continue
            self._later(now + actor.takes[node], now, number, node)

    def _meet(self, number: int, node: int, now: int) -> None:
        meeting = self.actors[number].meetings[node]
        here = self.gathered.setdefault(meeting, [])
        here.append((number, node))
        if len(here) == self.sizes[meeting]:
            at = now + max(self.actors[a].takes[n] for a, n in here)
            for a, n in here:
                self._later(at, at, a, n)

    def _receive(self, number: int, node: int, now: int) -> None:
        message = self.messages.setdefault(self.actors[number].meetings[node], _Message())
        message.receiver = number, node
        if message.arrived:
            self._later(now, now, number, node)

    def _arrive(self, meeting: _Meeting, now: int) -> None:
        message = self.messages.setdefault(meeting, _Message())
        message.arrived = True
        if message.receiver is not None:
            number, node = message.receiver
            self.actors[number].end(node)
            self._issue(number, now)
