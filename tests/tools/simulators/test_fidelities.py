"""`flint estimate --compare`: one step by several fidelities side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flint.backends.cost.astrasim.run import simulate_traces
from flint.cli import app
from flint.ir.made_by import CompiledBy
from flint.ir.mesh import AxisRef, Group, Mesh, Route
from flint.ir.program import Collective, Flag, Kind, RegionKind
from flint.ir.rank_class import RankClass
from flint.ir.workload import Workload
from flint.tracing import Trace
from tests.machine_output import valid
from tests.program_rows import ProgramBuilder
from tests.stand_in_simulator import make_binary

COMPILED = CompiledBy("xla-gpu", "h100", "jax-cuda12-plugin 0.10.2", "8 GPUs").to_json()
MIB = 1 << 20


def step(layers: int = 2) -> Workload:
    """Sums, all-reduces and a shift between eight devices."""
    b = ProgramBuilder(Mesh.parse("data=4,model=2"))
    whole: dict[str, Any] = {"dtype": "f32", "shape": (MIB,), "result_bytes": 4 * MIB}
    first = b.add("param", Kind.PARAMETER, flags=Flag.DONATED, **whole)
    b.begin_region(RegionKind.LOOP, layers, name="layers")
    carried = b.add("carry", Kind.VALUE, deps=[first])
    last = b.add("stablehlo.add", deps=[carried], operand_bytes=8 * MIB, flops=MIB, **whole)
    sums: dict[str, Any] = {"collective": Collective.ALL_REDUCE, "comm_bytes": 4 * MIB}
    group = Group((AxisRef("model"),))
    last = b.add("all_reduce", Kind.COLLECTIVE, deps=[last], group=group, **sums, **whole)
    moves: dict[str, Any] = {"collective": Collective.PERMUTE, "comm_bytes": 3 * MIB}
    route = Route((AxisRef("data"),), 1)
    last = b.add("permute", Kind.COLLECTIVE, deps=[last], route=route, **moves, **whole)
    b.end_region([(carried, last)])
    return Workload.single(b.build(), {"name": "step"})


def compared(path: Path, what: str, *options: object, status: int = 0) -> Any:
    arguments = ["estimate", path, "-c", "h100-dgx", "--compare", what, *options]
    found = CliRunner().invoke(app, list(map(str, arguments)), prog_name="flint")
    assert found.exit_code == status, found.output
    return found


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    step().save(tmp_path / "step.flint")
    return tmp_path / "step.flint"


def columns(found: Any) -> dict[str, Any]:
    document = valid(found.stdout, "flint.fidelities/1")
    return {c["fidelity"]: c for c in document["fidelities"]}


def test_fidelities_agree_on_what_is_done_and_say_their_own_times(
    saved: Path, tmp_path: Path
) -> None:
    found = columns(compared(saved, "analytic,simulated", "--json"))
    analytic, simulated = (found[n]["measures"] for n in ("analytic", "simulated"))
    for name in ("kernels", "moved_bytes", "collectives", "collective_bytes", "messages"):
        assert analytic[name] == simulated[name] > 0, name
    assert analytic["message_bytes"] == simulated["message_bytes"] == 2 * 3 * MIB
    assert analytic["kernels"] == 2 and analytic["collectives"] == 2
    trace = Trace(step())
    assert analytic["step_time_ns"] == trace.estimate("h100-dgx").step_time_ns
    trace.save(tmp_path / "traces", cluster="h100-dgx")
    rules = simulate_traces(tmp_path / "traces", tmp_path / "traces" / "network.yml")
    assert simulated["step_time_ns"] == rules.step_time_ns
    assert simulated["compute_ns"] + simulated["exposed_ns"] == rules.step_time_ns
    assert simulated["memory_bytes"] is None and analytic["memory_bytes"] > 4 * MIB
    against = found["simulated"]["against_first"]
    assert against["step_time_ns"] == pytest.approx(
        rules.step_time_ns / analytic["step_time_ns"] - 1, abs=1e-6
    )
    assert sorted(tmp_path.iterdir()) == [saved, tmp_path / "traces"]


def test_the_slowest_class_is_the_one_that_is_measured(tmp_path: Path) -> None:
    programs = []
    for count in (1, 3, 2):
        b = ProgramBuilder(Mesh.parse("data=3"))
        last = -1
        for _ in range(count):
            sizes: dict[str, Any] = {"operand_bytes": 8 * MIB, "result_bytes": 4 * MIB}
            sizes |= {"dims": (1, 1024, 2048, 1024), "flops": 2**32}
            last = b.add("stablehlo.dot_general", deps=[last], dtype="bf16", **sizes)
        programs.append(b.build())
    classes = tuple(RankClass(f"c{i}", i, {"data": (i,)}) for i in range(3))
    Workload(Mesh.parse("data=3"), tuple(programs), classes).save(tmp_path / "step.flint")
    found = columns(compared(tmp_path / "step.flint", "analytic,simulated", "--json"))
    assert [c["measures"]["kernels"] for c in found.values()] == [3, 3]


def test_another_capture_in_a_column(saved: Path, tmp_path: Path) -> None:
    other = Workload(*(vars(step(3))[n] for n in ("mesh", "programs", "classes")), metadata())
    other.save(tmp_path / "compiled.flint")
    what = f"analytic,compiled={tmp_path / 'compiled.flint'}"
    found = columns(compared(saved, what, "--json"))
    assert found["compiled"]["measures"]["kernels"] == 3
    assert found["compiled"]["against_first"]["kernels"] == 0.5
    assert "jax-cuda12-plugin 0.10.2" in found["compiled"]["by"]
    found = columns(compared(tmp_path / "compiled.flint", "analytic,compiled", "--json"))
    assert found["compiled"]["measures"]["kernels"] == 3
    assert "analytic=DIR takes another capture" in found["analytic"]["reason"]


def metadata() -> dict[str, Any]:
    return {"name": "step", "compiler": COMPILED}


def test_what_is_not_there_is_a_reason_and_no_failure(saved: Path, tmp_path: Path) -> None:
    binary = make_binary(tmp_path / "simulator", "unfinished")
    found = compared(saved, "compiled,simulated,analytic", "--binary", binary)
    lines = found.stdout.splitlines()
    assert lines[-3].startswith("compiled: none, step.flint was not made by a compiler")
    assert lines[-2].startswith("simulated: none, simulator ended with status 0 on network.yml")
    assert lines[-1].startswith("analytic: flint estimate")
    (row,) = (line.split() for line in lines if line.startswith("kernels"))
    assert row == ["kernels", "-", "-", "2"]


def test_a_binary_that_is_named_simulates(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLINT_ASTRA_SIM", str(make_binary(tmp_path / "of-environment", "fine")))
    found = columns(compared(saved, "simulated", "--json"))["simulated"]
    assert found["by"] == "the traces, by of-environment"
    assert found["measures"]["step_time_ns"] == 1003
    assert found["measures"]["compute_ns"] == 700
    binary = make_binary(tmp_path / "of-option", "plain")
    found = columns(compared(saved, "simulated", "--binary", binary, "--json"))["simulated"]
    assert found["by"] == "the traces, by of-option"
    assert found["measures"]["step_time_ns"] == 57 and found["measures"]["compute_ns"] is None
    binary = make_binary(tmp_path / "brief", "brief")
    found = columns(compared(saved, "simulated", "--binary", binary, "--json"))["simulated"]
    assert (found["measures"]["compute_ns"], found["measures"]["exposed_ns"]) == (50, 7)


@pytest.mark.parametrize(
    ("what", "options", "error"),
    [
        ("analytic,simulatd", (), "FL718]: no fidelity is called 'simulatd'; did you mean"),
        ("", (), "FL718]: no fidelity is called ''"),
        ("analytic,analytic", (), "FL718]: a fidelity is named twice"),
        ("compiled=nowhere", (), "FL301]: cannot read nowhere"),
        ("analytic", ("--view", "slices"), "FL218]: --view does not apply to --compare"),
        ("simulated", ("--binary", "/nowhere"), "FL710]: there is no /nowhere"),
    ],
)
def test_what_cannot_be_compared(
    what: str, options: tuple[str, ...], error: str, saved: Path
) -> None:
    found = compared(saved, what, *options, status=2)
    assert found.stderr.count("error[") == 1 and error in found.stderr


def test_a_step_that_is_too_large_is_not_written(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flint.tools.simulators.traced.MOST_NODES", 10)
    found = columns(compared(saved, "simulated", "--json"))["simulated"]
    assert found["reason"] == "the traces have 48 nodes: flint simulate runs them"
    assert json.dumps(found["measures"]) == "null"
