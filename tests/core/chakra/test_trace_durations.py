"""Durations in traces: whole microseconds, never 0 for a kernel, with the right sum."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from flint.backends.chakra import check, read
from flint.backends.chakra.schema import NodeType
from flint.backends.chakra.writing.simulator_files import whole_micros
from flint.backends.cost.estimate import estimate
from flint.cli import app
from flint.cluster.models import Cluster
from flint.errors import FlintError
from flint.ir.mesh import AxisRef, Group, Mesh
from flint.ir.program import Collective, Kind, Program, RegionKind
from flint.ir.workload import Workload
from flint.requests.estimate import EstimateRequest
from flint.tracing import Trace
from tests.program_rows import ProgramBuilder


@given(st.lists(st.floats(0, 1e6), max_size=60))
def test_rounding_keeps_the_sum_and_every_kernel(duration_ns: list[float]) -> None:
    exact = np.array(duration_ns)
    micros = whole_micros(exact)
    assert ((micros > 0) == (exact > 0)).all()
    excess = np.cumsum(micros) - np.cumsum(exact) / 1e3
    assert (excess > -0.5 - 1e-6).all()
    small = np.cumsum((exact > 0) & (exact < 1e3))
    assert (excess <= 0.5 + small + 1e-6).all()


def test_a_run_of_small_kernels_is_made_up_for_by_the_next_long_one() -> None:
    assert whole_micros(np.array([100.0, 0, 100.0, 9800.0])).tolist() == [1, 0, 1, 8]


def _program(trips: int = 40) -> Program:
    """A loop of products, small element-wise kernels that do not fuse, and an all-reduce."""
    b = ProgramBuilder(Mesh(("data", "model"), (4, 2)))
    size: dict[str, Any] = {"dtype": "bfloat16", "shape": (256, 256), "result_bytes": 2 * 256**2}
    x = b.add("parameter", Kind.PARAMETER, name="x", **size)
    b.begin_region(RegionKind.LOOP, trips)
    carry = b.add("while.carry", Kind.VALUE, deps=[x], **size)
    y = b.add(
        "stablehlo.dot_general",
        deps=[carry, x],
        operand_bytes=4 * 256**2,
        flops=2 * 256**3,
        dims=(1, 256, 256, 256),
        scope="layers/mlp",
        **size,
    )
    for scope in ("a", "b", "c"):
        small = {**size, "shape": (256,), "result_bytes": 512}
        b.add("stablehlo.reduce", deps=[carry], operand_bytes=2 * 256**2, scope=scope, **small)
    r = b.add(
        "sdy.all_reduce",
        Kind.COLLECTIVE,
        deps=[y],
        collective=Collective.ALL_REDUCE,
        group=Group((AxisRef("model"),)),
        comm_bytes=2 * 256**2,
        **size,
    )
    b.end_region([(carry, r)])
    return b.build()


@pytest.mark.parametrize("cluster", ["h100-dgx", "v5p"])
def test_durations_of_a_rank_add_up_to_the_busy_time_of_the_timeline(
    cluster: str, tmp_path: Path
) -> None:
    workload = Workload.single(_program())
    Trace(workload).save(tmp_path / "out", cluster=cluster)
    assert not check(tmp_path / "out").findings
    nodes = read(tmp_path / "out" / "trace.5.et").nodes
    kernels = [n.duration_micros for n in nodes if n.type == NodeType.COMP]
    estimated = estimate(workload, EstimateRequest(Cluster.load(cluster)))
    busy_ns = estimated.classes[0].compute_ns
    work = estimated.timeline.classes[0].work
    exact = work.duration_ns[work.nodes.row][work.stream[work.nodes.row] == 0]
    assert (len(kernels) < len(exact)) == (exact.min() < 1e3) == (cluster == "v5p")
    assert min(kernels) >= 1
    assert sum(kernels) * 1e3 == pytest.approx(busy_ns, rel=0.005, abs=500)  # whole microseconds
    assert {n.duration_micros for n in nodes if n.type != NodeType.COMP} == {0}


def test_the_simulator_is_told_of_the_cluster_and_to_use_durations(tmp_path: Path) -> None:
    trace = Trace(Workload.single(_program()))
    trace.save(tmp_path / "with", cluster="h100-dgx")
    trace.save(tmp_path / "without")
    told = {n: json.loads((tmp_path / n / "system.json").read_text()) for n in ("with", "without")}
    assert told["with"]["roofline-enabled"] == 0
    assert told["without"]["roofline-enabled"] == 1
    assert "from cluster h100-dgx" in (tmp_path / "with" / "network.yml").read_text()
    assert "duration_micros" in (tmp_path / "with" / "README.txt").read_text()
    options = json.loads((tmp_path / "with" / "manifest.json").read_text())["options"]
    assert options["cluster"] == "h100-dgx"
    assert Workload.load(tmp_path / "with" / "workload.flint").metadata == {}


def test_two_runs_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        Trace(Workload.single(_program())).save(tmp_path / name, cluster="v5p")
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes(), file.name


def test_nodes_with_durations_are_kernels(tmp_path: Path) -> None:
    trace = Trace(Workload.single(_program()))
    with pytest.raises(FlintError, match="are kernels, not 'op'"):
        trace.save(tmp_path / "out", cluster="v5p", granularity="op")


@pytest.mark.parametrize(
    ("arguments", "help_"),
    [
        (["--map", "data=ici"], "add --cluster NAME"),
        (["-o", "out", "--unpriced", "zero"], "add --cluster NAME"),
        (["-o", "out", "-c", "v5p", "-c", "v6e"], "omit -o"),
    ],
)
def test_options_of_the_command_line_that_need_others(arguments: list[str], help_: str) -> None:
    result = CliRunner().invoke(app, ["capture", "m.py", "-m", "2", *arguments])
    assert result.exit_code == 2
    assert help_ in result.stderr
