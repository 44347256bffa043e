"""Collectives written as the sends and receives of their rings."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from flint.backends.chakra import check, write
from flint.backends.chakra.reading.reader import TraceNode, read
from flint.backends.chakra.schema import NodeType
from flint.backends.cost.astrasim.run import simulate_traces
from flint.errors import FlintError
from flint.ir.mesh import Group, Mesh
from flint.ir.program import Collective, Kind
from flint.ir.workload import Workload
from tests.chakra_traces import layered_program, over
from tests.late_ranks import tangled
from tests.program_rows import ProgramBuilder

SIZE = 4000
#: Kind -> messages of one rank in a group of n, and the bytes of each.
RINGS = {
    Collective.ALL_REDUCE: (lambda n: 2 * (n - 1), lambda n: SIZE // n),
    Collective.REDUCE_SCATTER: (lambda n: n - 1, lambda n: SIZE // n),
    Collective.ALL_GATHER: (lambda n: n - 1, lambda n: SIZE),
    Collective.ALL_TO_ALL: (lambda n: n - 1, lambda n: SIZE // n),
    Collective.BROADCAST: (lambda n: n - 1, lambda n: SIZE // n),
}


def alone(kind: Collective, group: Group, mesh: str = "data=4,model=2") -> Workload:
    """A kernel, a collective, and a kernel that reads it."""
    b = ProgramBuilder(Mesh.parse(mesh))
    made = b.add("dot", flops=9, result_bytes=SIZE)
    told: dict[str, Any] = {"collective": kind, "group": group, "comm_bytes": SIZE}
    found = b.add(kind.name.lower(), Kind.COLLECTIVE, deps=[made], **told)
    b.add("dot", deps=[found], flops=9, result_bytes=8)
    return Workload.single(b.build())


def written(workload: Workload, folder: Path) -> dict[int, list[TraceNode]]:
    write(workload, folder, groups="p2p")
    assert check(folder).ok and (folder / "comm_group.json").read_text() == "{}\n"
    return {r: list(read(folder / f"trace.{r}.et").nodes) for r in range(workload.mesh.size)}


def value(node: TraceNode, name: str) -> Any:
    return node.attributes[name][1]


@pytest.mark.parametrize("kind", RINGS)
@pytest.mark.parametrize("axes", [("data",), ("model",), ("data", "model")])
def test_a_collective_is_the_messages_of_its_ring(
    kind: Collective, axes: tuple[str, ...], tmp_path: Path
) -> None:
    workload = alone(kind, over(*axes))
    (group,) = workload.programs[0].groups
    n = group.size(workload.mesh)
    number, size = (f(n) for f in RINGS[kind])
    ranks = written(workload, tmp_path / "out")
    rings = [list(g) for g in group.members(workload.mesh)]
    for rank, nodes in ranks.items():
        ring = next(g for g in rings if rank in g)
        at = ring.index(rank)
        sends = [x for x in nodes if x.type is NodeType.COMM_SEND]
        receives = [x for x in nodes if x.type is NodeType.COMM_RECV]
        assert len(sends) == len(receives) == number
        assert {value(x, "comm_size") for x in [*sends, *receives]} == {size}
        away = range(1, n) if kind is Collective.ALL_TO_ALL else [1] * number
        assert [value(x, "comm_dst") for x in sends] == [ring[(at + k) % n] for k in away]
        assert [value(x, "comm_src") for x in receives] == [ring[(at - k) % n] for k in away]
        if kind is not Collective.ALL_TO_ALL:  # a rank sends on what it has received
            for sent, received in zip(sends[1:], receives, strict=False):
                assert received.id in sent.data_deps
        assert receives[-1].id in nodes[-1].data_deps
    step = simulate_traces(tmp_path / "out", tmp_path / "out" / "network.yml")
    assert len(set(step.end_ns)) == 1 and step.compute_ns[0] < step.step_time_ns


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_end_and_send_as_many_bytes(seed: int, tmp_path: Path) -> None:
    workload = Workload.single(tangled(seed))
    ranks = written(workload, tmp_path / "out")
    sent, received = Counter[int](), Counter[int]()
    for rank, nodes in ranks.items():
        for node in nodes:
            if node.type is NodeType.COMM_SEND:
                sent[rank] += value(node, "comm_size")
                received[value(node, "comm_dst")] += value(node, "comm_size")
    mine = {
        r: sum(value(x, "comm_size") for x in nodes if x.type is NodeType.COMM_RECV)
        for r, nodes in ranks.items()
    }
    assert received == Counter(mine) and sum(sent.values()) > 0
    simulate_traces(tmp_path / "out", tmp_path / "out" / "network.yml")


def test_loops_and_permutations_are_messages_too(tmp_path: Path) -> None:
    ranks = written(Workload.single(layered_program(layers=2)), tmp_path / "out")
    assert all(x.type is not NodeType.COMM_COLL for nodes in ranks.values() for x in nodes)


def test_groups_of_unequal_size_are_refused(tmp_path: Path) -> None:
    uneven = Group(ranks=((0, 1, 2), (3, 4), (5, 6, 7)))
    with pytest.raises(FlintError, match="not equally large") as error:
        write(alone(Collective.ALL_REDUCE, uneven), tmp_path / "out", groups="p2p")
    assert error.value.code == "FL504" and not (tmp_path / "out").exists()
