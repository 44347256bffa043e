"""Steps of a run as Chakra traces: they take what the run took, and say which requests were in them."""

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from flint.backends.chakra import check, read
from flint.backends.chakra.schema import NodeType
from flint.backends.cost.astrasim.run import simulate_traces
from flint.errors import FlintError
from flint.requests.capture import CaptureRequest
from flint.requests.estimate import EstimateRequest
from flint.schemas.catalog import FOLDER, file_name
from flint.tools.serve.export.export import ExportKind, export_served, exports_of
from flint.tools.serve.export.steps import sized_pass
from flint.tools.serve.request import ServeRequest
from flint.tools.serve.serve import Served, Surfaces, serve
from flint.tools.serve.step_times import PromptChunk
from tests.long import long_but
from tests.machine_output import valid
from tests.tools.serve.test_surface import MODEL

MODELS = {"llama-8b": "2", "qwen3-30b-a3b": "4"}
LOADS = {
    "llama-8b": "gamma:30/s,burstiness=0.3,n=24,input=uniform(20,900),output=uniform(1,40)",
    "qwen3-30b-a3b": "poisson:20/s,n=12,input=300,output=8",
}
PASSES = [
    (16, 16 * 700, ()),
    (1, 50, ()),
    (0, 0, (PromptChunk(512, 0),)),
    (60, 60 * 900, (PromptChunk(300, 100), PromptChunk(900, 0))),
]


def request(model: str, **options: Any) -> ServeRequest:
    engine = "vllm:max_num_seqs=16,max_num_batched_tokens=1024"
    given: dict[str, Any] = {"requests": LOADS[model], "engine": engine, "replicas": 2}
    return ServeRequest(**given | options)


#: Experts are quick: whose passes have all that those of a dense model have, which test_export writes.
@pytest.fixture(scope="module", params=long_but(["qwen3-30b-a3b"], MODELS))
def served(request: pytest.FixtureRequest) -> tuple[str, Surfaces]:
    settings = [f"model={request.param}", "num_layers=2"]
    mesh = MODELS[request.param]
    return request.param, Surfaces(
        CaptureRequest("examples/serve_jax.py", mesh=mesh, settings=settings)
    )


def run(served: tuple[str, Surfaces], **options: Any) -> Served:
    model, known = served
    on = EstimateRequest("h100-dgx")
    return serve(known.captured, on, request(model, **options), known, sure=False)


def write(found: Served, directory: Path, *, force: bool = False) -> dict[str, Any]:
    export_served(found, ServeRequest("poisson:1/s"), ExportKind.CHAKRA, directory, force=force)
    found_text = (directory / "schedule.json").read_text()
    schedule: dict[str, Any] = valid(found_text, "flint.serve-schedule/1")
    return schedule


def test_a_sized_pass_takes_what_the_surface_says(served: tuple[str, Surfaces]) -> None:
    surface = run(served).surfaces[0]
    for decodes, context, chunks in PASSES:
        program, ns = sized_pass(surface, decodes, context, chunks)
        program.verify()
        wanted = surface.step_ns(decodes, context, chunks) - surface.sequence_ns * (
            decodes + len(chunks)
        )
        assert ns @ program.trips == pytest.approx(wanted, rel=1e-3)


def test_traces_of_a_run(served: tuple[str, Surfaces], tmp_path: Path) -> None:
    found = run(served)
    out = tmp_path / "out"
    schedule = write(found, out)
    (pool,) = schedule["pools"]
    assert sum(kind["steps"] for kind in pool["kinds"]) == len(schedule["steps"])
    assert {kind["name"].partition("-")[0] for kind in pool["kinds"]} >= {"mixed", "decode"}
    assert pool["kinds_ns"] == pytest.approx(pool["busy_ns"], rel=0.02)
    assert pool["busy_ns"] == pytest.approx(
        sum(s["duration_ns"] for s in schedule["steps"]), rel=1e-6
    )
    for kind in pool["kinds"]:
        folder = out / kind["folder"]
        assert check(folder).ok
        nodes = read(folder / "trace.0.et").nodes
        computed = [n for n in nodes if n.type == NodeType.COMP]
        assert sum(n.duration_micros for n in computed) == pytest.approx(
            kind["compute_ns"] / 1e3, abs=1
        )
        assert any(n.type == NodeType.COMM_COLL for n in nodes)
        simulated = simulate_traces(folder, folder / "network.yml")
        assert simulated.step_time_ns > kind["compute_ns"]
    text = (out / "README.md").read_text()
    assert f"{pool['kinds_ns'] / pool['busy_ns'] - 1:+.2%} off the" in text


def test_the_schedule_has_each_token_of_each_request(
    served: tuple[str, Surfaces], tmp_path: Path
) -> None:
    found = run(served)
    schedule = write(found, tmp_path / "out")
    prompts, answers = Counter[int](), Counter[int]()
    for step in schedule["steps"]:
        prompts.update({request: new for request, new, _ in step["prompts"]})
        answers.update(step["decodes"])
        assert step["batch"] == len(step["prompts"]) + len(step["decodes"])
        new = len(step["decodes"]) + sum(new for _, new, _ in step["prompts"])
        assert step["new_tokens"] == new
        first = [schedule["requests"][r]["arrival_ns"] for r, *_ in step["prompts"]]
        assert all(arrival <= step["start_ns"] for arrival in first)
    for number, one in enumerate(schedule["requests"]):
        assert prompts[number] == one["input_tokens"]
        assert answers[number] == one["output_tokens"] - 1
    for _, steps in itertools.groupby(schedule["steps"], key=lambda s: (s["pool"], s["engine"])):
        for one, after in itertools.pairwise(steps):
            assert after["start_ns"] >= one["start_ns"] + one["duration_ns"] - 1


def test_pools_have_folders_of_their_own(served: tuple[str, Surfaces], tmp_path: Path) -> None:
    found = run(served, decode_replicas=1, replicas=1)
    schedule = write(found, tmp_path / "out")
    kinds = {
        pool["name"]: {k["folder"].split("/")[0] for k in pool["kinds"]}
        for pool in schedule["pools"]
    }
    assert kinds == {"prefill": {"prefill"}, "decode": {"decode"}}
    assert all(not step["decodes"] for step in schedule["steps"] if step["pool"] == "prefill")
    assert all(not step["prompts"] for step in schedule["steps"] if step["pool"] == "decode")


def test_nothing_of_others_is_replaced(served: tuple[str, Surfaces], tmp_path: Path) -> None:
    out, asked = tmp_path / "out", request(served[0], export=[f"chakra:{tmp_path / 'out'}"])
    found = run(served)
    write(found, out)
    with pytest.raises(FlintError, match="FL501"):
        exports_of(asked, force=False)
    mine = out / "engine/mine"
    next(out.glob("engine/*")).rename(mine)  # a trace that was put here
    again = write(found, out, force=True)
    folders = {f"engine/{path.name}" for path in out.glob("engine/*")}
    assert folders == {kind["folder"] for kind in again["pools"][0]["kinds"]} | {"engine/mine"}
    assert (mine / "trace.0.et").exists()
    changed = out / again["pools"][0]["kinds"][0]["folder"] / "trace.0.et"
    changed.write_bytes(b"measured")
    with pytest.raises(FlintError, match="FL501"):
        exports_of(asked, force=True)
    assert changed.read_bytes() == b"measured"
    with pytest.raises(FlintError, match="FL501.*is a trace"):
        exports_of(request(served[0], export=[f"chakra:{mine}"]), force=True)
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes").write_text("mine")
    with pytest.raises(FlintError, match="FL501"):
        exports_of(request(served[0], export=[f"chakra:{other}"]), force=True)


def test_what_is_no_step_is_said(served: tuple[str, Surfaces], tmp_path: Path) -> None:
    with pytest.raises(FlintError, match="FL909.*no KIND:DIR.*'chakra'"):
        exports_of(request(served[0], export=["chakre:out"]), force=False)
    found = run(served, engine="vllm:draft_tokens=3")
    with pytest.raises(FlintError, match="FL909.*draft_tokens"):
        write(found, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_model_without_steps_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "engine.py").write_text(MODEL)
    captured = CaptureRequest(f"{tmp_path / 'engine.py'}:without_cache", mesh="2")
    with pytest.raises(FlintError, match="FL893"):
        serve(captured, EstimateRequest("h100-dgx"), ServeRequest("poisson:1/s,lengths=sharegpt"))


def test_the_schema_is_there() -> None:
    assert json.loads((FOLDER / file_name("flint.serve-schedule/1")).read_text())["properties"][
        "steps"
    ]
