"""Step time of written traces by the rules of ASTRA-sim, to the nanosecond, without ASTRA-sim.

A rank has one slot for computation and one for collectives, sends and remote memory; receives need none. When a
node ends, the nodes that wait for nothing more are issued in ascending order of their ids, where
their slot is free. A computation takes its duration, or the roofline's; collectives are rings
(see `ring`), a message ends when it arrives, for both sides. That is ASTRA-sim's master (518bd51)
with its analytical congestion-unaware backend, without any of its code.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flint.backends.chakra.reading.trace_files import Membership, TraceSet, find_traces
from flint.backends.chakra.schema import CommType, NodeType
from flint.backends.cost.astrasim.disturbance import UNDISTURBED, Disturbance
from flint.backends.cost.astrasim.files import read_fabric, settings_beside
from flint.backends.cost.astrasim.grouping import Grouping, find_grouping
from flint.backends.cost.astrasim.ring import Collectives, Fabric
from flint.backends.cost.astrasim.step import (
    NeverEndsError,
    SimulatedStep,
    Spent,
    Waiting,
    work_text,
)
from flint.backends.cost.astrasim.traces import Meeting, MessageEnd, RankTrace, TraceReader
from flint.cluster.astrasim.files import read_system
from flint.cluster.astrasim.system import SystemFile
from flint.errors import FlintError


def simulate_traces(
    place: Path,
    network: Path,
    settings: Path | None = None,
    memory: Path | None = None,
    *,
    has_one_slot: bool = True,
    disturbance: Disturbance = UNDISTURBED,
) -> SimulatedStep:
    """What ASTRA-sim says of the traces at `place` on `network`, with `settings`.

    These are the system.json beside the network unless they are given; beside network-1d.yml it is
    system-1d.json, if there is one. `memory` is the file of remote memory, else memory.json beside the
    traces. Without `has_one_slot`, a rank communicates as often at once as
    nodes are ready: not ASTRA-sim's rule, but what that costs. With a `disturbance`, computations
    take what it makes of them.

    Raises FlintError FL601 to FL605 (traces that cannot be read), FL706 (files of the simulator),
    FL707 (traces that it does not run to their end, or settings that are not modeled); where ranks
    wait forever that is a `NeverEndsError`.
    """
    settings = settings or settings_beside(network)
    system, fabric = read_system(settings), read_fabric(network)
    require_modelled(settings, system, fabric)
    traces = find_traces(place)
    if sorted(traces.paths) != list(range(fabric.world)):
        raise FlintError(
            "FL707",
            f"{network.name} is for {fabric.world} ranks, but {len(traces.paths)} have a trace",
            place=str(network),
            help="ASTRA-sim needs a trace for each rank; write all ranks",
        )
    disturbance.require_ranks(fabric.world)
    reader = TraceReader(traces, fabric.sizes, system, disturbance, memory)
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
    membership = Membership(traces.world, traces.groups, fabric.sizes)
    grouping = find_grouping(traces, membership, fabric, reader.disturbance)
    wanted = grouping.firsts if grouping else sorted(traces.paths)
    ranks = [reader.read(rank, traces.paths[rank]) for rank in wanted]
    return _Run(ranks, grouping, fabric, system, has_one_slot).step(name)


def require_modelled(path: Path, system: SystemFile, fabric: Fabric) -> None:
    """Raise FlintError FL707 for settings that are not modeled."""
    names = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    wrong = {
        "replay-only": bool(system.replay_only),
        "preferred-dataset-splits": system.preferred_dataset_splits != 1,
        "active-chunks-per-dimension": system.active_chunks_per_dimension != 1,
    }
    wrong |= {key: True for key in system.model_extra or () if "-custom" in key}
    for name in names:
        kinds = getattr(system, f"{name}_implementation")
        key = f"{name.replace('_', '-')}-implementation"
        wrong[key] = tuple(kinds) != ("ring",) * len(fabric.sizes)
    for key, is_wrong in wrong.items():
        if is_wrong:
            raise FlintError(
                "FL707",
                f"{path.name}: its {key} is not modeled",
                place=str(path),
                help="Flint models ring for each dimension, one chunk, one split, no replay",
            )


@dataclass(eq=False)
class _Sum:
    """Communication of one kind between the same ranks: see `Spent`. `node` is the first."""

    members: Sequence[int]
    node: int
    count: int = 0
    busy_ns: int = 0
    waited_ns: int = 0


@dataclass(eq=False)
class _Rank:
    """What one rank has ready, and its slots. `rank` is its number."""

    rank: int
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
    memory_ns: int = 0
    met: dict[Hashable, int] = field(default_factory=lambda: defaultdict(int))
    turns: dict[int, int] = field(default_factory=dict)
    spent: dict[tuple[CommType | None, int], _Sum] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.queues = {NodeType.COMP: self.compute, NodeType.COMM_RECV: self.receive}

    def turn(self, key: Hashable, node: int) -> int:
        """Which collective of its group a node is: by issue, or by id where many are under way."""
        if self.turns:
            return self.turns[node]
        self.met[key] += 1
        return self.met[key]

    def number_turns(self) -> None:
        """Number the collectives of each group by id."""
        count: dict[int, int] = defaultdict(int)
        for node, work in enumerate(self.trace.work):
            if isinstance(work, Meeting):
                self.turns[node] = count[work.group]
                count[work.group] += 1

    def spend(
        self, kind: CommType | None, members: Sequence[int], node: int, busy_ns: int, waited_ns: int
    ) -> None:
        """It has communicated once more. A group has one list of members, a message has two ends."""
        key = members[-1] if kind is None else id(members)
        sums = self.spent.setdefault((kind, key), _Sum(members, node))
        sums.count += 1
        sums.busy_ns += busy_ns
        sums.waited_ns += waited_ns

    def add(self, node: int) -> None:
        """A node waits for nothing more."""
        node_type = self.trace.type[node]
        queue = self.host if node in self.trace.of_host else self.queues.get(node_type, self.send)
        heapq.heappush(queue, node)

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
    """The two ends of one message: whether it has arrived, and (actor, node) that receives it."""

    arrived: bool = False
    receiver: tuple[int, int] = (-1, -1)


class _Run:
    """All ranks on their way, or one of each part of a `Grouping`, which are its actors.

    An event is (time, when it was made, number, actor, node, message).
    """

    def __init__(
        self,
        traces: list[RankTrace],
        grouping: Grouping | None,
        fabric: Fabric,
        system: SystemFile,
        has_one_slot: bool,
    ) -> None:
        self.fabric = fabric
        self.grouping = grouping
        self.part = grouping.part if grouping else list(range(len(traces)))
        self.collectives = Collectives(fabric, system)
        firsts = grouping.firsts if grouping else self.part
        self.ranks = [
            _Rank(rank, t, list(t.waits), has_one_slot, left=len(t.type))
            for rank, t in zip(firsts, traces, strict=True)
        ]
        for rank in () if has_one_slot else self.ranks:
            rank.number_turns()
        self.events: list[tuple[int, int, int, int, int, _Exchange | None]] = []
        self.count = 0
        self.meetings: dict[tuple[Hashable, ...], dict[int, tuple[int, int]]] = {}
        self.sent: dict[Hashable, deque[_Exchange]] = defaultdict(deque)
        self.awaited: dict[Hashable, deque[_Exchange]] = defaultdict(deque)

    def key(self, number: int, node: int, work: Meeting | MessageEnd) -> Hashable:
        """What a node takes part in: equal for all who meet, and for both ends of messages."""
        if self.grouping is not None:
            own = self.grouping.keys[number][node]
            return own if isinstance(work, Meeting) else (own, work.tag, work.size_bytes)
        return (work.group, tuple(work.members)) if isinstance(work, Meeting) else work

    def step(self, network: str) -> SimulatedStep:
        """Run to the end. Raises FlintError FL707 if some ranks never end."""
        for number, rank in enumerate(self.ranks):
            for node in (i for i, w in enumerate(rank.waits) if not w):
                rank.add(node)
            self.issue(number, 0)
        while self.events:
            now, _, _, number, node, exchange = heapq.heappop(self.events)
            self.end(number, node, now)
            if exchange is not None:
                self.arrive(exchange, now)
        stuck = [r for r, part in enumerate(self.part) if self.ranks[part].left]
        if stuck:
            raise NeverEndsError(stuck, self.waiting())
        kernels = [r.trace.type.count(NodeType.COMP) - len(r.trace.of_host) for r in self.ranks]
        return SimulatedStep(
            network,
            self.fabric,
            tuple(self.ranks[p].end_ns for p in self.part),
            tuple(self.ranks[p].compute_ns for p in self.part),
            tuple(tuple(self.spent(rank)) for rank in range(len(self.part))),
            tuple(kernels[p] for p in self.part),
            memory_ns=tuple(self.ranks[p].memory_ns for p in self.part),
        )

    def spent(self, rank: int) -> Iterator[Spent]:
        """What a rank has spent, in the order in which it began to."""
        for (kind, _), s in self.ranks[self.part[rank]].spent.items():
            members = self.grouping.members(rank, s.node) if self.grouping else s.members
            yield Spent(kind, members, s.count, s.busy_ns, s.waited_ns)

    def waiting(self) -> list[Waiting]:
        """What ranks that never end wait in, by rank."""
        found = []
        for here in self.meetings.values():
            for number, (node, _) in here.items():
                work = self.ranks[number].trace.work[node]
                assert isinstance(work, Meeting)
                absent = tuple(m for m in work.members if self.part[m] not in here)
                found.append(self.waits(number, node, work, absent))
        for exchanges in self.awaited.values():
            for exchange in exchanges:
                number, node = exchange.receiver
                end = self.ranks[number].trace.work[node]
                assert isinstance(end, MessageEnd)
                found.append(self.waits(number, node, end, (end.source,)))
        return sorted(found, key=lambda w: (w.rank, w.node))

    def waits(
        self, number: int, node: int, work: Meeting | MessageEnd, absent: tuple[int, ...]
    ) -> Waiting:
        rank, trace = self.ranks[number].rank, self.ranks[number].trace
        is_message = isinstance(work, MessageEnd)
        return Waiting(rank, trace.id[node], trace.name[node], work_text(work), absent, is_message)

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
                if rank.trace.type[node] is not NodeType.COMP:
                    rank.memory_ns += work
                elif node not in rank.trace.of_host:
                    rank.compute_ns += work
                self.later(now + work, now, number, node)
            elif isinstance(work, Meeting):
                self.meet(work, number, node, now)
            elif rank.trace.type[node] is NodeType.COMM_SEND:
                self.send(work, number, node, now)
            else:
                self.receive(work, number, node, now)

    def meet(self, work: Meeting, number: int, node: int, now: int) -> None:
        """A rank enters a collective; the last of its members says when all of them end."""
        own = self.key(number, node, work)
        key = (own, work.kind, work.size_bytes, self.ranks[number].turn(own, node))
        here = self.meetings.setdefault(key, {})
        here[number] = node, now
        if len(here) < self.expected(own, work):
            return
        del self.meetings[key]
        last = max(began for _, began in here.values())
        for actor, at in self.ends(work, here):
            own_node, began = here[actor]
            said = self.ranks[actor].trace.work[own_node]
            assert isinstance(said, Meeting)
            times = at - last, last - began
            self.ranks[actor].spend(work.kind, said.members, own_node, *times)
            self.later(at, at, actor, own_node)

    def expected(self, key: Hashable, work: Meeting) -> int:
        if self.grouping is None or not isinstance(key, int):
            return len(work.members)
        return self.grouping.sizes[key]

    def ends(self, work: Meeting, here: dict[int, tuple[int, int]]) -> list[tuple[int, int]]:
        """When each actor that is here ends, in the order of ranks."""
        of = work.kind, work.size_bytes, work.members, work.involved
        if len(here) == 1:  # all are alike and begin together
            ((actor, (_, began)),) = here.items()
            return [(actor, began + self.collectives.together(*of))]
        begins = [here[self.part[m]][1] for m in work.members]
        ends = self.collectives.ends(*of, begins)
        found: dict[int, int] = {}
        for member, at in zip(work.members, ends, strict=True):
            found.setdefault(self.part[member], at)
        return list(found.items())

    def send(self, work: MessageEnd, number: int, node: int, now: int) -> None:
        """A message leaves; both sides are done when it arrives."""
        key = self.key(number, node, work)
        if self.awaited[key]:
            exchange = self.awaited[key].popleft()
        else:
            exchange = _Exchange()
            self.sent[key].append(exchange)
        takes = self.fabric.message_ns(work.source, work.target, work.size_bytes)
        self.ranks[number].spend(None, (work.source, work.target), node, takes, 0)
        self.later(now + takes, now, number, node, exchange)

    def receive(self, work: MessageEnd, number: int, node: int, now: int) -> None:
        """A rank asks for a message, which may have arrived already."""
        key = self.key(number, node, work)
        if not self.sent[key]:
            self.awaited[key].append(_Exchange(receiver=(number, node)))
            return
        exchange = self.sent[key].popleft()
        exchange.receiver = number, node
        if exchange.arrived:
            self.later(now, now, number, node)

    def arrive(self, exchange: _Exchange, now: int) -> None:
        """The bytes are there; the receiver goes on if it has asked."""
        exchange.arrived = True
        if exchange.receiver[1] >= 0:
            self.end(*exchange.receiver, now)
