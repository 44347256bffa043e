"""Traces as ASTRA-sim runs them: what each node takes, with whom, and what it waits for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from flint.backends.chakra.reading.reader import Decoder, TraceNode, read_bytes, records, unpack
from flint.backends.chakra.reading.trace_files import Membership, TraceSet
from flint.backends.chakra.schema import CommType, NodeType
from flint.backends.cost.astrasim.disturbance import UNDISTURBED, Disturbance
from flint.cluster.astrasim.memory import NOTHING, PER_NPU, read_memory
from flint.cluster.astrasim.system import SystemFile
from flint.errors import FlintError

#: Collectives that it simulates.
_KINDS = (CommType.ALL_REDUCE, CommType.ALL_GATHER, CommType.REDUCE_SCATTER, CommType.ALL_TO_ALL)
_TYPES = frozenset(NodeType) - {NodeType.INVALID, NodeType.METADATA}
#: Tags are taken modulo this.
_TAGS = 500_000_000


@dataclass(frozen=True, slots=True)
class Meeting:
    """A collective: of what, how large, between whom, along which dimensions (None: one ring)."""

    kind: CommType
    size_bytes: int
    members: Sequence[int]
    involved: tuple[bool, ...] | None
    group: int


@dataclass(frozen=True, slots=True)
class MessageEnd:
    """One end of a message. Equal messages are matched in the order in which they are issued."""

    source: int
    target: int
    tag: int
    size_bytes: int


@dataclass(frozen=True, eq=False, slots=True)
class RankTrace:
    """The nodes of one rank in ascending order of their ids, in columns.

    `work` is nanoseconds, a `Meeting` or a `MessageEnd`; node i waits for `waits[i]` others, and
    `children[i]` wait for it. `id` and `name` are those in the file. `of_host` are computations of
    the host, which has a slot of its own for them.
    """

    id: list[int]
    name: list[str]
    type: list[NodeType]
    work: list[int | Meeting | MessageEnd]
    waits: list[int]
    children: list[list[int]]
    of_host: frozenset[int]


class _CannotRunError(Exception):
    """Why ASTRA-sim does not run a node."""


class TraceReader:
    """Reads ranks of one directory; nodes of equal bytes are decoded once.

    Raises FlintError FL602, FL603, FL604 (a file that is not a trace), FL707 (a node that ASTRA-sim
    does not run).
    """

    def __init__(
        self,
        traces: TraceSet,
        sizes: tuple[int, ...],
        system: SystemFile,
        disturbance: Disturbance = UNDISTURBED,
        memory: Path | None = None,
    ) -> None:
        self._system = system
        self._memory = read_memory(memory or traces.folder / "memory.json")
        self.disturbance = disturbance
        self._world = len(traces.paths)
        self._decoder = Decoder()
        self._membership = Membership(self._world, traces.groups, sizes)
        self._everywhere = (True,) * len(sizes)
        self._members: dict[int, list[int]] = {}
        self._groups: dict[tuple[str | tuple[bool, ...], int], tuple[int, list[int]]] = {}

    def read(self, rank: int, path: Path) -> RankTrace:
        """The trace of one rank."""
        nodes = sorted(self._nodes(path), key=lambda n: n.id)
        if self.disturbance.touches(rank):
            nodes = self.disturbance.nodes(rank, nodes)
        place = {n.id: i for i, n in enumerate(nodes)}
        waits, children = [0] * len(nodes), [list[int]() for _ in nodes]
        for i, node in enumerate(nodes):
            for dep in {*node.data_deps, *node.ctrl_deps}:
                if dep not in place:
                    _refuse(path, node, f"waits for node {dep}, which does not exist")
                children[place[dep]].append(i)
                waits[i] += 1
        work = [self._work(node, rank, path) for node in nodes]
        ids, names = [n.id for n in nodes], [n.name for n in nodes]
        of_host = frozenset(i for i, n in enumerate(nodes) if _value(n, "is_cpu_op", False))
        return RankTrace(ids, names, [n.type for n in nodes], work, waits, children, of_host)

    def _nodes(self, path: Path) -> Iterator[TraceNode]:
        source = str(path)
        data = unpack(read_bytes(path), source)
        spans = records(data, source)
        self._decoder.metadata(data[slice(*next(spans))], source)
        for start, stop in spans:
            yield self._decoder.node(data[start:stop], source, start)

    def _work(self, node: TraceNode, rank: int, path: Path) -> int | Meeting | MessageEnd:
        if node.type not in _TYPES:
            _refuse(path, node, f"is of type {node.type.name}")
        try:
            if node.type is NodeType.COMP:
                return self._compute_ns(node)
            if node.type in (NodeType.MEM_LOAD, NodeType.MEM_STORE):
                return self._memory_ns(node)
            if node.type is NodeType.COMM_COLL:
                return self._meeting(node, rank)
            return _message(node, rank)
        except _CannotRunError as error:
            _refuse(path, node, f"cannot be run: {error}")

    def _compute_ns(self, node: TraceNode) -> int:
        """Its duration, or the roofline if the system file says so."""
        if not self._system.roofline_enabled:
            return node.duration_micros * 1000 or 1
        flops, moved = _number(node, "num_ops"), _number(node, "tensor_size")
        if min(flops, moved) <= 0:
            raise _CannotRunError("num_ops and tensor_size must be above 0 if the roofline is on")
        speed = self._system.local_mem_bw * 1e9 * (flops / moved)
        return int(flops / min(speed, self._system.peak_perf * 1e12) * 1e9)

    def _memory_ns(self, node: TraceNode) -> int:
        """How long a node of remote memory takes, which no other rank uses meanwhile."""
        memory = self._memory
        if memory is None or memory.memory_type == NOTHING:
            raise _CannotRunError("it moves remote memory, and the file of remote memory has none")
        if memory.memory_type != PER_NPU:
            raise _CannotRunError(f"memory of type {memory.memory_type} is not modeled")
        if not memory.remote_mem_bw:
            raise _CannotRunError("the file of remote memory has no remote-mem-bw")
        return memory.takes_ns(_number(node, "tensor_size"))

    def _meeting(self, node: TraceNode, rank: int) -> Meeting:
        number, size = _number(node, "comm_type"), _number(node, "comm_size")
        if number not in _KINDS:
            raise _CannotRunError(f"collectives of type {number} are not simulated")
        kind = CommType(number)
        name = str(_value(node, "pg_name", ""))
        involved = tuple(map(bool, _value(node, "involved_dim", self._everywhere)))
        named = name not in ("", "0")
        group, members = self._group(name if named else involved, rank)
        if size <= 0 or len(members) < 2 or rank not in members:
            raise _CannotRunError(f"{size} bytes between {len(members)} ranks never end")
        if named:
            whole = len(members) == self._world
            return Meeting(kind, size, members, self._everywhere if whole else None, group)
        return Meeting(kind, size, members, involved, -1)

    def _group(self, name: str | tuple[bool, ...], rank: int) -> tuple[int, list[int]]:
        """Number and members, ascending, of a group on a rank."""
        found = self._groups.get((name, rank))
        if found is None:
            numbers = self._membership.resolve(name, np.array([rank]))
            if isinstance(numbers, str):
                raise _CannotRunError(numbers)
            number = int(numbers[0])
            if number not in self._members:
                self._members[number] = sorted(self._membership.members[number])
            found = self._groups[name, rank] = number, self._members[number]
        return found


def _message(node: TraceNode, rank: int) -> MessageEnd:
    sends = node.type is NodeType.COMM_SEND
    source = rank if sends else _number(node, "comm_src")
    target = _number(node, "comm_dst") if sends else rank
    if source == target:
        raise _CannotRunError("it is a message to itself")
    return MessageEnd(source, target, _number(node, "comm_tag") % _TAGS, _number(node, "comm_size"))


def _value(node: TraceNode, name: str, default: Any) -> Any:
    return node.attributes[name][1] if name in node.attributes else default


def _number(node: TraceNode, name: str) -> int:
    value = _value(node, name, None)
    if not isinstance(value, int):
        raise _CannotRunError(f"{name} is missing")
    return value


def _refuse(path: Path, node: TraceNode, why: str) -> NoReturn:
    raise FlintError(
        "FL707",
        f"ASTRA-sim does not run these traces: node {node.id} {why}",
        place=str(path),
        help="flint check lists all problems",
    )
