"""Written traces, timed by closed formulas of ASTRA-sim's analytical backend, without ASTRA-sim.

The formulas hold to the cycle (1 cycle = 1 ns) for the congestion-unaware backend with ring
collectives, one chunk and one split, endpoint delay 10. They were established by comparison with
the simulator; its own figures are anchors below.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from flint.backends.chakra import TraceFile, read, write
from flint.backends.chakra.reading.trace_files import read_network
from flint.backends.chakra.schema import CommType, NodeType
from flint.ir.mesh import AxisRef, Mesh, Route
from flint.ir.program import Collective, Kind
from flint.ir.workload import Workload
from tests.chakra_traces import over
from tests.program_rows import ProgramBuilder

MIB = 1 << 20
ENDPOINT_DELAY = 10


@dataclass(frozen=True)
class Dimension:
    """One network dimension: GB/s (2**30), ns per hop, hops between neighbours (Switch: 2)."""

    bandwidth: float
    latency: float
    hops: int = 2

    def message(self, size: float) -> int:
        """ns of one message of `size` bytes."""
        return math.floor(self.hops * self.latency + size / (self.bandwidth * 2**30 / 1e9))


def reduction(size: float, memory_bandwidth: float = 3350) -> int:
    """ns to add two buffers of `size` bytes: read twice, write once, at GB/s of 1e9."""
    return 3 * math.floor(size / memory_bandwidth)


def collective(kind: int, n: int, size: int, dim: Dimension) -> int:
    """ns of one collective over `n` ranks along one dimension; `size` is one rank's input."""
    part = size / n
    if kind == CommType.ALL_GATHER:
        return (n - 1) * dim.message(size) + ENDPOINT_DELAY * n
    if kind == CommType.REDUCE_SCATTER:
        return (n - 1) * (dim.message(part) + reduction(part)) + ENDPOINT_DELAY * n
    if kind == CommType.ALL_REDUCE:
        steps = 2 * (n - 1) * dim.message(part) + (n - 1) * reduction(part)
        return steps + ENDPOINT_DELAY * (2 * n - 1)
    steps = n * (n - 1) // 2
    return steps * dim.message(part) + ENDPOINT_DELAY * (steps + 1)


@pytest.mark.parametrize(
    ("kind", "size", "cycles"),
    [
        (CommType.ALL_GATHER, MIB, 68435),
        (CommType.REDUCE_SCATTER, 8 * MIB, 75008),
        (CommType.ALL_REDUCE, 8 * MIB, 143433),
        (CommType.ALL_TO_ALL, 8 * MIB, 273710),
    ],
)
def test_formulas_give_what_the_simulator_gave(kind: CommType, size: int, cycles: int) -> None:
    """ASTRA-sim master, 8 ranks, 100 GB/s, no latency."""
    assert collective(kind, 8, size, Dimension(100, 0)) == cycles


def test_messages_take_what_the_simulator_took() -> None:
    assert Dimension(400, 500).message(MIB) == 3441
    assert Dimension(50, 2000).message(MIB) == 23531


class Timer:
    """Times one rank of a trace in which all ranks do the same at the same time.

    One communication and one computation at a time, of those that are ready the smallest id; a
    receive holds no slot and ends when the peer, which is as fast, has sent.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self.trace: TraceFile = read(folder / f"trace.{rank}.et")
        self.groups = json.loads((folder / "comm_group.json").read_text())
        self.sizes = read_network(folder / "network.yml") or ()
        self.dims = [Dimension(450 if i == 0 else 50, 500 if i == 0 else 2000) for i in range(9)]

    def dimension(self, ranks: Iterable[int]) -> Dimension:
        """The one network dimension in which `ranks` differ."""
        first, second = list(ranks)[:2]
        for size, dim in zip(self.sizes, self.dims, strict=False):
            if first % size != second % size:
                return dim
            first, second = first // size, second // size
        raise AssertionError("ranks are equal")

    def duration(self, index: int) -> int:
        """ns of one node: roofline of 900 TFLOP/s and 3350 GB/s, or a closed formula."""
        node = self.trace.nodes[index]
        value = {name: v for name, (_, v) in node.attributes.items()}
        if node.type is NodeType.COMP:
            return int(max(value["num_ops"] / 900e3, value["tensor_size"] / 3350))
        if node.type is NodeType.COMM_COLL:
            ranks = self.groups[value["pg_name"]]
            dim = self.dimension(ranks)
            return collective(value["comm_type"], len(ranks), value["comm_size"], dim)
        if node.type is NodeType.COMM_SEND:
            ends = value["comm_src"], value["comm_dst"]
            return self.dimension(ends).message(value["comm_size"])
        return 0

    def total(self) -> int:
        """ns until the last node ends."""
        nodes = self.trace.nodes
        left = {n.id: len(n.data_deps) for n in nodes}
        index = {n.id: i for i, n in enumerate(nodes)}
        ready = {True: [n.id for n in nodes if not n.data_deps], False: list[int]()}
        queues: dict[NodeType, list[int]] = {NodeType.COMP: [], NodeType.COMM_COLL: []}
        free = dict.fromkeys(queues, 0)
        sent: dict[int, int] = {}
        posted: dict[int, tuple[int, int]] = {}
        events: list[tuple[int, int]] = []
        now = 0
        for node_id in ready[True]:
            heapq.heappush(events, (0, ~node_id))
        while events:
            now = events[0][0]
            while events and events[0][0] == now:
                _, what = heapq.heappop(events)
                if what < 0:  # became ready
                    node = nodes[index[~what]]
                    tag = node.attributes.get("comm_tag", ("", 0))[1]
                    if node.type is NodeType.COMM_RECV:
                        posted[tag] = (now, node.id)
                        if tag in sent:
                            heapq.heappush(events, (max(now, sent[tag]), node.id))
                    else:
                        is_comp = node.type is NodeType.COMP
                        queue = queues[NodeType.COMP if is_comp else NodeType.COMM_COLL]
                        heapq.heappush(queue, node.id)
                    continue
                for child in nodes:
                    if what in child.data_deps:
                        left[child.id] -= 1
                        if not left[child.id]:
                            heapq.heappush(events, (now, ~child.id))
            for slot, queue in queues.items():
                if queue and free[slot] <= now:
                    node_id = heapq.heappop(queue)
                    node = nodes[index[node_id]]
                    free[slot] = now + self.duration(index[node_id])
                    heapq.heappush(events, (free[slot], node_id))
                    if node.type is NodeType.COMM_SEND:
                        tag = node.attributes["comm_tag"][1]
                        sent[tag] = free[slot]
                        if tag in posted:
                            heapq.heappush(events, (free[slot], posted[tag][1]))
        return now


def compute(b: ProgramBuilder, nanoseconds: int, *deps: int) -> int:
    return b.add("dot", deps=deps, flops=nanoseconds * 900_000, result_bytes=8)


def communicate(b: ProgramBuilder, kind: Collective, axis: str, size: int, *deps: int) -> int:
    route = Route((AxisRef(axis),), 1) if kind is Collective.PERMUTE else None
    return b.add(
        kind.name,
        Kind.COLLECTIVE,
        deps=deps,
        collective=kind,
        group=None if route else over(axis),
        route=route,
        comm_bytes=size,
    )


def step() -> Workload:
    b = ProgramBuilder(Mesh.parse("data=4,model=2"))
    first = compute(b, 1000)
    reduced = communicate(b, Collective.ALL_REDUCE, "model", 2 * MIB, first)
    beside = compute(b, 5000, first)
    gathered = communicate(b, Collective.ALL_GATHER, "data", MIB, first)
    moved = communicate(b, Collective.PERMUTE, "data", MIB, reduced)
    compute(b, 1000, moved, beside, gathered)
    return Workload.single(b.build())


def test_step_takes_the_time_worked_out_by_hand(tmp_path: Path) -> None:
    """Communication is serialised in order of id, the computation of 5000 ns is hidden.

    1000 ns compute; then all-reduce of 2 MiB over 2 ranks, in parts of 1 MiB that take
    2 * 500 + 2170 = 3170 ns and 3 * 313 to add: 2 * 3170 + 939 + 10 * 3 = 7309; then all-gather of
    1 MiB over 4 ranks, 3 messages of 2 * 2000 + 19531 = 23531 ns: 3 * 23531 + 10 * 4 = 70633; then
    one message of 23531; then 1000 ns compute.
    """
    write(step(), tmp_path / "out")
    by_hand = 1000 + 7309 + 70633 + 23531 + 1000
    assert by_hand == 103473
    for rank in range(8):
        assert Timer(tmp_path / "out", rank).total() == by_hand


def test_network_file_is_what_the_timer_assumes(tmp_path: Path) -> None:
    write(step(), tmp_path / "out")
    text = (tmp_path / "out" / "network.yml").read_text()
    assert "topology: [ Switch, Switch ]" in text
    assert "bandwidth: [ 450.0, 50.0 ]" in text
    assert "latency: [ 500.0, 2000.0 ]" in text
