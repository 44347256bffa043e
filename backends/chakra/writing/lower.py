"""Nodes of a Program -> nodes of a trace: types, sizes, tags, and who stands at the other end.

ASTRA-sim simulates four collectives, sends and receives. So a permutation becomes one send and
one receive without a dependency between them (nodes that used its result wait for the receive),
and a broadcast becomes an all-gather whose parts add up to the message: a pipelined ring
broadcast of S bytes puts S on each link, this all-gather S * (n - 1) / n, in as many hops.

Collectives and sends get their order in `order`, when all programs of a workload are lowered.

A device runs the kernels of one stream in order, a simulator any kernel whose data are there. So each
kernel also waits for the one before it on its stream; see `_before`.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flint.backends.chakra.schema import CommType, NodeType
from flint.backends.chakra.writing.expand import Nodes, expand, occurrences, sorted_unique
from flint.backends.chakra.writing.simulator_files import (
    GroupNumbers,
    involved_dimensions,
    whole_micros,
)
from flint.ir.arrays import Float64s
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Int32s, Int64s, Kind, Program

if TYPE_CHECKING:
    from flint.backends.chakra.writing.messages import RingMessages

_COMM_TYPES = {
    Collective.ALL_REDUCE: CommType.ALL_REDUCE,
    Collective.ALL_GATHER: CommType.ALL_GATHER,
    Collective.REDUCE_SCATTER: CommType.REDUCE_SCATTER,
    Collective.ALL_TO_ALL: CommType.ALL_TO_ALL,
    Collective.BROADCAST: CommType.ALL_GATHER,
}
#: Copies between a device and its host are stores to and loads from remote memory.
_MEMORY_TYPES = {OpClass.TO_HOST: NodeType.MEM_STORE, OpClass.FROM_HOST: NodeType.MEM_LOAD}
#: How many dependencies away an order that others say already is looked for.
_STEPS = 8


@dataclass(frozen=True, eq=False)
class Slot:
    """A value in a record that differs from rank to rank: a group's number or a peer.

    `values[r]` is that of rank r, -1 where the rank has no such node at all.
    """

    values: Int64s
    is_group: bool


@dataclass
class Names:
    """What all programs of one workload must agree on: group numbers, tags, peers."""

    groups: GroupNumbers
    use_dimensions: bool = False
    as_messages: bool = False  #: collectives are sends and receives
    producers_only: bool = False  #: data_deps name what is read, and order is in ctrl_deps
    tags: dict[Hashable, int] = field(default_factory=dict)

    def tag(self, key: Hashable) -> int:
        """A number for one exchange. Both ends build the same key."""
        return self.tags.setdefault(key, len(self.tags))


@dataclass(frozen=True, eq=False)
class LoweredNodes:
    """Nodes of one rank class's traces, in columns; node i has id i.

    `comm_type`, `comm_bytes`, `tag` are 0 for computation. `slot` is an index into `slots`, or -1
    where all ranks have equal bytes; `dimensions` is an index into `dimension_flags`, or -1.
    `after` is a kernel that node i waits for besides `deps`, only for order, or -1. A dependency may
    be on a larger id. `of_host` are computations of the host. `stream` is -1 for communication; each
    kernel of a stream waits, itself or through others, for the one before it.
    `duration_micros` is 0 where simulators find the time.
    """

    type: NDArray[np.uint8]
    row: Int32s
    dep_start: Int64s
    deps: Int64s
    after: Int64s
    comm_type: NDArray[np.uint8]
    comm_bytes: Int64s
    tag: Int64s
    slot: Int32s
    slots: tuple[Slot, ...]
    dimensions: Int32s
    dimension_flags: tuple[tuple[bool, ...], ...]
    duration_micros: Int64s
    of_host: NDArray[np.bool_]
    stream: Int64s

    def __len__(self) -> int:
        return len(self.type)


def lower(program: Program, names: Names, duration_ns: Float64s | None = None) -> LoweredNodes:
    """Expand `program` and say what each node is in a trace. Numbers new groups and tags.

    `duration_ns` has one entry a row.
    """
    nodes = expand(program)
    rings = _rings(program) if names.as_messages else None
    exchanges = (program.collective == Collective.PERMUTE) + (rings.steps if rings else 0)
    copies = np.maximum(2 * exchanges[nodes.row], 1)
    origin = np.repeat(np.arange(len(nodes)), copies)
    within = np.arange(len(origin)) - np.repeat(np.cumsum(copies) - copies, copies)
    row = nodes.row[origin]
    types = _node_types(program, row, exchanges, within)
    dep_start, deps = _copy_dependencies(nodes, origin, np.cumsum(copies) - 1)
    if rings is not None:
        dep_start, deps = with_pairs(dep_start, deps, *rings.waits(row, within))
    stream = _streams(program, row, types)
    after = _before(dep_start, deps, stream)
    if not names.producers_only:
        later = np.flatnonzero(after >= 0)
        dep_start, deps = with_pairs(dep_start, deps, later, after[later])
        after = np.full(len(row), -1, dtype=np.int64)
    slots, slot, flags, dimensions = _ends(program, names, row, types)
    if rings is not None:
        slots += _ring_ends(rings, row, within, types, slot, len(slots))
    return LoweredNodes(
        type=types,
        row=row,
        dep_start=dep_start,
        deps=deps,
        after=after,
        comm_type=_comm_types(program)[program.collective[row]],
        comm_bytes=_comm_bytes(program, rings)[row],
        tag=_tags(program, names, row, types),
        slot=slot,
        slots=slots,
        dimensions=dimensions,
        dimension_flags=flags,
        duration_micros=np.zeros(len(row), dtype=np.int64)
        if duration_ns is None
        else micros_of(program, row, duration_ns),
        of_host=program.op[row] == OpClass.HOST,
        stream=stream,
    )


def micros_of(program: Program, row: Int32s, duration_ns: Float64s) -> Int64s:
    """Durations of nodes; of measured programs what rounding takes is given on the same stream."""
    if not program.measured_ns.any():
        return whole_micros(duration_ns[row])
    found = np.zeros(len(row), dtype=np.int64)
    stream = program.stream[row]
    for number in np.unique(stream).tolist():
        mine = stream == number
        found[mine] = whole_micros(duration_ns[row[mine]])
    return found


def with_pairs(
    dep_start: Int64s, deps: Int64s, owners: Int64s, targets: Int64s
) -> tuple[Int64s, Int64s]:
    """`dep_start` and `deps` with those of each `owners[i]` on `targets[i]` added."""
    count = len(dep_start) - 1
    owner = np.repeat(np.arange(count, dtype=np.int64), np.diff(dep_start))
    owner = np.concatenate((owner, owners))
    keys = sorted_unique(owner * max(count, 1) + np.concatenate((deps, targets)))
    starts = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(keys // max(count, 1), minlength=count), out=starts[1:])
    return starts, keys % max(count, 1)


def _streams(program: Program, row: Int32s, types: NDArray[np.uint8]) -> Int64s:
    """The stream of each kernel; -1 for communication, which simulators put in order themselves."""
    return np.where(communicates(types), -1, program.stream[row].astype(np.int64))


def _before(dep_start: Int64s, deps: Int64s, stream: Int64s) -> Int64s:
    """For each node with a stream (not -1) the node before it on that; else -1.

    -1 too where it waits for that node already, itself or through communication between the two.
    """
    count = len(stream)
    owner = np.repeat(np.arange(count, dtype=np.int64), np.diff(dep_start))
    before = np.full(count, -1, dtype=np.int64)
    for number in np.unique(stream[stream >= 0]):
        mine = np.flatnonzero(stream == number)
        waits = _last_of(mine, owner, deps, count)[mine[1:]] == mine[:-1]
        before[mine[1:]] = np.where(waits, -1, mine[:-1])
    return before


def _last_of(mine: Int64s, owner: Int64s, deps: Int64s, count: int) -> Int64s:
    """For each node the last of `mine` that it waits for, at most so many steps away; else -1."""
    own = np.full(count, -1, dtype=np.int64)
    own[mine] = mine
    found = np.full(count, -1, dtype=np.int64)
    for _ in range(_STEPS):
        np.maximum.at(found, owner, np.maximum(own, found)[deps])
    return found


def _rings(program: Program) -> RingMessages:
    from flint.backends.chakra.writing.messages import messages_of  # few traces need it

    return messages_of(program)


def _ring_ends(
    rings: RingMessages,
    row: Int32s,
    within: Int64s,
    types: NDArray[np.uint8],
    slot: Int32s,
    first: int,
) -> tuple[Slot, ...]:
    """Slots of messages of rings, from number `first` on; those of the nodes are set."""
    found: list[Slot] = []
    for where, values in rings.ends(row, within, communicates(types) & (slot < 0)):
        slot[where] = first + len(found)
        found.append(Slot(values, is_group=False))
    return tuple(found)


def _node_types(
    program: Program, row: Int32s, exchanges: Int64s, within: Int64s
) -> NDArray[np.uint8]:
    table = np.zeros(len(Kind), dtype=np.uint8)
    table[Kind.COMPUTE] = NodeType.COMP
    table[Kind.COLLECTIVE] = NodeType.COMM_COLL
    table[Kind.SEND] = NodeType.COMM_SEND
    table[Kind.RECV] = NodeType.COMM_RECV
    types: NDArray[np.uint8] = table[program.kind[row]]
    exchanged = exchanges[row] > 0
    types[exchanged] = NodeType.COMM_SEND
    types[exchanged & (within % 2 == 1)] = NodeType.COMM_RECV
    for (
        op,
        node_type,
    ) in _MEMORY_TYPES.items():  # a measured copy keeps its time, which memory has none of
        types[(program.op[row] == op) & (program.measured_ns[row] == 0)] = node_type
    return types


def communicates(types: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Which nodes of these types communicate; the others compute or move memory."""
    return np.asarray(types >= NodeType.COMM_SEND)


def moves_memory(types: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Which nodes of these types load or store remote memory."""
    return np.asarray(types < NodeType.COMP)


def remote_bytes(program: Program, row: int) -> int:
    """The bytes that a row moves over the link to the host, if it is a copy."""
    return max(int(program.operand_bytes[row]), 1)


def _copy_dependencies(nodes: Nodes, origin: Int64s, result: Int64s) -> tuple[Int64s, Int64s]:
    """Dependencies of each copy; `result[n]` is the copy that has node n's result."""
    counts = np.diff(nodes.dep_start)[origin]
    dep_start = np.concatenate(([0], np.cumsum(counts)))
    within = np.arange(dep_start[-1]) - np.repeat(dep_start[:-1], counts)
    deps = result[nodes.deps[np.repeat(nodes.dep_start[origin], counts) + within]]
    return dep_start, deps


def _comm_types(program: Program) -> NDArray[np.uint8]:
    table = np.zeros(len(Collective), dtype=np.uint8)
    for collective, comm_type in _COMM_TYPES.items():
        table[collective] = comm_type
    return table


def _comm_bytes(program: Program, rings: RingMessages | None) -> Int64s:
    """For each row, comm_size: the bytes of the rank's input, its part of a broadcast, or a message's."""
    sizes = program.comm_bytes.copy() if rings is None else rings.num_bytes.copy()
    for row in np.flatnonzero(program.collective == Collective.BROADCAST):
        members = program.groups[program.group[row]].size(program.mesh)
        sizes[row] = -(-sizes[row] // members)
    return sizes


def _ends(
    program: Program, names: Names, row: Int32s, types: NDArray[np.uint8]
) -> tuple[tuple[Slot, ...], Int32s, tuple[tuple[bool, ...], ...], Int32s]:
    """Slots and dimension flags, and which of them each node has."""
    slots: list[Slot] = []
    flags: list[tuple[bool, ...]] = []
    slot = np.full(len(row), -1, dtype=np.int32)
    dimensions = np.full(len(row), -1, dtype=np.int32)
    in_group = types == NodeType.COMM_COLL
    for index in _in_order_of_use(program.group[row[in_group]]):
        group = program.groups[index]
        where = in_group & (program.group[row] == index)
        involved = involved_dimensions(group, program.mesh) if names.use_dimensions else None
        if involved is not None:
            dimensions[where] = len(flags)
            flags.append(involved)
        else:
            slot[where] = len(slots)
            slots.append(Slot(names.groups.of_ranks(group), is_group=True))
    for node_type in (NodeType.COMM_SEND, NodeType.COMM_RECV):
        in_route = types == node_type
        for index in _in_order_of_use(program.route[row[in_route & (program.route[row] >= 0)]]):
            slot[in_route & (program.route[row] == index)] = len(slots)
            slots.append(Slot(_peers(program, index, node_type), is_group=False))
    return tuple(slots), slot, tuple(flags), dimensions


def _peers(program: Program, route: int, node_type: NodeType) -> Int64s:
    """For each rank its peer; -1 also where a rank would send to itself, which keeps its data."""
    along = program.routes[route]
    sends = node_type is NodeType.COMM_SEND
    peers = along.targets(program.mesh) if sends else along.sources(program.mesh)
    return np.where(peers == np.arange(program.mesh.size), -1, peers)


def _tags(program: Program, names: Names, row: Int32s, types: NDArray[np.uint8]) -> Int64s:
    """comm_tag of each node, from what both ends know: group, route or channel, and how manieth."""
    tags = np.zeros(len(row), dtype=np.int64)
    keys: dict[int, tuple[Hashable, ...]] = {}
    turns: defaultdict[Hashable, Iterator[int]] = defaultdict(itertools.count)
    for node in np.flatnonzero(communicates(types)).tolist():
        at = int(row[node])
        if at not in keys:
            keys[at] = _exchange(program, at)
        end = (keys[at], int(types[node]))
        tags[node] = names.tag((keys[at], next(turns[end])))
    return tags


def _exchange(program: Program, row: int) -> tuple[Hashable, ...]:
    if program.channel[row] >= 0:
        return "channel", int(program.channel[row])
    if program.route[row] >= 0:
        return "route", program.routes[program.route[row]]
    return "group", program.groups[program.group[row]]


def _in_order_of_use(indices: Int32s) -> list[int]:
    return [int(i) for i in indices[occurrences(indices) == 0]]
