"""What an evaluator says of points: what a fresh capture and estimate say, in any order, and no more work."""

from functools import cache
from pathlib import Path

import pytest

from flint.backends.cost.estimate import estimate
from flint.capturing import capture
from flint.io.records import record_of
from flint.passes.pipeline.split import shared
from flint.requests.capture import CaptureRequest
from flint.requests.estimate import EstimateRequest
from flint.tools.explore.evaluation.evaluate import Evaluator
from flint.tools.explore.point import Point
from flint.tools.explore.result import Result, Status
from flint.tools.explore.subject import Subject

_EXAMPLES = Path(__file__).parents[3] / "examples"
_MODEL = """
import flint, jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

def arrays(mesh, batch, seq):
    def array(*shape, spec, dtype=jnp.bfloat16):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))

    layer = {"up": array(256, 1024, spec=(None, "model")), "down": array(1024, 256, spec=("model",))}
    table = {"table": array(512, 256, spec=("model", None))}
    return table, layer, array(batch, seq, spec=("data", None), dtype=jnp.int32)

def first(p, tokens):
    return second(p["layer"], p["table"][tokens])

def second(p, x):
    return x + jax.nn.gelu(x @ p["up"]) @ p["down"]

@flint.entry(axes=("data", "model"))
def train(mesh, *, seq: int = 128):
    table, layer, tokens = arrays(mesh, mesh.shape["data"], seq)

    def step(p, tokens):
        gradients = jax.grad(lambda p: (first(p, tokens) ** 2).mean())(p)
        return jax.tree.map(lambda a, b: a - b, p, gradients)

    return flint.Step(step, ({"layer": layer, **table}, tokens), donate_argnums=0)

@flint.entry(axes=("pipe", "data", "model"))
def pipelined(mesh, *, microbatches: int = 4, schedule: str = "1f1b", chunks: int = 1, seq: int = 128):
    table, layer, tokens = arrays(mesh, microbatches * mesh.shape["data"], seq)
    layers = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct((4, *a.shape), a.dtype, sharding=NamedSharding(mesh, P(None, *a.sharding.spec))),
        layer,
    )

    def loss(p, tokens):
        x, _ = jax.lax.scan(lambda x, q: (second(q, x), None), p["table"][tokens], p["layers"])
        return (x ** 2).mean()

    return flint.Pipeline(
        model=loss, params={"layers": layers, **table}, inputs=(tokens,), backward=True, cut="layers",
        microbatches=microbatches, schedule=schedule, chunks=chunks, boundary=P("data"),
    )
"""
_captured = cache(capture)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("evaluated") / "model.py"
    path.write_text(_MODEL)
    return str(path)


def _pipelined(microbatches: str, schedule: str, chunks: str = "1", policy: str = "") -> Point:
    given = (("chunks", chunks), ("microbatches", microbatches), ("schedule", schedule))
    return Point(
        "pipe=2,data=2,model=2",
        "h100-dgx",
        pipeline=given,
        estimate=(("policy", policy),) if policy else (),
    )


def _fresh(subject: Subject, p: Point) -> tuple[object, ...]:
    """Step time, utilisation, interval and memory of classes, from new captures."""
    given = dict(p.pipeline)
    options = CaptureRequest(
        subject.model,
        p.mesh,
        settings=tuple(f"{k}={v}" for k, v in (*subject.settings, *p.settings)),
        schedule=given.get("schedule"),
        microbatches=int(given["microbatches"]) if given else None,
        chunks=int(given["chunks"]) if given else None,
    )
    e = _captured(options).estimate(p.cluster, **dict(p.estimate))
    last = max(e.classes, key=lambda c: c.end_ns)
    memory = tuple((c.end_ns, c.memory.total_bytes) for c in e.classes)
    interval = e.interval
    assert interval is not None
    exposed = (last.compute_ns, last.exposed_ns)
    return (e.step_time_ns, e.mfu, interval.low_ns, interval.high_ns, exposed, memory)


def _of(r: Result) -> tuple[object, ...]:
    memory = tuple((c.end_ns, c.memory_bytes) for c in r.classes)
    exposed = (r.compute_ns, pytest.approx(sum(r.exposed_ns.values()), abs=1e-6))
    return (r.step_time_ns, r.mfu, r.low_ns, r.high_ns, exposed, memory)


def test_pipelines_are_as_if_captured_afresh(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that differ in microbatches, schedule and policy share what was partitioned."""
    partitioned = []
    real = shared.SharedBodies.partitioned

    def count(self, body, partition):  # type: ignore[no-untyped-def]
        return real(self, body, lambda b: (partitioned.append(b), partition(b))[1])

    monkeypatch.setattr(shared.SharedBodies, "partitioned", count)
    subject = Subject(f"{model}:pipelined")
    points = [
        _pipelined("4", "1f1b"),
        _pipelined("2", "zb-h1", policy="fsdp"),
        _pipelined("4", "1f1b", policy="in-order"),
    ]
    evaluator = Evaluator(subject)
    rounds, counts = [], []
    for order in (points, points[::-1]):  # one place: locations in captures have who asked for them
        rounds.append([evaluator.evaluate([p])[0] for p in order])
        counts.append(len(partitioned))
    found = rounds[0]
    assert found == rounds[1][::-1] and counts == [2, 2]  # once for each stage
    assert [_of(r) for r in found] == [_fresh(subject, p) for p in points]


def test_points_of_one_capture_are_as_if_alone(model: str) -> None:
    subject = Subject(f"{model}:train")
    points = [
        Point("data=4,model=2", "h100-dgx"),
        Point("data=4,model=2", "b200-dgx", estimate=(("policy", "fsdp"),)),
        Point("data=4,model=2", "h100-dgx", estimate=(("stack", "megatron"),)),
        Point("data=4,model=2", "h100-dgx", estimate=(("policy", "blocking"),)),
    ]
    found = Evaluator(subject).evaluate(points)
    assert [r.status for r in found] == [Status.FITS] * 4
    assert [_of(r) for r in found] == [_fresh(subject, p) for p in points]
    assert found == Evaluator(subject).evaluate(points[::-1])[::-1]
    assert [r.tokens for r in found] == [4 * 128] * 4


def test_options_in_which_points_do_not_differ_are_those_of_each_estimate(model: str) -> None:
    point = Point("data=4,model=2", "h100-dgx", estimate=(("policy", "blocking"),))
    given = (("scale", "gemm=2x"), ("scale", "attention=2x"), ("profile", "torch"))
    (found,) = Evaluator(Subject(f"{model}:train", estimate=given)).evaluate([point])
    request = EstimateRequest(
        "h100-dgx", policy="blocking", scale=("gemm=2x", "attention=2x"), profile="torch"
    )
    options = CaptureRequest(f"{model}:train", point.mesh)
    assert found.step_time_ns == estimate(_captured(options).workload, request).step_time_ns


def test_keys_and_json_of_points_are_as_in_studies_of_before() -> None:
    assert Point("data=8", "h100-dgx").key == "edd693d692f89d37ad3dfe2e2ea88dcd"
    chosen = Point("data=8", "h100-dgx", estimate=(("stack", "megatron"), ("policy", "xla")))
    assert chosen.key == "a5a6b48f3f66017bec90435966de57af"
    said = {"mesh": "data=8", "cluster": "h100-dgx", "stack": "megatron", "policy": "xla"}
    assert chosen.to_json() == said
    assert record_of(Point, said) == chosen


def test_what_cannot_fit_is_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound by arguments is below the estimate's own memory, and enough to reject."""
    subject = Subject(f"{_EXAMPLES}/llama_jax.py:train", settings=(("model", "405b"),))
    (bound,) = Evaluator(subject).evaluate([Point("data=2,model=2", "h100-dgx")])
    assert (
        bound.is_bound
        and bound.status is Status.TOO_LARGE
        and bound.place == "moments['m']['layers']['down']"
    )
    monkeypatch.setattr("flint.tools.explore.evaluation.evaluate.bound_of", lambda *_: None)
    (whole,) = Evaluator(subject).evaluate([Point("data=2,model=2", "h100-dgx")])
    assert whole.status is Status.TOO_LARGE and not whole.is_bound and not whole.step_time_ns
    assert 0.5 * whole.memory_bytes < bound.memory_bytes <= whole.memory_bytes


def test_an_argument_that_nothing_reads_is_no_bound(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "import jax, flint\n"
        "from jax.sharding import NamedSharding, PartitionSpec as P\n"
        "@flint.entry(axes=('data',))\n"
        "def step(mesh):\n"
        "    def array(*shape):\n"
        "        return jax.ShapeDtypeStruct(shape, 'float32', sharding=NamedSharding(mesh, P()))\n"
        "    return flint.Step(lambda x, unused: x @ x, (array(64, 64), array(2**20, 2**16)))\n"
    )
    (found,) = Evaluator(Subject(str(tmp_path / "model.py"))).evaluate([Point("2", "h100-dgx")])
    assert found.status is Status.FITS and found.tokens == 0


def test_tokens_are_of_the_options_of_args_and_of_a_file_s_own_mesh(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "import jax\n"
        "def step(x):\n"
        "    return x @ x.T\n"
        "def args(mesh, *, batch: int = 8):\n"
        "    return (jax.ShapeDtypeStruct((batch, 64), 'float32'),)\n"
    )
    (tmp_path / "model.mlir").write_text(
        'sdy.mesh @mesh = <["data"=2]>\n'
        "func.func public @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {\n"
        "  %0 = stablehlo.add %x, %x : tensor<8x8xf32>\n"
        "  return %0 : tensor<8x8xf32>\n"
        "}\n"
    )
    model = Subject(
        f"{tmp_path}/model.py:step", args=f"{tmp_path}/model.py:args", tokens="batch * data"
    )
    (found,) = Evaluator(model).evaluate([Point("data=2", "h100-dgx")])
    assert (found.reason, found.tokens) == ("", 16)
    file = Subject(f"{tmp_path}/model.mlir", tokens="devices * 7")
    (found,) = Evaluator(file).evaluate([Point("", "h100-dgx")])
    assert (found.reason, found.tokens) == ("", 14)


def test_faults_stay_with_their_points(model: str) -> None:
    evaluator = Evaluator(Subject(f"{model}:train", tokens="3 * data * seq"))
    mesh = "data=4,model=2"
    found = evaluator.evaluate(
        [Point(mesh, "h100-dgx"), Point(mesh, "no-such"), Point(mesh, "v5p")]
    )
    assert [r.status for r in found] == [Status.FITS, Status.REFUSED, Status.FITS]
    assert found[1].code == "FL702" and found[0].tokens == 3 * 4 * 128
    (refused,) = evaluator.evaluate([Point("data=3,model=7", "h100-dgx")])
    assert refused.code == "FL103" and refused.place.startswith("model.py:")
    (bad,) = Evaluator(Subject(f"{model}:train", tokens="nothing")).evaluate([Point(mesh, "v5p")])
    assert bad.code == "FL861" and "nothing" in bad.reason
