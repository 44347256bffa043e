"""Hints: what a changed program gains, which hints are told, and what the command line does with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flint.backends.cost.estimate import estimate as estimated
from flint.cli import app
from flint.errors import FlintError
from flint.ir.mesh import AxisRef, Group, Mesh
from flint.ir.program import Collective, Flag, Kind
from flint.ir.workload import Workload
from flint.requests.estimate import EstimateRequest
from flint.tools.hints import on_graph
from flint.tools.hints.hint import CheckedBy, HintCandidate, HintKind, StepOutcome, best, tried
from flint.tools.hints.on_graph import exposed_ns, unused_axes
from tests.program_rows import ProgramBuilder

BEFORE = StepOutcome(100e6, 50 << 30, fits=True)
TOO_LARGE = StepOutcome(100e6, 90 << 30, fits=False)


def _candidate(kind: HintKind, after: StepOutcome | None, change: str = "", **more: object):
    by = more.pop("checked_by", CheckedBy.GRAPH)
    how = {"rows": 10, "make": lambda: after, **more}
    return HintCandidate(kind, change or str(kind), "try it", by, **how)


def _told(before: StepOutcome, *candidates: HintCandidate) -> list[str]:
    return [h.change for h in best(before, tried(candidates, 1000)[0], 64)]


def _after(time_ms: float, fits: bool = True, gib: int = 50) -> StepOutcome:
    return StepOutcome(time_ms * 1e6, gib << 30, fits)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (BEFORE, {"host": _after(90), "placement": _after(80)}, ["placement", "host"]),
        (BEFORE, {"host": _after(99)}, []),  # estimates are not that sure
        (BEFORE, {"host": _after(101)}, []),
        (BEFORE, {"host": _after(50, fits=False)}, []),
        (BEFORE, {"memory": _after(50)}, []),  # it fitted before
        (TOO_LARGE, {"memory": _after(120)}, ["memory"]),
        (TOO_LARGE, {"memory": _after(50, fits=False)}, []),
        (TOO_LARGE, {"host": _after(50, fits=False), "memory": _after(120)}, ["memory", "host"]),
    ],
)  # fmt: skip
def test_which_hints_are_told(before, after, told):
    assert _told(before, *(_candidate(HintKind(k), a) for k, a in after.items())) == told


def test_the_smallest_change_that_fits_is_told_first():
    """One on as many devices before one on more; at most two of memory, one of another kind."""
    memory = HintKind.MEMORY
    candidates = [
        _candidate(memory, _after(50), "more devices", devices=128),
        _candidate(memory, _after(130), "offload"),
        _candidate(memory, _after(110), "remat"),
        _candidate(HintKind.COLLECTIVE, _after(90), "one"),
        _candidate(HintKind.COLLECTIVE, _after(80), "two"),  # fits, too
    ]
    assert _told(TOO_LARGE, *candidates) == ["two", "remat", "offload"]


def test_what_is_not_tried_is_named_and_what_cannot_be_is_not():
    def refused() -> StepOutcome:
        raise FlintError("FL102", "no such axis")

    cheap = _candidate(HintKind.HOST, _after(50), "cheap")
    impossible = _candidate(HintKind.HOST, None, "impossible", make=refused)
    dear = _candidate(HintKind.HOST, _after(50), "dear", rows=100)
    found, not_tried = tried([cheap, impossible, dear, cheap], 35)
    assert [c.change for c, _ in found] == ["cheap", "cheap"]
    assert not_tried == ("dear",)


def test_a_text_says_gain_attempt_and_check():
    hint = best(
        TOO_LARGE,
        tried([_candidate(HintKind.MEMORY, _after(120), "remat", place="m.py:3")], 10)[0],
        8,
    )[0]
    assert hint.to_text().split("\n") == [
        "remat (m.py:3): fits, 40.0 GiB less, 20.0 ms longer",
        "   try  try it",
        f"   {CheckedBy.GRAPH}",
    ]


MODEL = """import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import flint


def loss(params, x):
    def layer(x, w):
        q, k, v = x @ w["q"], x @ w["k"], x @ w["v"]
        scores = jax.nn.softmax(jnp.einsum("bsd,btd->bst", q, k).astype("float32")).astype(x.dtype)
        x += jnp.einsum("bst,btd->bsd", scores, v) @ w["o"]
        return jnp.tanh(x @ w["up"]) @ w["down"], None

    x, _ = jax.lax.scan(layer, params["table"][x], params["layers"])
    return jnp.sum(x.astype("float32"))


@flint.entry(axes=("data", "model"))
def train(mesh, rows: int = 64):
    def array(shape, *spec, dtype="bfloat16"):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))

    layers = {name: array((4, 1024, 128)) for name in "qkv"} | {"o": array((4, 128, 1024))}
    layers |= {"up": array((4, 1024, 8192), None, None, "model")}
    layers["down"] = array((4, 8192, 1024), None, None, "model")  # should be split along dimension 1
    params = {"table": array((8192, 1024)), "layers": layers}
    return flint.Step(jax.grad(loss), (params, array((rows, 2048), dtype="int32")))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("jax")
    where = tmp_path_factory.mktemp("hints")
    (where / "model.py").write_text(MODEL, encoding="utf-8")
    return where


def _flint(folder: Path, *words: object) -> str:
    done = CliRunner().invoke(app, [str(w).replace("@", f"{folder}/") for w in words])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.long
def test_hints_hold_when_the_program_is_changed_as_they_say(folder):
    """A capture tells where to shard a weight, and the program that does it takes that long."""
    command = ("capture", "@model.py:train", "--mesh=data=1,model=8", "-c", "h100-dgx", "--json")
    (found,) = json.loads(_flint(folder, *command, "--hints"))["estimates"]
    hint = next(h for h in found["hints"] if h["kind"] == "collective")
    assert hint["attempt"] == "P(None, None, 'model')  becomes  P(None, 'model', None)"
    assert (hint["place"], hint["checked_by"]) == ("model.py:14", CheckedBy.CAPTURE)
    changed = MODEL.replace(
        '(4, 8192, 1024), None, None, "model")', '(4, 8192, 1024), None, "model")'
    )
    assert changed != MODEL
    (folder / "changed.py").write_text(changed, encoding="utf-8")
    words = [*command, "--no-hints"]
    words[1] = "@changed.py:train"
    (after,) = json.loads(_flint(folder, *words))["estimates"]
    assert after["step_time_ns"] == hint["after"]["step_time_ns"]
    assert "hints" not in after


def test_traces_have_hints_of_the_graph(folder):
    """Attention is written out: that is told of traces, byte for byte alike."""
    _flint(folder, "capture", "@model.py:train", "--mesh=8x8", "-o", "@traces", "-q")
    estimate = ("estimate", "@traces", "-c", "h100-dgx")
    text = _flint(folder, *estimate)
    assert text == _flint(folder, *estimate)
    assert "what now\n1  call fused attention instead of writing it out (model.py:13):" in text
    assert "what now" not in _flint(folder, *estimate, "--no-hints")


def test_hints_need_a_cluster(folder):
    words = ["capture", f"{folder}/model.py:train", "--mesh=8x8", "--hints"]
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, "FL218" in done.output or "FL218" in done.stderr) == (2, True)


def test_a_page_begins_with_what_does_not_fit_and_says_what_now(folder):
    """The first tile is the verdict; tokens and their price are those of the arguments."""
    from flint.backends.chakra.reading.captured import load_workload
    from flint.cluster.models import Cluster

    chip = Cluster.load("h100-dgx").chip
    small = chip.model_copy(
        update={"memory_bytes": chip.memory_bytes.model_copy(update={"value": 8 << 30})}
    )
    cluster = Cluster.load("h100-dgx").model_copy(update={"chip": small})
    found = estimated(load_workload(folder / "traces"), EstimateRequest(cluster=cluster))
    page = found.to_html()
    assert page.index("DOES NOT FIT") < page.index("step time")
    assert "What now" in page and "call fused attention" in page
    assert found.tokens == 64 * 2048  # the sharding of the argument splits nothing
    assert found.cost_per_million_tokens == pytest.approx(
        10 * 64 / 3600 * found.step_time_ns / 1e9 / found.tokens * 1e6
    )


def _on_axes(group: str, *, launched: bool) -> Workload:
    """An all-reduce over one of two axes, of a captured or a recorded program."""
    b = ProgramBuilder(Mesh(("data", "model"), (4, 16)))
    x = b.add("parameter", Kind.PARAMETER, result_bytes=1 << 30, cause='[{"model"}]')
    b.add(
        "sdy.all_reduce",
        Kind.COLLECTIVE,
        deps=(x,),
        collective=Collective.ALL_REDUCE,
        group=Group((AxisRef(group),)),
        comm_bytes=1 << 30,
        result_bytes=1 << 30,
        flags=Flag.LAUNCHED if launched else Flag(0),
    )
    return Workload.single(b.build())


def test_nothing_says_that_recorded_ranks_do_the_same():
    """Each has a part of the batch of its own, which no argument's sharding says."""
    assert unused_axes(_on_axes("model", launched=False)) == ["data"]
    assert unused_axes(_on_axes("model", launched=True)) == []


def test_the_axis_that_is_waited_for_is_found_where_a_part_of_it_is_outside():
    """16 devices of `model` are two nodes: its outer part has another name in the estimate."""
    e = estimated(_on_axes("model", launched=False), EstimateRequest("h100-dgx"))
    assert exposed_ns(e, over="model") > 0
    (found,) = on_graph._placements(e, EstimateRequest("h100-dgx"))
    assert "'model'" in found.change
