"""`--json` of every command, over examples of each kind, against its schema without open ends."""

from __future__ import annotations

import json
import shutil
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from flint.cli import app
from flint.schemas.catalog import FOLDER, read_schema, schema_names
from tests.machine_output import parts, valid
from tests.stand_in_simulator import make_binary

EXAMPLES = Path(__file__).parents[3] / "examples"
TORCH = """
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
model = DDP(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).cuda())
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(16, 256, device="cuda")).square().mean().backward()
    optimizer.step()
"""
JAX = """
import flint, jax
from jax.sharding import NamedSharding, PartitionSpec as P

@flint.entry(axes=("data", "model"))
def products(mesh):
    split = NamedSharding(mesh, P("data", "model"))
    return flint.Step(lambda x: (x @ x.T).sum(), (jax.ShapeDtypeStruct((64, 64), "f4", sharding=split),))
"""
#: What each capture of `captured` is made of.
CAPTURES = {
    "jax": ("llama_jax.py", "-m", "2x2", "--set", "num_layers=2", "--set", "seq=128"),
    "pipeline": ("gpt3_jax.py", "-m", "pipe=2,data=1,model=1", "--set", "num_layers=2"),
}


def flint(*arguments: object, status: int = 0) -> str:
    found = CliRunner().invoke(app, list(map(str, arguments)), prog_name="flint")
    assert found.exit_code == status, found.output
    return found.stdout


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trace for each of CAPTURES, each told in one document."""
    pytest.importorskip("jax", reason="captures JAX programs")
    folder = tmp_path_factory.mktemp("captured")
    for name, (model, *options) in CAPTURES.items():
        told = ("-o", folder / name, "-c", "h100-dgx", "--json")
        document = valid(flint("capture", EXAMPLES / model, *options, *told), "flint.capture/1")
        assert document["estimates"][0]["cluster"] == "h100-dgx"
    return folder


@pytest.mark.parametrize("name", CAPTURES)
def test_what_is_said_of_a_capture(captured: Path, name: str, tmp_path: Path) -> None:
    trace = captured / name
    valid(flint("estimate", trace, "-c", "h100-dgx", "--json"), "flint.estimate/1")
    valid(flint("estimate", trace, "-c", "v5p", "--unpriced", "zero", "--json"), "flint.estimate/1")
    views = [f"--view={v}" for v in ("slices", "roofline", "communication", "scopes", "pipeline")]
    told = flint("estimate", trace, "-c", "h100-dgx", "--json", *views, "--class", "all")
    for one in valid(told, "flint.estimate/1")["classes"]:
        assert one["slices"]["slices"] and one["roofline"]["points"] and one["scopes"]["parts"]
    valid(flint("check", trace, "--json"), "flint.check/1")
    valid(flint("explain", trace, "--json"), "flint.explain/1")
    if name == "pipeline":  # the rest says nothing of stages
        return
    one = valid(flint("explain", trace, "--collective", "1", "--json"), "flint.explain/1")
    assert one["collective"]["number"] == 1
    assert valid(flint("explain", trace, "--scope", "*", "--json"), "flint.explain/1")["scope"]
    valid(flint("opt", trace, "-p", "drop-dead-code", "--json"), "flint.opt/1")
    valid(flint("anonymize", trace, "-o", tmp_path / "a.flint", "--json"), "flint.anonymize/1")
    more = ("--layers", 4, "--mesh", "4x2", "-o", tmp_path / "g.flint")
    assert valid(flint("grow", trace, *more, "--json"), "flint.grow/1")["changes"]
    valid(flint("export", trace), "flint.graph/1")
    valid(flint("export", trace, "-o", tmp_path / "g.dot", "-f", "dot", "--json"), "flint.export/1")


def test_traces_by_the_rules_of_astra_sim(captured: Path) -> None:
    network = captured / "jax" / "network.yml"
    run = ("estimate", captured / "jax", "--overlap", "astra-sim", "-c", network, "--json")
    found = valid(flint(*run), "flint.simulated/1")
    assert found["ranks"] == len(found["end_ns"]) == 4


def test_traces_in_a_simulator(captured: Path, tmp_path: Path) -> None:
    binary = make_binary(tmp_path / "simulator", "plain")
    run = ("simulate", captured / "jax", "--with", "astra-sim", "--binary", binary, "--json")
    found = valid(flint(*run), "flint.simulation/1")
    assert [len(r["end_ns"]) for r in found["runs"]] == [4, 4]


def test_findings(captured: Path, tmp_path: Path) -> None:
    shutil.copytree(captured / "jax", tmp_path / "trace")
    path = tmp_path / "trace" / "trace.1.et"
    path.write_bytes(path.read_bytes()[:-7])
    found = valid(flint("check", tmp_path / "trace", "--json", status=1), "flint.check/1")
    assert not found["ok"] and {f["code"] for f in found["findings"]} == set(found["counts"])


def test_capture_without_traces_says_estimates_on_each_cluster(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="records a PyTorch program")
    (tmp_path / "train.py").write_text(TORCH)
    command = ("capture", tmp_path / "train.py", "--world", "-m", "16", "--json")
    found = valid(flint(*command, "-c", "a100-80-dgx", "-c", "h100-dgx"), "flint.capture/1")
    assert found["files"] is None
    assert [e["cluster"] for e in found["estimates"]] == ["a100-80-dgx", "h100-dgx"]
    assert found["estimates"][0]["step_time_ns"] > found["estimates"][1]["step_time_ns"]
    assert found["timings"]["estimate_seconds"] > 0


def test_traces_are_of_one_cluster(tmp_path: Path) -> None:
    command = ("capture", "m.py", "-m", "4", "-c", "a100-80-dgx", "-c", "h100-dgx", "-o", tmp_path)
    found = CliRunner().invoke(app, list(map(str, command)))
    assert found.exit_code == 2 and "durations of only one cluster, but 2 are given" in found.stderr


def test_comparisons_and_reports(captured: Path, tmp_path: Path) -> None:
    traces = (captured / "jax", captured / "pipeline")
    compared = flint(
        "diff", *traces, "-c", "h100-dgx", "--json", "--fail-over", "flops=+0", status=1
    )
    found = valid(compared, "flint.diff/1")
    assert found["changes"] and found["causes"] and not found["equal"]
    assert found["broken"][0]["worst"] in found["changes"]
    assert valid(flint("diff", traces[0], traces[0], "--json"), "flint.diff/1")["equal"]
    told = flint("report", traces[0], "-c", "h100-dgx", "-o", tmp_path / "r.html", "--json")
    assert valid(told, "flint.report/1")["bytes"] == (tmp_path / "r.html").stat().st_size


def test_an_exploration(tmp_path: Path) -> None:
    pytest.importorskip("jax", reason="captures a JAX program")
    (tmp_path / "model.py").write_text(JAX)
    options = "--devices 8 -c h100-dgx --mesh data=2 -j 1 --json"
    found = valid(flint("explore", tmp_path / "model.py", *options.split()), "flint.explore/1")
    assert found["rows"][0]["choices"]["data"] == "2" and found["rows"][0]["values"]["time"] > 0


def test_a_project_and_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax", reason="captures a JAX program")
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(JAX)
    text = '[capture.train]\nmodel = "model.py"\nmesh = "4x2"\nclusters = ["h100-dgx"]\n'
    Path("flint.toml").write_text(text)
    first = valid(flint("run", "--json"), "flint.run/1")["captures"]["train"]
    assert (first["lock"], first["accepted"], first["cached"]) == ("new", True, False)
    valid(Path("flint.lock").read_text(), "flint.lock/1")
    (verdict,) = valid(flint("verify", "--json"), "flint.verify/1")["verdicts"]
    assert verdict["difference"]["equal"] and not verdict["fails"]
    Path("flint.toml").write_text(text.replace("4x2", "2x4"))
    (verdict,) = valid(flint("verify", "--json", status=1), "flint.verify/1")["verdicts"]
    assert verdict["fails"] and verdict["difference"]["causes"][0]["kind"] == "mesh"


def test_calibrate() -> None:
    log = Path(__file__).parents[2] / "data" / "collective_logs" / "rccl_mi300x.log"
    found = valid(flint("calibrate", log, "--base", "mi300x", "--json"), "flint.calibration/1")
    assert [t["name"] for t in found["tiers"]] == ["xgmi", "ib"] and found["files"] == []


def test_clusters_and_schedules() -> None:
    names = valid(flint("clusters", "list", "--json"), "flint.clusters/1")["clusters"]
    for cluster in names:
        valid(flint("clusters", "show", cluster["name"], "--json"), "flint.clusters/1")
    valid(flint("schedules", "--json", "--ranks", 3, "--chunks", 1), "flint.schedules/1")
    valid(flint("schedules", "zb-v", "--json"), "flint.schedules/1")


def test_schemas_are_listed_and_found() -> None:
    listed = valid(flint("schema", "--json"), "flint.schemas/1")
    assert [s["name"] for s in listed["schemas"]] == schema_names()
    assert flint("schema").count("\n") == 1 + len(schema_names())
    assert flint("schema", "estimate") == flint("schema", "flint.estimate/1")
    wrong = CliRunner().invoke(app, ["schema", "estimte"])
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert "no document is called 'estimte'; did you mean 'estimate'?" in wrong.stderr
    assert "FL507" in CliRunner().invoke(app, ["schema", "flint.estimate/99"]).stderr


def test_schemas_are_those_of_the_types() -> None:
    pydantic = version("pydantic")
    pins = Path(__file__).parents[3].joinpath("constraints.txt").read_text()
    if f"pydantic=={pydantic}\n" not in pins:
        pytest.skip("another pydantic writes the same otherwise")
    from flint.schemas.generate import generated

    found = {path.name: path.read_text() for path in FOLDER.glob("*.json")}
    assert found == generated(), "run python -m flint.schemas.generate"


@pytest.mark.parametrize("name", schema_names())
def test_every_field_is_described_and_room_is_left(name: str) -> None:
    for part in parts(read_schema(name)):
        assert part["description"] and "additionalProperties" not in part
        for field, value in part["properties"].items():
            assert value.get("description", "").endswith("."), f"{name}: {field}"


@pytest.mark.parametrize("change", [{"more": 1}, {"schemas": None}, {"schema": "flint.check/1"}])
def test_what_is_wrong_is_refused(change: dict[str, object]) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="validates documents")
    document = json.loads(flint("schema", "--json"))
    with pytest.raises((AssertionError, jsonschema.ValidationError)):
        valid(json.dumps({**document, **change}), "flint.schemas/1")
    with pytest.raises(jsonschema.ValidationError, match="required"):
        valid('{"schema": "flint.schemas/1"}', "flint.schemas/1")


def test_what_is_said_of_an_import() -> None:
    file = Path(__file__).parents[3] / "benchmarks" / "data" / "kineto" / "h100_bert-small.json.gz"
    valid(flint("import", file, "--json"), "flint.import/1")


def test_what_is_said_of_a_measurement_beside_a_capture() -> None:
    benchmarks = Path(__file__).parents[3] / "benchmarks"
    profile = benchmarks / "data" / "kineto" / "h100_vit.json.gz"
    captured = benchmarks / "compare_models" / "vit.flint"
    valid(flint("compare", profile, captured, "--json"), "flint.compare/1")


def test_workloads_that_never_were(tmp_path: Path) -> None:
    """Of the programs that come with Flint; "learn" is held against its schema in test_synth.py."""
    options = ("-n", 1, "--mesh", "data=4,model=2", "--rows", 900, "--seed", 2)
    told = flint("synth", *options, "-o", tmp_path / "made", "--json")
    sample = valid(told, "flint.synth/1")["samples"][0]
    assert sample["found"]["mesh"] == {"data": 4, "model": 2}
    assert 810 <= sample["found"]["rows"] <= 990


def test_every_command_is_above() -> None:
    """A new command's --json has to be held against its schema, here or in a test of its own."""
    here = Path(__file__).read_text()
    speak_otherwise = {"mcp", "propose", "serve"}  # in tests/tools
    for name in set(typer.main.get_command(app).commands) - speak_otherwise:  # type: ignore[attr-defined]
        assert f'"{name}"' in here, name
