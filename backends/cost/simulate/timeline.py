"""When each rank class does what: streams in order, dependencies, messages between classes.

One rank stands for its class. A stream starts its next node when the node before it on the stream
and everything that the node depends on have ended. Computation has one stream, collectives one for
each tier of the network, sends and receives one each for a tier. A message arrives at the class
that receives it; a collective whose group reaches into several classes starts when all are there.

Kernels that a program put on a stream of its own (PyTorch's FSDP copies parameters together on one)
have that stream, beside the one of computation. Each kernel takes as long as if it were alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flint.backends.chakra.writing.expand import Nodes, occurrences
from flint.backends.cost.simulate.layers import layer_runs, preparation
from flint.backends.cost.simulate.steady_state import place_alone
from flint.errors import FlintError
from flint.ir.arrays import Float64s
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Flag, Int64s, Kind, Phase, Program
from flint.passes.rewrites.combine_collectives import CombineCollectives


@dataclass(frozen=True)
class Policy:
    """How far before its place in the program communication may begin.

    `layers_ahead` bounds communication that waits for no computation (gathering the next
    parameters): it may begin when so many layers before its own do, 0 for when the kernel before it
    in the program does, None for no bound. `combined` says which collectives are joined to larger
    ones before, `blocking` makes computation wait for every collective and for what it sends. With `prepares_ahead`
    kernels that make of parameters what is gathered run beside the others (see `preparing`), so that
    a loop gathers for its next iteration. What comes from the host is loaded an iteration ahead
    unless all runs at its place. `recorded`: every row has the stream and the host's launch
    that a profiler recorded, and nothing is moved.
    """

    name: str
    summary: str
    layers_ahead: int | None = None
    combined: CombineCollectives | None = None
    blocking: bool = False
    prepares_ahead: bool = False
    recorded: bool = False

    @property
    def keeps_streams(self) -> bool:
        """Whether kernels run on the streams of the program: not where all runs at its place."""
        return self.layers_ahead != 0


#: XLA for GPUs: xla_gpu_{all_reduce,all_gather,reduce_scatter}_combine_threshold_bytes.
XLA_COMBINES = CombineCollectives(
    30 * 2**20 + 7, (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
)
#: PyTorch's DistributedDataParallel: bucket_cap_mb, for the gradients.
DDP_BUCKETS = CombineCollectives(25 * 2**20, (Collective.ALL_REDUCE,), (Phase.BACKWARD,))
#: Policies by name.
POLICIES: dict[str, Policy] = {
    p.name: p
    for p in (
        Policy(
            "overlap",
            "communication begins as soon as its dependencies have ended",
            prepares_ahead=True,
        ),
        Policy(
            "xla",
            "as XLA: the same within an iteration of a loop; small collectives of a kind are joined, up to 30 MiB",
            combined=XLA_COMBINES,
        ),
        Policy(
            "ddp",
            "as overlap; all-reduces of gradients are joined into buckets of 25 MiB",
            combined=DDP_BUCKETS,
            prepares_ahead=True,
        ),
        Policy("fsdp", "parameters are gathered at most one layer ahead", 1, prepares_ahead=True),
        Policy("in-order", "communication begins at its place in the program", 0),
        Policy("blocking", "computation waits for every collective and message", 0, blocking=True),
    )
}

#: The policy of programs that are made of profiles, which no other can take the place of.
RECORDED = Policy("recorded", "everything runs on its recorded stream", recorded=True)


@dataclass(frozen=True, eq=False)
class ClassWork:
    """What one rank class does, priced.

    `duration_ns` goes by row of the program. `stream` too: 0 is computation, others are indices
    into `Timeline.streams`. `peers[row]` is the class that a RECV row's message comes from;
    `together[row]` are the classes that take part in a collective, if they are more than one.

    `launch_ns` is how often the host launches a kernel or collective; 0 where it is never late. It
    launches in order and runs ahead, but waits for each message that is received. `layer` is that
    of each node where nodes are not in the order of the program (see `layers`). If `recorded`, what
    is received of nobody takes the time that it took.
    """

    program: Program
    nodes: Nodes
    duration_ns: Float64s
    stream: NDArray[np.int64]
    peers: dict[int, int] = field(default_factory=dict)
    together: dict[int, tuple[int, ...]] = field(default_factory=dict)
    launch_ns: float = 0.0
    layer: NDArray[np.int64] | None = None
    recorded: bool = False


@dataclass(frozen=True, eq=False)
class ClassTimeline:
    """Start and end of every node of a rank class, in nanoseconds from the start of the step."""

    work: ClassWork
    start_ns: Float64s
    end_ns: Float64s

    @property
    def total_ns(self) -> float:
        """When the last node ends."""
        return float(self.end_ns.max()) if len(self.end_ns) else 0.0


@dataclass(frozen=True, eq=False)
class Timeline:
    """All rank classes, and the names of the streams."""

    classes: tuple[ClassTimeline, ...]
    streams: tuple[str, ...]

    @property
    def total_ns(self) -> float:
        """The step time: when the last rank class ends."""
        return max((c.total_ns for c in self.classes), default=0.0)


def simulate(
    works: Sequence[ClassWork],
    streams: tuple[str, ...],
    policy: Policy = POLICIES["overlap"],
    *,
    every_node: bool = False,
) -> Timeline:
    """Place every node in time. Raises FlintError FL708 if classes wait for each other forever.

    Where classes do not wait for each other, loops are followed until they repeat themselves (see
    `steady_state`); where they do, what follows without waiting is placed together (see `runs`).
    `every_node` follows each node, with the same result.
    """
    apart = not any(w.peers or w.together or w.launch_ns for w in works)
    if apart and not every_node:
        return Timeline(tuple(_alone(w, policy) for w in works), streams)
    if not every_node and (found := _by_runs(works, policy)):
        return Timeline(found, streams)
    world = _World(policy, len(works))
    tracks = [_Track(number, work, world) for number, work in enumerate(works)]
    moved = True
    while moved:
        moved = False
        for track in tracks:
            moved = track.advance() or moved
    stuck = [track for track in tracks if track.left]
    if stuck:
        raise _wait_for_ever(stuck)
    done = tuple(ClassTimeline(t.work, np.array(t.start), np.array(t.end)) for t in tracks)
    return Timeline(done, streams)


def _by_runs(works: Sequence[ClassWork], policy: Policy) -> tuple[ClassTimeline, ...]:
    """The classes in time; empty where each node has to be followed, or never would all end."""
    if any(w.launch_ns for w in works):
        return ()
    from flint.backends.cost.simulate.runs import Lane, is_exact, place_together

    lanes = [
        Lane(
            *(w.program, w.nodes, w.stream[w.nodes.row], w.duration_ns, limits(policy, w)),
            *(turns(w.program, w.nodes), w.peers, w.together, w.recorded),
        )
        for w in works
    ]
    placed = place_together(lanes) if is_exact(lanes) else None
    return tuple(ClassTimeline(w, *times) for w, times in zip(works, placed or (), strict=False))


def _wait_for_ever(stuck: Sequence[_Track]) -> FlintError:
    listed = "; ".join(f"class {track.number} for {track.waits_for()}" for track in stuck[:4])
    more = f" and {len(stuck) - 4} more classes" if len(stuck) > 4 else ""
    return FlintError(
        "FL708",
        f"the step never ends, because ranks wait for each other: {listed}{more}",
        help="`flint check` on the traces says which ranks wait, and for what",
    )


def _alone(work: ClassWork, policy: Policy) -> ClassTimeline:
    nodes = work.nodes
    by_stream = work.stream[nodes.row]
    # without a sender there is nothing to wait for
    received = (work.program.kind[nodes.row] == Kind.RECV) & (not work.recorded)
    duration = np.where(received, 0.0, work.duration_ns[nodes.row])
    placed = place_alone(
        work.program, nodes, previous_on(by_stream), limits(policy, work), duration
    )
    return ClassTimeline(work, *placed)


class _World:
    """What rank classes know of each other: messages that arrived, collectives that gather."""

    def __init__(self, policy: Policy, classes: int) -> None:
        self.policy = policy
        self.arrivals: list[dict[tuple[int, int], float]] = [{} for _ in range(classes)]
        self.meetings: dict[tuple[object, ...], dict[int, float]] = {}


class _Track:
    """One rank class on its way through its nodes."""

    def __init__(self, number: int, work: ClassWork, world: _World) -> None:
        self.number, self.work, self.world = number, work, world
        nodes, program = work.nodes, work.program
        self.rows = nodes.row.tolist()
        self.first, self.deps = nodes.dep_start.tolist(), nodes.deps.tolist()
        self.kind = program.kind.tolist()
        self.channel = program.channel.tolist()
        self.duration = work.duration_ns.tolist()
        self.turn = turns(program, nodes)
        self.start = [0.0] * len(nodes)
        self.end = [-1.0] * len(nodes)
        self.left = len(nodes)
        by_stream = work.stream[nodes.row]
        self.queues = [np.flatnonzero(by_stream == s).tolist() for s in np.unique(by_stream)]
        self.heads = [0] * len(self.queues)
        self.free = [0.0] * len(self.queues)
        self.limits = limits(world.policy, work)
        # Collectives are launched by the same host, in the order of the program.
        kinds = program.kind[nodes.row]
        launches = (kinds == Kind.COMPUTE) | (kinds == Kind.COLLECTIVE)
        self.launches = np.cumsum(launches & ~_replayed(program, nodes)).tolist()
        self.launched, self.done = 0.0, 0
        self.computes = bool((by_stream == 0).any())

    def advance(self) -> bool:
        """Place what can be placed; whether anything was."""
        moved = False
        again = True
        while again:
            again = False
            for number, queue in enumerate(self.queues):
                if self._advance_stream(number, queue):
                    again = moved = True
        return moved

    def waits_for(self) -> str:
        """The first communication that this class cannot end."""
        program = self.work.program
        heads = [q[at] for at, q in zip(self.heads, self.queues, strict=True) if at < len(q)]
        rows = sorted(self.rows[node] for node in heads)
        row = next((r for r in rows if self.kind[r] >= Kind.COLLECTIVE), rows[0])
        return f"{program.opcodes[program.opcode[row]]} in row {row}"

    def _advance_stream(self, number: int, queue: list[int]) -> bool:
        head, free = self.heads[number], self.free[number]
        first, deps, ends, starts = self.first, self.deps, self.end, self.start
        begun = head
        while head < len(queue):
            node = queue[head]
            ready = free
            for at in range(first[node], first[node + 1]):
                ended = ends[deps[at]]
                if ended < 0:
                    ready = -1.0
                    break
                ready = max(ready, ended)
            if ready < 0:
                break
            limit = self.limits[node]
            if limit >= 0:
                if ends[limit] < 0:
                    break
                ready = max(ready, starts[limit])
            before = self.launched, self.done
            if number == 0 and self.computes and self.work.launch_ns:
                ready = self._launched(node, ready)
            placed = self._place(node, ready)
            if placed is None:
                self.launched, self.done = before
                break
            starts[node], ends[node] = placed
            free = placed[1]
            head += 1
        self.heads[number], self.free[number] = head, free
        self.left -= head - begun
        return head > begun

    def _launched(self, node: int, ready: float) -> float:
        """When a kernel that could begin at `ready` begins, the host having launched it."""
        self.launched += self.work.launch_ns * (self.launches[node] - self.done)
        self.done = self.launches[node]
        for dep in self.deps[self.first[node] : self.first[node + 1]]:
            if self.kind[self.rows[dep]] == Kind.RECV:
                self.launched = max(self.launched, self.end[dep])
        return max(ready, self.launched)

    def _place(self, node: int, ready: float) -> tuple[float, float] | None:
        """Start and end of a node that is ready, or None while it waits for another class."""
        row = self.rows[node]
        kind = self.kind[row]
        if kind == Kind.RECV:
            return self._receive(node, row, ready)
        if row in self.work.together:
            met = self._meet(node, row, ready)
            if met is None:
                return None
            ready = met
        ended = ready + self.duration[row]
        if kind == Kind.SEND:
            self.world.arrivals[self.number][self.channel[row], self.turn[node]] = ended
        return ready, ended

    def _receive(self, node: int, row: int, ready: float) -> tuple[float, float] | None:
        source = self.work.peers.get(row)
        if source is None:
            return ready, ready + (self.duration[row] if self.work.recorded else 0.0)
        arrived = self.world.arrivals[source].get((self.channel[row], self.turn[node]))
        if arrived is None:
            return None
        return ready, max(ready, arrived)

    def _meet(self, node: int, row: int, ready: float) -> float | None:
        group = self.work.program.met_over(row)
        met = self.work.together[row]  # groups over the same axes may be of other classes
        here = self.world.meetings.setdefault((group, met, self.turn[node]), {})
        here[self.number] = ready
        if len(here) < len(met):
            return None
        return max(here.values())


def _replayed(program: Program, nodes: Nodes) -> NDArray[np.bool_]:
    """Nodes that the launch of another brings along: all but the first in a row of a CUDA graph."""
    found = ((program.flags & Flag.REPLAYED) != 0)[nodes.row]
    found[1:] &= found[:-1].copy()
    found[:1] = False
    return np.asarray(found, dtype=np.bool_)


def previous_on(by_stream: NDArray[np.int64]) -> list[int]:
    """For each node the one before it on its stream, or -1."""
    order = np.argsort(by_stream, kind="stable")
    same = np.append(False, by_stream[order][1:] == by_stream[order][:-1])[: len(order)]
    found = np.full(len(order), -1, dtype=np.int64)
    found[order[same]] = order[np.flatnonzero(same) - 1]
    return found.tolist()


def limits(policy: Policy, work: ClassWork) -> list[int]:
    """For each node the kernel that must have begun before it may begin, or -1."""
    by_stream = work.stream[work.nodes.row]
    kernels = np.flatnonzero(by_stream == 0)
    loads = (work.program.op == OpClass.FROM_HOST)[work.nodes.row] & (by_stream != 0)
    if policy.recorded or not len(kernels) or (policy.layers_ahead is None and not loads.any()):
        return [-1] * len(by_stream)
    if policy.layers_ahead is None:
        found = np.full(len(by_stream), -1, dtype=np.int64)
    else:
        found = _limits_of_layers(policy.layers_ahead, work, kernels)
    found[loads] = _turns_of_loads(work, kernels, np.flatnonzero(loads), policy.keeps_streams)
    return np.where(by_stream == 0, -1, found).tolist()  # type: ignore[no-any-return]


def _turns_of_loads(work: ClassWork, kernels: Int64s, nodes: Int64s, ahead: bool) -> Int64s:
    """The kernel with which copies from the host may begin, -1 for none.

    In a loop they begin with their iteration, or with the one before if the policy loads `ahead`;
    elsewhere with the kernel before them. What they bring is counted from there on.
    """
    row, instance = work.nodes.row.astype(np.int64), work.nodes.instance.astype(np.int64)
    region = work.program.region[row].astype(np.int64)
    turn = region * (int(instance.max(initial=0)) + 1) + instance
    turns, first = np.unique(turn[kernels], return_index=True)
    own = np.searchsorted(turns, turn[nodes])
    known = (region[nodes] >= 0) & (own < len(turns))
    known[known] = turns[own[known]] == turn[nodes[known]]
    at = np.searchsorted(kernels, nodes) - 1
    at[known] = np.minimum(first[own[known]] - 1, at[known])
    later = known & (instance[nodes] > 0) & ahead
    before = np.searchsorted(turns, turn[nodes] - 1)
    later[later] = turns[before[later]] == turn[nodes[later]] - 1
    at[later] = first[before[later]]
    return np.where(at >= 0, kernels[np.maximum(at, 0)], -1)


def _limits_of_layers(layers_ahead: int, work: ClassWork, kernels: Int64s) -> Int64s:
    """`limits` of communication that may begin some layers before its own."""
    by_stream = work.stream[work.nodes.row]
    at = np.searchsorted(kernels, np.arange(len(by_stream))) - 1
    if layers_ahead:
        layer = _layers(work) if work.layer is None else work.layer
        first = np.searchsorted(layer[kernels], layer - layers_ahead)
        at = np.where(layer < layers_ahead, -1, np.minimum(at, first))
    return np.where(at >= 0, kernels[np.maximum(at, 0)], -1)


def _layers(work: ClassWork) -> NDArray[np.int64]:
    return layer_runs(work.program, work.nodes, preparation(work.program))


def turns(program: Program, nodes: Nodes) -> list[int]:
    """For each message or collective, how manieth it is of its channel, direction or group."""
    counted = program.kind >= Kind.COLLECTIVE
    numbers: dict[tuple[object, ...], int] = {}
    key = np.zeros(len(program), dtype=np.int64)
    for row in np.flatnonzero(counted).tolist():
        kind, channel = int(program.kind[row]), int(program.channel[row])
        of: tuple[object, ...] = (kind, channel)
        if channel < 0:
            of = (kind, program.met_over(row))
        key[row] = numbers.setdefault(of, len(numbers))
    found = np.zeros(len(nodes), dtype=np.int64)
    mine = np.flatnonzero(counted[nodes.row])
    found[mine] = occurrences(key[nodes.row[mine]])
    return found.tolist()
