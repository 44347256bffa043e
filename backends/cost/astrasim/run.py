"""Step time of written traces by the rules of ASTRA-sim, to the nanosecond, without ASTRA-sim.

A rank has one slot for computation and one for collectives and sends; receives need none. When a
node ends, the nodes that wait for nothing more are issued in ascending order of their ids, where
their slot is free. A computation takes its duration, or the roofline's; collectives are rings
(see `ring`), a message ends when it arrives, for both sides. That is ASTRA-sim's master (518bd51)
with its analytical congestion-unaware backend, without any of its code.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from flint.backends.chakra.reading.trace_files import TraceSet, find_traces
from flint.backends.chakra.schema import CommType, NodeType
from flint.backends.cost.astrasim.alike import find_alike
from flint.backends.cost.astrasim.disturbance import UNDISTURBED, Disturbance
from flint.backends.cost.astrasim.files import read_fabric, read_system, settings_beside
from flint.backends.cost.astrasim.ring import Collectives, Fabric
from flint.backends.cost.astrasim.step import (
    NeverEndsError,
    SimulatedStep,
    Spent,
    Waiting,
    work_text,
)
from flint.backends.cost.astrasim.system import SystemFile
from flint.backends.cost.astrasim.traces import Meeting, MessageEnd, RankTrace, TraceReader
from flint.errors import FlintError


def simulate_traces(
    place: Path,
    network: Path,
    settings: Path | None = None,
    *,
    has_one_slot: bool = True,
    disturbance: Disturbance = UNDISTURBED,
) -> SimulatedStep:
    """What ASTRA-sim says of the traces at `place` on `network`, with `settings`.

    These are the system.json beside the network unless they are given; beside network-1d.yml it is
    system-1d.json, if there is one. Without `has_one_slot`, a rank communicates as often at once as
    nodes are ready: not ASTRA-sim's rule, but what that costs. With a `disturbance`, computations
    take what it makes of them.

    Raises FlintError FL601 to FL605 (traces that cannot be read), FL706 (files of the simulator),
    FL707 (traces that it does not run to their end, or settings that are not modelled); where ranks
    wait for ever that is a `NeverEndsError`.
    """
    settings = settings or settings_beside(network)
    system, fabric = read_system(settings), read_fabric(network)
    require_modelled(settings, system, fabric)
    traces = find_traces(place)
    if sorted(traces.paths) != list(range(fabric.world)):
        raise FlintError(
            "FL707",
            f"{network.name} is of {fabric.world} ranks, and {len(traces.paths)} have a trace",
            place=str(network),
            help="ASTRA-sim wants a trace for each; write all ranks",
        )
    disturbance.require_ranks(fabric.world)
    reader = TraceReader(traces, fabric.sizes, system, disturbance)
    return run_traces(reader, traces, fabric, system, has_one_slot=has_one_slot, name=network.name)


def run_traces(
    reader: TraceReader,
    traces: TraceSet,
    fabric: Fabric,
    system: SystemFile,
    *,
    name: str,
    has_one_slot: bool = True,
) -> SimulatedStep:
    """The same for traces, network and settings that were read. `name` is that of the network."""
    collectives = Collectives(fabric, system)
    first = reader.read(0, traces.paths[0])
    alike = (
        find_alike(reader, traces, first, fabric, collectives) if not reader.disturbance else None
    )
    if alike is not None:
        run = _Run([alike.trace], alike, has_one_slot)
        return alike.of_all(run.step(name, fabric))
    ranks = [reader.read(rank, path) for rank, path in traces.paths.items()]
    return _Run(ranks, _Times(fabric, collectives), has_one_slot).step(name, fabric)


def require_modelled(path: Path, system: SystemFile, fabric: Fabric) -> None:
    """Raise FlintError FL707 for settings that are not modelled."""
    names = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    wrong = {
        "replay-only": bool(system.replay_only),
        "preferred-dataset-splits": system.preferred_dataset_splits != 1,
        "active-chunks-per-dimension": system.active_chunks_per_dimension != 1,
    }
    for name in names:
        kinds = getattr(system, f"{name}_implementation")
        key = f"{name.replace('_', '-')}-implementation"
        wrong[key] = tuple(kinds) != ("ring",) * len(fabric.sizes)
    for key, is_wrong in wrong.items():
        if is_wrong:
            raise FlintError(
                "FL707",
                f"{path.name}: its {key} is not modelled",
                place=str(path),
                help="modelled are ring for each dimension, one chunk, one split, no replay",
            )


@dataclass(eq=False)
class _Sum:
    """Communication of one kind between the same ranks: see `Spent`."""

    members: Sequence[int]
    count: int = 0
    busy_ns: int = 0
    waited_ns: int = 0


@dataclass(eq=False)
class _Rank:
    """What one rank has ready, and its slots."""

    trace: RankTrace
    waits: list[int]
    has_one_slot: bool
    compute: list[int] = field(default_factory=list)
    host: list[int] = field(default_factory=list)
    send: list[int] = field(default_factory=list)
    receive: list[int] = field(default_factory=list)
    computes: bool = False
    host_computes: bool = False
    communicates: bool = False
    left: int = 0
    end_ns: int = 0
    compute_ns: int = 0
    met: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    turns: dict[int, int] = field(default_factory=dict)
    spent: dict[tuple[CommType | None, int], _Sum] = field(default_factory=dict)

    def turn(self, group: int, node: int) -> int:
        """Which collective of its group a node is: by issue, or by id where many are under way."""
        if self.turns:
            return self.turns[node]
        self.met[group] += 1
        return self.met[group]

    def number_turns(self) -> None:
        """Number the collectives of each group by id."""
        count: dict[int, int] = defaultdict(int)
        for node, work in enumerate(self.trace.work):
            if isinstance(work, Meeting):
                self.turns[node] = count[work.group]
                count[work.group] += 1

    def spend(
        self, kind: CommType | None, members: Sequence[int], busy_ns: int, waited_ns: int
    ) -> None:
        """It has communicated once more. A group has one list of members, a message has two ends."""
        key = members[-1] if kind is None else id(members)
        sums = self.spent.setdefault((kind, key), _Sum(members))
        sums.count += 1
        sums.busy_ns += busy_ns
        sums.waited_ns += waited_ns

    def add(self, node: int) -> None:
        """A node waits for nothing more."""
        node_type = self.trace.type[node]
        is_send = node_type in (NodeType.COMM_COLL, NodeType.COMM_SEND)
        queue = self.compute if node_type is NodeType.COMP else self.receive
        queue = self.host if node in self.trace.of_host else queue
        heapq.heappush(self.send if is_send else queue, node)

    def issuable(self) -> list[int]:
        """Nodes that can be issued now, ascending; they are taken."""
        found = list(self.receive)
        self.receive.clear()
        if self.compute and not self.computes:
            found.append(heapq.heappop(self.compute))
            self.computes = True
        if self.host and not self.host_computes:
            found.append(heapq.heappop(self.host))
            self.host_computes = True
        while self.send and not (self.communicates and self.has_one_slot):
            found.append(heapq.heappop(self.send))
            self.communicates = True
        return sorted(found)


@dataclass(eq=False)
class _Exchange:
    """The two ends of one message: whether it has arrived, and the node that receives it."""

    arrived: bool = False
    receiver: int = -1


class _TakesTime(Protocol):
    """How long what ranks communicate takes."""

    def ends(self, work: Meeting, begins: Sequence[int]) -> list[int]:
        """When each member ends a collective, by when each begins it, in ns."""
        ...

    def message_ns(self, work: MessageEnd) -> int:
        """Nanoseconds of a message."""
        ...


@dataclass(frozen=True)
class _Times:
    """Those of a fabric."""

    fabric: Fabric
    collectives: Collectives

    def ends(self, work: Meeting, begins: Sequence[int]) -> list[int]:
        return self.collectives.ends(
            work.kind, work.size_bytes, work.members, work.involved, begins
        )

    def message_ns(self, work: MessageEnd) -> int:
        return self.fabric.message_ns(work.source, work.target, work.size_bytes)


class _Run:
    """All ranks on their way. An event is (time, when it was made, number, rank, node, message)."""

    def __init__(self, traces: list[RankTrace], times: _TakesTime, has_one_slot: bool) -> None:
        self.times = times
        self.ranks = [_Rank(t, list(t.waits), has_one_slot, left=len(t.type)) for t in traces]
        for rank in () if has_one_slot else self.ranks:
            rank.number_turns()
        self.events: list[tuple[int, int, int, int, int, _Exchange | None]] = []
        self.count = 0
        self.meetings: dict[tuple[object, ...], dict[int, tuple[int, int]]] = {}
        self.sent: dict[MessageEnd, deque[_Exchange]] = defaultdict(deque)
        self.awaited: dict[MessageEnd, deque[_Exchange]] = defaultdict(deque)

    def step(self, network: str, fabric: Fabric) -> SimulatedStep:
        """Run to the end. Raises FlintError FL707 if some ranks never end."""
        for number, rank in enumerate(self.ranks):
            for node in (i for i, w in enumerate(rank.waits) if not w):
                rank.add(node)
            self.issue(number, 0)
        while self.events:
            now, _, _, number, node, exchange = heapq.heappop(self.events)
            self.end(number, node, now)
            if exchange is not None:
                self.arrive(exchange, self.message(number, node).target, now)
        stuck = [i for i, rank in enumerate(self.ranks) if rank.left]
        if stuck:
            raise NeverEndsError(stuck, self.waiting())
        return SimulatedStep(
            network,
            fabric,
            tuple(r.end_ns for r in self.ranks),
            tuple(r.compute_ns for r in self.ranks),
            tuple(tuple(_spent(r)) for r in self.ranks),
            tuple(r.trace.type.count(NodeType.COMP) - len(r.trace.of_host) for r in self.ranks),
        )

    def waiting(self) -> list[Waiting]:
        """What ranks that never end wait in, by rank."""
        found = []
        for here in self.meetings.values():
            for rank, (node, _) in here.items():
                work = self.ranks[rank].trace.work[node]
                assert isinstance(work, Meeting)
                absent = tuple(m for m in work.members if m not in here)
                found.append(self.waits(rank, node, work, absent))
        for end, exchanges in self.awaited.items():
            for exchange in exchanges:
                found.append(self.waits(end.target, exchange.receiver, end, (end.source,)))
        return sorted(found, key=lambda w: (w.rank, w.node))

    def waits(
        self, rank: int, node: int, work: Meeting | MessageEnd, absent: tuple[int, ...]
    ) -> Waiting:
        """A node of a rank that waits for others."""
        trace = self.ranks[rank].trace
        is_message = isinstance(work, MessageEnd)
        return Waiting(rank, trace.id[node], trace.name[node], work_text(work), absent, is_message)

    def message(self, number: int, node: int) -> MessageEnd:
        """The message of a node that sends."""
        found = self.ranks[number].trace.work[node]
        assert isinstance(found, MessageEnd)
        return found

    def later(
        self, at: int, now: int, number: int, node: int, exchange: _Exchange | None = None
    ) -> None:
        """A node of a rank ends at a time, which was found now."""
        self.count += 1
        heapq.heappush(self.events, (at, now, self.count, number, node, exchange))

    def end(self, number: int, node: int, now: int) -> None:
        """A node has ended: its slot is free, and what waited for it alone is issued."""
        rank = self.ranks[number]
        node_type = rank.trace.type[node]
        if node in rank.trace.of_host:
            rank.host_computes = False
        elif node_type is NodeType.COMP:
            rank.computes = False
        elif node_type is not NodeType.COMM_RECV:
            rank.communicates = False
        rank.left -= 1
        rank.end_ns = now
        for child in rank.trace.children[node]:
            rank.waits[child] -= 1
            if not rank.waits[child]:
                rank.add(child)
        self.issue(number, now)

    def issue(self, number: int, now: int) -> None:
        """Issue what is ready where its slot is free."""
        rank = self.ranks[number]
        for node in rank.issuable():
            work = rank.trace.work[node]
            if isinstance(work, int):
                rank.compute_ns += 0 if node in rank.trace.of_host else work
                self.later(now + work, now, number, node)
            elif isinstance(work, Meeting):
                self.meet(work, number, node, now)
            elif rank.trace.type[node] is NodeType.COMM_SEND:
                self.send(work, number, node, now)
            else:
                self.receive(work, number, node, now)

    def meet(self, work: Meeting, number: int, node: int, now: int) -> None:
        """A rank enters a collective; the last of its members says when all of them end."""
        key = (
            *(work.group, tuple(work.members), work.kind, work.size_bytes),
            self.ranks[number].turn(work.group, node),
        )
        here = self.meetings.setdefault(key, {})
        here[number] = node, now
        if len(here) < len(work.members):
            return
        del self.meetings[key]
        begins = [here[m][1] for m in work.members]
        ends = self.times.ends(work, begins)
        last = max(begins)
        for member, began, at in zip(work.members, begins, ends, strict=True):
            times = at - last, last - began
            self.ranks[member].spend(work.kind, work.members, *times)
            self.later(at, at, member, here[member][0])

    def send(self, work: MessageEnd, number: int, node: int, now: int) -> None:
        """A message leaves; both sides are done when it arrives."""
        if self.awaited[work]:
            exchange = self.awaited[work].popleft()
        else:
            exchange = _Exchange()
            self.sent[work].append(exchange)
        takes = self.times.message_ns(work)
        self.ranks[number].spend(None, (work.source, work.target), takes, 0)
        self.later(now + takes, now, number, node, exchange)

    def receive(self, work: MessageEnd, number: int, node: int, now: int) -> None:
        """A rank asks for a message, which may have arrived already."""
        if not self.sent[work]:
            self.awaited[work].append(_Exchange(receiver=node))
            return
        exchange = self.sent[work].popleft()
        exchange.receiver = node
        if exchange.arrived:
            self.later(now, now, number, node)

    def arrive(self, exchange: _Exchange, target: int, now: int) -> None:
        """The bytes are there; the receiver goes on if it has asked."""
        exchange.arrived = True
        if exchange.receiver >= 0:
            self.end(target, exchange.receiver, now)


def _spent(rank: _Rank) -> Iterator[Spent]:
    """What a rank has spent, in the order in which it began to."""
    for (kind, _), s in rank.spent.items():
        yield Spent(kind, s.members, s.count, s.busy_ns, s.waited_ns)
