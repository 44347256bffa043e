"""Whole traces take what ASTRA-sim took for them, to the nanosecond.

The cycles (1 ns) are those of ASTRA-sim master (518bd51), analytical congestion-unaware backend, for
the directories that are written here; `flint simulate DIR --binary PATH` asks a simulator again.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from flint.backends.chakra import write
from flint.backends.chakra.writing.simulator_files import Timing, placeholder_hardware
from flint.backends.cost.astrasim.disturbance import Disturbance
from flint.backends.cost.astrasim.grouping import find_grouping
from flint.backends.cost.astrasim.run import simulate_traces
from flint.backends.cost.astrasim.step import Spent
from flint.cli import app
from flint.errors import FlintError
from flint.io.processes import Patience
from flint.ir.mesh import AxisRef, Group, Mesh, Route
from flint.ir.program import Collective, Kind, Program
from flint.ir.rank_class import RankClass
from flint.ir.workload import Workload
from flint.tools.simulators.astra_sim import BINARY, AstraSim, find_binary
from flint.tools.simulators.inputs import find_inputs
from flint.tools.simulators.process import Limits
from tests.chakra_traces import layered_program, over
from tests.late_ranks import tangled
from tests.program_rows import ProgramBuilder

MIB = 1 << 20


def layered(mesh: str = "data=4,model=2") -> Workload:
    """A shift that does not wrap: ranks enter the all-reduces at different times."""
    return Workload.single(layered_program(mesh, layers=5))


def collectives(groups: list[Group], mesh: str) -> Workload:
    """Kernels and all four collectives over each group, the second half ready at once."""
    b = ProgramBuilder(Mesh.parse(mesh))
    last = b.add("dot", flops=10**9, result_bytes=MIB)
    kinds = Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER
    for group in groups:
        for kind in (*kinds, Collective.ALL_TO_ALL):
            sent = b.add(
                kind.name.lower(),
                Kind.COLLECTIVE,
                deps=[last],
                collective=kind,
                group=group,
                comm_bytes=3 * MIB + 5,
            )
            b.add("add", flops=3, result_bytes=5 * MIB)
        last = b.add("dot", deps=[sent, last], flops=10**10, result_bytes=MIB)
    return Workload.single(b.build())


def pipeline() -> Workload:
    """Three stages of two ranks, each with its speed, and an all-reduce over all of them."""
    mesh = Mesh.parse("pipe=3,data=2")
    route = Route((AxisRef("pipe"),), 1, wrap=False)

    def stage(receives: bool, sends: bool, flops: int) -> Program:
        b = ProgramBuilder(mesh)
        last = -1
        message: dict[str, Any] = {"route": route, "channel": 3, "comm_bytes": MIB}
        for _ in range(4):
            got = b.add("recv", Kind.RECV, **message) if receives else -1
            last = b.add("dot", deps=[got, last], flops=flops, result_bytes=8)
            if sends:
                b.add("send", Kind.SEND, deps=[last], **message)
        b.add(
            "all_reduce",
            Kind.COLLECTIVE,
            deps=[last],
            collective=Collective.ALL_REDUCE,
            group=over("pipe", "data"),
            comm_bytes=7 * MIB,
        )
        return b.build()

    programs = (
        stage(False, True, 10**10),
        stage(True, True, 4 * 10**10),
        stage(True, False, 10**9),
    )
    classes = tuple(RankClass(f"stage{i}", i, {"pipe": (i,)}) for i in range(3))
    return Workload(mesh, programs, classes)


def offload() -> Workload:
    """Copies to and from hosts, kernels and collectives that wait for each other at random; a shift by
    which ranks differ."""
    rng = random.Random(7)
    b = ProgramBuilder(Mesh.parse("data=4,model=2"))
    made: list[int] = []
    for number in range(60):
        deps = rng.sample(made[-8:], min(len(made), rng.randrange(3)))
        size = rng.randrange(1, 3 * MIB)
        kind = rng.choice(["host.store", "host.load", "dot", "dot", "all_reduce", "shift"])
        if kind == "all_reduce":
            told: dict[str, Any] = {"collective": Collective.ALL_REDUCE, "group": over("model")}
            made.append(b.add(kind, Kind.COLLECTIVE, deps=deps, comm_bytes=size, **told))
        elif kind == "shift":
            told = {"route": Route((AxisRef("data"),), 1, wrap=False), "channel": number}
            made.append(b.add("send", Kind.SEND, deps=deps, comm_bytes=size, **told))
            made.append(b.add("recv", Kind.RECV, comm_bytes=size, **told))
        else:
            stream = "" if kind == "dot" else kind
            made.append(b.add(kind, deps=deps, flops=size * 90, operand_bytes=size, stream=stream))
    b.add("dot", deps=made, flops=9, result_bytes=8)  # it crashes where a rank ends with a message
    return Workload.single(b.build())


THREE = "a=2,b=2,c=4"
ACROSS = [over("c"), over("a"), over("b", "c"), over("a", "b", "c")]
RINGS = """topology: [ Ring, FullyConnected, Switch ]
npus_count: [ 4, 2, 2 ]
bandwidth: [ 90, 60.5, 12.5 ]
latency: [ 1000, 500.5, 2500 ]
"""
BASELINE = {"collective-optimization": "baseline", "endpoint-delay": 25, "local-mem-bw": 37.5}


@dataclass(frozen=True)
class Case:
    """A workload, options of `write`, and changes of the simulator's files."""

    cycles: int
    make: Callable[[], Workload]
    options: dict[str, Any]
    network: str = ""
    system: dict[str, Any] | None = None


CASES = {
    "shift": Case(47224, layered, {}),
    "shift by dimensions": Case(47224, layered, {"groups": "dims"}),
    "rings": Case(2606101, lambda: collectives(ACROSS, THREE), {}, RINGS),
    "by dimensions": Case(
        4747736, lambda: collectives(ACROSS, THREE), {"groups": "dims"}, RINGS, BASELINE
    ),
    "output": Case(891064, lambda: collectives(ACROSS, THREE), {"tensor_size": "output"}),
    "pipeline": Case(366959, pipeline, {}),
    "offload": Case(884805, offload, {}),
}


def put(case: Case, folder: Path) -> Path:
    """Write the traces of a case and the files of the simulator."""
    write(case.make(), folder, **case.options)
    if case.network:
        (folder / "network.yml").write_text(case.network)
    system = folder / "system.json"
    system.write_text(json.dumps(json.loads(system.read_text()) | (case.system or {})))
    return folder


@pytest.mark.parametrize("name", CASES)
def test_traces_take_what_the_simulator_took(name: str, tmp_path: Path) -> None:
    folder = put(CASES[name], tmp_path / "out")
    assert simulate_traces(folder, folder / "network.yml").step_time_ns == CASES[name].cycles


@pytest.mark.long
def test_one_rank_that_stands_for_all_says_what_each_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of random programs, and of those above; a late rank is like no other."""
    asked: list[bool] = []

    def each(*given: Any) -> None:
        found = find_grouping(*given)
        asked.append(found is not None and len(found.firsts) < len(found.part))

    folders = [put(case, tmp_path / name) for name, case in CASES.items()]
    for seed in range(30):
        folders.append(tmp_path / f"random{seed}")
        write(Workload.single(tangled(seed)), folders[-1])
    for folder in folders:
        network = folder / "network.yml"
        found = simulate_traces(folder, network)
        with monkeypatch.context() as changed:
            changed.setattr("flint.backends.cost.astrasim.run.find_grouping", each)
            expected = simulate_traces(folder, network)
        assert replace(found, spent=()) == replace(expected, spent=()), folder.name
        for mine, theirs in zip(found.spent, expected.spent, strict=True):
            assert sorted(map(said, mine)) == sorted(map(said, theirs)), folder.name
    assert 10 < sum(asked) < len(folders)
    late = simulate_traces(folder, network, disturbance=Disturbance(((1, 1.5),)))
    assert late.compute_ns[1] > late.compute_ns[0]


def said(spent: Spent) -> tuple[object, ...]:
    times = (spent.count, spent.busy_ns, spent.waited_ns)
    return (spent.kind is None, spent.kind or 0, tuple(spent.members), *times)


@pytest.mark.skipif(BINARY not in os.environ, reason=f"{BINARY} names no build of ASTRA-sim")
@pytest.mark.parametrize("name", CASES)
def test_a_build_of_the_simulator_says_the_same_of_each_rank(name: str, tmp_path: Path) -> None:
    inputs = find_inputs(put(CASES[name], tmp_path / "out"), [tmp_path / "out" / "network.yml"])
    simulator = AstraSim(find_binary(None), Limits(Patience()))
    found = simulator.run(inputs, inputs.cases[0])
    rules = simulate_traces(tmp_path / "out", tmp_path / "out" / "network.yml")
    assert found.failure is None
    ends = [found.ends[rank] for rank in range(found.ranks)]
    assert [e.end_ns for e in ends] == list(rules.end_ns)
    moves = any(rules.memory_ns)  # it has no statistics then
    assert moves or [e.compute_ns or 0 for e in ends] == list(rules.compute_ns)
    assert found.step_time_ns == CASES[name].cycles


def test_durations_count_where_the_roofline_is_off(tmp_path: Path) -> None:
    """Three kernels in a row on one stream, though they share no data: 3 + 5 + 7 us."""
    b = ProgramBuilder(Mesh.parse("data=2"))
    for _ in range(3):
        b.add("dot", flops=10**9, result_bytes=MIB)
    workload = Workload.single(b.build())
    durations = np.array([3e3, 5e3, 7e3])
    told = Timing("a cluster", (durations,), placeholder_hardware(workload.mesh))
    write(workload, tmp_path / "out", timing=told)
    system = tmp_path / "out" / "system.json"
    system.write_text(system.read_text().replace('"roofline-enabled": 1', '"roofline-enabled": 0'))
    found = simulate_traces(tmp_path / "out", tmp_path / "out" / "network.yml")
    assert (found.step_time_ns, found.compute_ns) == (15_000, (15_000, 15_000))


def test_the_command_prints_it_and_its_json(tmp_path: Path) -> None:
    folder = put(CASES["shift"], tmp_path / "out")
    command = ["estimate", str(folder), "-c", str(folder / "network.yml"), "--overlap", "astra-sim"]
    text = CliRunner().invoke(app, command)
    assert text.exit_code == 0, text.output
    assert "(47,224 ns)" in text.output
    found = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert (found["schema"], found["step_time_ns"]) == ("flint.simulated/1", 47224)
    other = CliRunner().invoke(app, [*command, "--map", "data=ib"])
    assert (other.exit_code, "FL218" in other.output) == (2, True)
    preset = CliRunner().invoke(app, [*command[:3], "h100-dgx", *command[4:]])
    assert (preset.exit_code, "FL218" in preset.output) == (2, True)


def test_what_is_not_modelled_or_never_ends_is_refused(tmp_path: Path) -> None:
    folder = put(CASES["shift"], tmp_path / "out")
    system = folder / "system.json"
    good = system.read_text()
    system.write_text(
        good.replace('"preferred-dataset-splits": 1', '"preferred-dataset-splits": 4')
    )
    with pytest.raises(FlintError, match="preferred-dataset-splits is not modeled"):
        simulate_traces(folder, folder / "network.yml")
    system.write_text(good)
    (folder / "trace.3.et").write_bytes((folder / "trace.2.et").read_bytes())
    with pytest.raises(FlintError, match="FL707|never|for ever|cannot be run"):
        simulate_traces(folder, folder / "network.yml")
    (folder / "trace.3.et").unlink()
    with pytest.raises(FlintError, match="7 have a trace"):
        simulate_traces(folder, folder / "network.yml")
