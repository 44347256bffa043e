"""`flint propose`: the best plan, never worse than data parallel or fully sharded, and lines that give it."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from typer.testing import CliRunner

import flint
from flint.capturing import capture
from flint.cli import app
from flint.cluster.named import load_cluster
from flint.requests.capture import CaptureRequest
from flint.steps.step import Step
from flint.tools.explore.propose.cost import Costs
from flint.tools.explore.propose.plan import AtRest
from flint.tools.explore.propose.search import is_plain, search
from flint.tools.explore.result import Status
from tests.machine_output import valid
from tests.tools.explore.propose import models

MODEL = Path(models.__file__)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return tmp_path_factory.mktemp("propose") / "results.jsonl"


@pytest.fixture(scope="module")
def found(kept):
    return flint.propose(models.entry(None), devices=4, tries=3, study=kept)


def test_the_best_is_first_and_the_plain_ones_are_among_them(found):
    times = [j.result.step_time_ns for j in found.judged if j.result.status is Status.FITS]
    assert times == sorted(times)
    assert {j.plan.rest for j in found.judged if is_plain(j.plan)} == set(AtRest)
    assert found.result.step_time_ns > 0


def test_its_step_is_what_was_estimated(found):
    trace = flint.trace(found.step, found.plan.mesh)
    assert trace.estimate("h100-dgx").step_time_ns == found.result.step_time_ns


def test_text_says_the_plans_the_runner_up_and_what_would_change_it(found):
    text = found.to_text()
    assert text.count("\n1. ") == 1
    assert "the second takes" in text
    assert "bandwidth of nvlink" in text and "bandwidth of ib" not in text
    assert "jax.make_mesh" in text


def test_a_run_that_was_interrupted_goes_on(found, kept, monkeypatch, tmp_path):
    lines = kept.read_text().splitlines()
    copy = tmp_path / "results.jsonl"
    copy.write_text("\n".join(lines) + "\n" + lines[0][:40])  # the last one was being written

    def nothing(*_, **__):
        raise AssertionError("it is known")

    monkeypatch.setattr("flint.tracing.trace_step", nothing)
    again = flint.propose(models.entry(None), devices=4, tries=3, study=copy)
    assert again.to_text() == found.to_text()


def command(*arguments):
    found = CliRunner().invoke(app, list(arguments), prog_name="flint")
    assert found.exit_code == 0, found.output
    return found.stdout


def test_the_file_that_it_writes_captures_as_it_says(kept, found, tmp_path):
    out = tmp_path / "proposed.py"
    options = ("--devices", "4", "--tries", "3", "--study", str(kept), "-o", str(out), "--json")
    document = valid(command("propose", f"{MODEL}:entry", *options), "flint.propose/1")
    best = document["plans"][0]
    assert best["step_time_ns"] == found.result.step_time_ns
    trace = capture(CaptureRequest(str(out), mesh=best["mesh"]))
    assert trace.estimate("h100-dgx").step_time_ns == pytest.approx(best["step_time_ns"], rel=1e-9)


def test_costs_know_pairs_from_products_that_are_split_apart():
    """Columns then rows: one all-reduce for a pair; rows and columns of the residual cost more."""
    from flint.tools.explore.propose.origin import origin_of
    from flint.tools.explore.propose.plan import ShardingPlan

    blank = origin_of(Step(models.step, models.args())).blank
    costs = Costs(blank, load_cluster("h100-dgx"))
    width, inner = (blank.reading.colours_of(blank.reading.arguments[0])[at] for at in (0, 1))
    priced = {
        c: costs.of(ShardingPlan((("data", 1), ("model", 8)), ((blank.batch,), (c,))))
        for c in (width, inner)
    }
    assert priced[inner].blocking_ns < priced[width].blocking_ns


@pytest.mark.long
def test_a_module_of_pytorch_gets_placements_and_plans():
    torch = pytest.importorskip("torch")
    with torch.device("meta"):
        net = torch.nn.Sequential(
            torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256)
        )
        x = torch.zeros(32, 256)
    step = flint.TorchStep(net, (x,), loss=lambda out: out.square().mean(), optimizer="sgd")
    found = flint.propose(step, devices=2, tries=2)
    assert "shardings={" in found.lines
    trace = flint.trace(found.step, found.plan.mesh)
    assert trace.estimate("h100-dgx").step_time_ns == found.result.step_time_ns


def refused(fn, args, code, **how):
    with pytest.raises(flint.FlintError) as told:
        flint.propose(fn, args, **{"devices": 8, "tries": 2, **how})
    assert told.value.code == code
    return str(told.value)


def shape(*sizes):
    return jax.ShapeDtypeStruct(sizes, "float32")


def test_a_program_that_nothing_can_split():
    refused(lambda x: x + 1.0, (shape(),), "FL930")


def test_devices_that_divide_nothing():
    assert "7" in refused(lambda w, x: x @ w, (shape(7, 7), shape(7, 7)), "FL931")


def test_memory_that_no_choice_meets_says_by_how_much():
    said = refused(lambda w, x: x @ w, (shape(2**20, 2**20), shape(8, 2**20)), "FL933")
    assert "more than" in said
    assert "devices" in said


def test_shardings_that_are_there():
    mesh = jax.sharding.AbstractMesh((8,), ("data",))
    at = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    x = jax.ShapeDtypeStruct((8, 8), "float32", sharding=at)
    refused(lambda w, x: x @ w, (shape(8, 8), x), "FL934")


def test_side_effects():
    def shown(w, x):
        jax.debug.print("{}", jnp.sum(x))
        return x @ w

    refused(shown, (shape(8, 8), shape(8, 8)), "FL935")


def test_a_step_of_another_kind():
    refused(flint.WorldStep(print), (), "FL936")


def test_a_file_of_something_else(tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("something else\n")
    refused(lambda w, x: x @ w, (shape(8, 8), shape(8, 8)), "FL938", study=other)
    assert other.read_text() == "something else\n"


def test_a_share_of_memory_that_is_none():
    refused(lambda w, x: x @ w, (shape(8, 8), shape(8, 8)), "FL939", memory=1.5)


def test_the_same_answer_every_time():
    blank_of = lambda: (
        __import__("flint.tools.explore.propose.origin", fromlist=["x"])
        .origin_of(Step(models.step, models.args()))
        .blank
    )
    found = [
        search(
            blank_of(), load_cluster("b200-dgx"), 64, capacity=10**11, tries=20, rests=tuple(AtRest)
        )
        for _ in range(2)
    ]
    assert [p.plan for p in found[0].chosen] == [p.plan for p in found[1].chosen]


def test_results_are_lines_of_json(kept, found):
    for line in kept.read_text().splitlines():
        assert set(json.loads(line)) == {"key", "result"}


@pytest.mark.parametrize("moments_first", [False, True])
def test_results_replace_the_arguments_of_their_paths(moments_first):
    """Moments are told from weights of one type and shape, in whatever order the step returns them."""
    from flint.tools.explore.propose.origin import origin_of

    def step(weights, state, x):
        new_weights, (moments,), value = models.step(
            [*weights.values()], [*state["m"].values()], x, x
        )
        weights = dict(zip(weights, new_weights, strict=True))
        state = {"m": {"a": moments}}
        return (state, weights, value) if moments_first else (weights, state, value)

    (layers, _, x, _) = models.args()
    blank = origin_of(Step(step, ({"a": layers[0]}, {"m": {"a": layers[0]}}, x))).blank
    names = blank.names
    told = [names[n] for _, n in sorted(blank.returned.items())]
    weights, state = [n for n in names if n.startswith("weights")], [n for n in names if "'m'" in n]
    assert told == (state + weights if moments_first else weights + state)
