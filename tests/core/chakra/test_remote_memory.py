"""Copies between devices and hosts are nodes of remote memory, which simulators time by memory.json."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from flint.backends.chakra import check, write
from flint.backends.chakra.reading.reader import read
from flint.backends.chakra.schema import NodeType
from flint.backends.cost.astrasim.files import simulated_hardware
from flint.backends.cost.astrasim.run import simulate_traces
from flint.backends.cost.network.placement import NetworkPlacement
from flint.cluster.models import Cluster
from flint.errors import FlintError
from flint.ir.mesh import Mesh
from flint.ir.workload import Workload
from tests.chakra_traces import comp, node, put_traces
from tests.program_rows import ProgramBuilder

#: Bytes of the copies of one rank.
STORED, LOADED = 6_400_000, 3_200_000


def copying(measured_ns: int = 0) -> Workload:
    """A kernel between a copy from the host and one to it."""
    b = ProgramBuilder(Mesh.parse("data=2"))
    loaded = b.add("host.load", operand_bytes=LOADED, result_bytes=LOADED, stream="from host")
    made = b.add("dot", deps=[loaded], flops=10**9, result_bytes=STORED)
    b.add("host.store", deps=[made], operand_bytes=STORED, stream="to host")
    program = b.build()
    times = np.full(len(program), measured_ns, dtype=np.int64)
    return Workload.single(program.with_rows(measured_ns=times))


def test_copies_are_loads_and_stores_of_their_bytes(tmp_path: Path) -> None:
    write(copying(), tmp_path / "out")
    nodes = read(tmp_path / "out" / "trace.0.et").nodes
    moved: Counter[NodeType] = Counter()
    for each in nodes:
        moved[each.type] += each.attributes["tensor_size"][1]
    assert (moved[NodeType.MEM_LOAD], moved[NodeType.MEM_STORE]) == (LOADED, STORED)
    assert [n.name.split()[0] for n in nodes] == ["MEM_LOAD_NODE", "COMP_NODE", "MEM_STORE_NODE"]
    assert "remote" in json.dumps(json.loads((tmp_path / "out" / "memory.json").read_text()))
    assert "MEM_LOAD" in (tmp_path / "out" / "README.txt").read_text()
    assert check(tmp_path / "out").ok
    found = simulate_traces(tmp_path / "out", tmp_path / "out" / "network.yml")
    copies = 2 + (LOADED + STORED) // 64
    assert found.memory_ns == (copies, copies)
    assert found.step_time_ns == found.compute_ns[0] + copies


def test_measured_copies_keep_their_times(tmp_path: Path) -> None:
    write(copying(measured_ns=5000), tmp_path / "out")
    assert {n.type for n in read(tmp_path / "out" / "trace.0.et").nodes} == {NodeType.COMP}
    assert "NO_MEMORY_EXPANSION" in (tmp_path / "out" / "memory.json").read_text()


@pytest.mark.parametrize(("link", "told"), [(24.6e9, 25), (0.2e9, 1), (None, 64)])
def test_the_link_is_that_of_the_cluster_in_whole_gb(link: float | None, told: int) -> None:
    cluster = Cluster.load("h100-dgx")
    known = cluster.chip.host_link_bytes_per_s
    assert known is not None
    value = None if link is None else known.model_copy(update={"value": link})
    chip = cluster.chip.model_copy(update={"host_link_bytes_per_s": value})
    placement = NetworkPlacement(copying().mesh, cluster.model_copy(update={"chip": chip}), None)
    assert simulated_hardware(placement).remote_gb_per_s == told


def loads(folder: Path, memory: str | None) -> Path:
    """Traces of others, with their file of remote memory."""
    load = node(1, NodeType.MEM_LOAD, tensor_size=100)
    put_traces(folder, [[load, comp(2, (1,))] for _ in range(2)])
    write(copying(), folder / "files")
    for name in ("network.yml", "system.json"):
        (folder / name).write_bytes((folder / "files" / name).read_bytes())
    if memory is not None:
        (folder / "memory.json").write_text(memory)
    return folder


def test_a_check_says_where_there_is_no_remote_memory(tmp_path: Path) -> None:
    none = check(loads(tmp_path / "a", '{"memory-type": "NO_MEMORY_EXPANSION"}'))
    assert [(f.code, f.rank, f.node) for f in none.findings] == [
        ("unsupported-node", rank, 1) for rank in range(2)
    ]
    unknown = check(loads(tmp_path / "b", None))
    assert unknown.ok and any("remote memory" in note for note in unknown.notes)
    with pytest.raises(FlintError, match="has none"):
        simulate_traces(tmp_path / "b", tmp_path / "b" / "network.yml")


@pytest.mark.parametrize(
    ("memory", "code", "said"),
    [
        ("{", "FL706", "memory.json is not a file of remote memory"),
        ('{"memory-type": "SHELF"}', "FL706", "memory-type"),
        ("[]", "FL706", "not a file of remote memory"),
        ('{"memory-type": "PER_NPU_MEMORY_EXPANSION"}', "FL707", "no remote-mem-bw"),
        (
            '{"memory-type": "PER_NPU_MEMORY_EXPANSION", "remote-mem-bw": -1}',
            "FL706",
            "remote-mem-bw",
        ),
        (
            '{"memory-type": "MEMORY_POOL", "remote-mem-bw": 9}',
            "FL707",
            "MEMORY_POOL is not modeled",
        ),
    ],
)
def test_wrong_files_of_remote_memory(tmp_path: Path, memory: str, code: str, said: str) -> None:
    folder = loads(tmp_path, memory)
    with pytest.raises(FlintError, match=said) as error:
        simulate_traces(folder, folder / "network.yml")
    assert error.value.code == code


def test_latency_counts_for_each_copy(tmp_path: Path) -> None:
    told = {"memory-type": "PER_NPU_MEMORY_EXPANSION", "remote-mem-bw": 7}
    slow = loads(tmp_path / "a", json.dumps({**told, "remote-mem-latency": 500}))
    fast = loads(tmp_path / "b", json.dumps(told))
    ends = [simulate_traces(f, f / "network.yml").memory_ns for f in (slow, fast)]
    assert ends == [(514, 514), (14, 14)]
