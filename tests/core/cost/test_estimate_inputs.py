"""What `flint estimate`, `flint clusters` and `trace.estimate` take, and what they refuse."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from flint.backends.cost.simulate.timeline import POLICIES
from flint.cli import app
from flint.cluster.models import Cluster
from flint.cluster.named import load_cluster
from flint.errors import FlintError
from flint.ir.mesh import AxisRef, Group, Mesh
from flint.ir.program import Collective, Kind
from flint.ir.workload import Workload
from flint.passes.profiles import PROFILES
from flint.tracing import Trace
from tests.program_rows import ProgramBuilder

NETWORK = "topology: [ Switch ]\nnpus_count: [ 8 ]\nbandwidth: [ 400 ]\nlatency: [ 500 ]\n"
SYSTEM = '{"peak-perf": 900, "local-mem-bw": 3350}'
OURS = 'name = "ours"\ntitle = "t"\nbase = "h100-dgx"\n'


def flint(*arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)), prog_name="flint")


@pytest.fixture
def trace() -> Trace:
    """A product and an all-reduce over 4 of 8 devices."""
    b = ProgramBuilder(Mesh.parse("data=4,model=2"))
    size = {"dtype": "bfloat16", "shape": (512, 512), "result_bytes": 2**19}
    w = b.add("parameter", Kind.PARAMETER, name="w", **size)
    dot = {"operand_bytes": 2**20, "flops": 2 * 512**3, "dims": (1, 512, 512, 512)}
    product = b.add("stablehlo.dot_general", deps=[w, w], **dot, **size)
    group = {"group": Group((AxisRef("data"),)), "comm_bytes": 2**19}
    b.add(
        "all_reduce",
        Kind.COLLECTIVE,
        deps=[product],
        collective=Collective.ALL_REDUCE,
        **group,
        **size,
    )
    return Trace(Workload.single(b.build()))


@pytest.fixture
def files(tmp_path: Path, trace: Trace) -> Path:
    (tmp_path / "network.yml").write_text(NETWORK)
    (tmp_path / "system.json").write_text(SYSTEM)
    (tmp_path / "ours.toml").write_text(OURS)
    trace.workload.save(tmp_path / "workload.flint")
    return tmp_path


@pytest.mark.parametrize("name", ["network.yml", "ours.toml"])
def test_python_and_the_command_line_take_the_same_clusters(
    files: Path, trace: Trace, name: str
) -> None:
    path = files / name
    times = {trace.estimate(c).step_time_ns for c in (path, str(path), load_cluster(path))}
    assert len(times) == 1
    shown = json.loads(flint("estimate", files, "-c", path, "--json").stdout)
    assert shown["step_time_ns"] == round(times.pop(), 3)
    assert flint("clusters", "show", path).stdout.startswith(path.stem)


def test_traces_are_written_for_the_same_clusters(files: Path, trace: Trace) -> None:
    report = trace.save(files / "out", cluster=str(files / "network.yml"), mapping="data=dim0")
    assert report.ranks == 8
    with pytest.raises(FlintError, match="FL703"):
        trace.save(files / "other", mapping="data=dim0")


@pytest.mark.parametrize("cluster", [3, None, b"h100-dgx", ["h100-dgx"], {"name": "h100-dgx"}])
def test_what_is_no_cluster(trace: Trace, cluster: Any) -> None:
    with pytest.raises(FlintError) as caught:
        trace.estimate(cluster)
    assert caught.value.code == "FL702"
    assert (type(cluster).__name__ if cluster is not None else "no cluster") in caught.value.message


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ({"policy": 3}, "FL703", "unknown overlap policy 3"),
        ({"policy": "overlp"}, "FL703", "'overlp'; did you mean 'overlap'?"),
        ({"policy": ["xla"]}, "FL703", "unknown overlap policy ['xla']"),
        ({"profile": "xla_gpu"}, "FL405", "'xla_gpu'; did you mean 'xla-gpu'?"),
        ({"profile": 3}, "FL405", "unknown target profile 3"),
        ({"profile": ["xla-gpu"]}, "FL405", "unknown target profile ['xla-gpu']"),
        ({"mapping": "model=nvlnk"}, "FL703", "'nvlnk'; did you mean 'nvlink'?"),
        ({"mapping": 3}, "FL703", "cannot have type int"),
    ],
)
def test_options_that_are_none(trace: Trace, options: dict[str, Any], code: str, said: str) -> None:
    with pytest.raises(FlintError) as caught:
        trace.estimate("h100-dgx", **options)
    assert caught.value.code == code
    assert said in caught.value.message
    assert caught.value.help


def test_defaults_may_be_named(trace: Trace) -> None:
    plain = trace.estimate("h100-dgx").step_time_ns
    none = trace.estimate("h100-dgx", profile=None, policy=None, mapping=None)
    assert none.step_time_ns == plain
    assert trace.estimate("h100-dgx", mapping="").step_time_ns == plain
    policy = trace.estimate("h100-dgx", policy=POLICIES["overlap"])
    assert policy.step_time_ns == plain
    apart = trace.estimate("h100-dgx", mapping="data=ib,model=nvlink")
    assert apart.step_time_ns > plain
    assert apart.mapping == (("data", "4", "ib"), ("model", "2", "nvlink"))


def test_help_names_what_there_is() -> None:
    estimate = " ".join(flint("estimate", "--help").stdout.split())
    capture = " ".join(flint("capture", "--help").stdout.split())
    assert f"Compiler whose kernels are used: {', '.join(PROFILES)}" in estimate
    assert f"make its kernels: {', '.join(PROFILES)}." in capture
    assert f"When communication begins: {', '.join(POLICIES)}, astra-sim (default" in estimate
    assert f"A preset ({', '.join(Cluster.names())})" in estimate
    for shown in (estimate, capture):
        assert not re.search(r"\{[a-z]", shown.replace("{PATH}", ""))
        assert "--map AXIS=TIER,..." in shown and "--unpriced <zero>" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--map", "model=nvlink,model=ib"], "axis 'model' is mapped twice"),
        (["--map", "model"], "'model' is not AXIS=TIER"),
        (["--map", "modle=ib"], "mesh has no axis 'modle' to map; did you mean 'model'?"),
        (["--overlap", "ddq"], "unknown overlap policy 'ddq'; did you mean 'ddp'?"),
        (["--profile", "xla"], "unknown target profile 'xla'"),
        (["--unpriced", "one"], "'one'"),
        (["--class", "all"], "--class needs --perfetto"),
        (["--window", "1:2"], "--window needs --perfetto"),
        (["--perfetto", "x.pftrace", "--window", "2:1"], "--window 2:1 is not a window"),
        (["--perfetto", "x.pftrace", "--window", "nan:1"], "--window nan:1 is not a window"),
        (["--perfetto", "x.pftrace", "--window", "0:inf"], "--window 0:inf is not a window"),
    ],
)
def test_options_of_estimate_that_cannot_be(files: Path, arguments: list[str], said: str) -> None:
    result = flint("estimate", files, "-c", "h100-dgx", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


@pytest.mark.parametrize("window", ["1e9:2e9", "500:501"])
def test_a_window_after_the_step(files: Path, window: str) -> None:
    out = files / "x.pftrace"
    result = flint("estimate", files, "-c", "h100-dgx", "--perfetto", out, "--window", window)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "error[FL504]" in result.stderr and "outside the step" in result.stderr
    assert not out.exists()


def test_what_was_read_is_not_written_over(files: Path) -> None:
    before = (files / "workload.flint").read_bytes()
    for arguments in (
        ("export", files, "-o", files / "workload.flint"),
        ("estimate", files, "-c", "h100-dgx", "--perfetto", files / "workload.flint"),
        ("export", files, "-o", files),
    ):
        result = flint(*arguments)
        assert (result.exit_code, result.stdout) == (2, ""), result.output
        assert "error[FL50" in result.stderr and "help:" in result.stderr
    assert (files / "workload.flint").read_bytes() == before
    graph = files / "graph.json"
    for _ in range(2):  # other files are replaced
        assert flint("export", files, "-o", graph).exit_code == 0


def test_a_network_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = flint("clusters", "show", tmp_path / "none.yml")
    assert result.exit_code == 2
    assert f"error[FL706]: cannot read {tmp_path / 'none.yml'}" in result.stderr


def test_capitals_do_not_hide_what_was_meant(trace: Trace) -> None:
    with pytest.raises(FlintError, match="did you mean 'h100-dgx'"):
        trace.estimate("H100-DGX")
    with pytest.raises(FlintError, match="did you mean 'ib'"):
        trace.estimate("h100-dgx", mapping="data=IB")


@pytest.mark.parametrize("mesh", ["99999999999999999999x2", "8192x4096", {"data": 10**12}])
def test_a_mesh_that_no_system_has(mesh: object) -> None:
    with pytest.raises(FlintError, match="has more than 16,777,216 devices") as caught:
        Mesh.parse(mesh)
    assert caught.value.code == "FL101"
    assert Mesh.parse("4096x4096").size == 2**24


def test_a_cluster_that_was_changed_is_checked(trace: Trace) -> None:
    h100 = Cluster.load("h100-dgx")
    half = h100.derate.model_copy(update={"value": 0.5})
    slow = h100.model_copy(update={"derate": half})
    assert load_cluster(slow) is slow
    assert trace.estimate(slow).step_time_ns > trace.estimate(h100).step_time_ns
    zero = half.model_copy(update={"value": 0.0})
    for update, said in (
        ({"derate": zero}, "key 'derate' should be greater than 0 and at most 1, it is 0"),
        ({"derate": 0.5}, "key 'derate' should be a table"),
        ({"network": ()}, "key 'network' should not be empty"),
    ):
        with pytest.raises(FlintError) as caught:
            trace.estimate(h100.model_copy(update=update))
        assert caught.value.code == "FL701"
        assert f"cluster 'h100-dgx', as it was changed: {said}" in caught.value.message


@pytest.mark.parametrize(
    ("captured", "cluster", "profile"),
    [
        ("none", "h100-dgx", "xla-gpu"),
        ("none", "v5p", "xla-tpu"),
        ("inductor", "h100-dgx", "inductor"),
        ("inductor", "v5p", "xla-tpu"),
        ("xla-tpu", "v5p", "xla-tpu"),
        ("xla-tpu", "h100-dgx", "xla-gpu"),
    ],
)
def test_the_profile_of_a_capture_is_that_of_its_estimates(
    trace: Trace, captured: str, cluster: str, profile: str
) -> None:
    rewritten = trace.rewritten(captured)
    assert rewritten.estimate(cluster).profile == profile
    assert rewritten.estimate(cluster, profile="xla-gpu").profile == "xla-gpu"
