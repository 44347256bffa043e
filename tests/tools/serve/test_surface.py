"""The surface of passes: equal to fresh captures and estimates, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from flint.backends.cost.setting import setting_of
from flint.capturing import capture
from flint.cli import app
from flint.errors import FlintError
from flint.io.outputs import OutputKind
from flint.requests.capture import CaptureRequest
from flint.requests.estimate import EstimateRequest
from flint.tools.serve.engine.engines import rules_of
from flint.tools.serve.engine.speculative import speculating
from flint.tools.serve.requests.logs import read_log
from flint.tools.serve.step_times import PromptChunk
from flint.tools.serve.surface import captured
from flint.tools.serve.surface.sizes import (
    DECODE_POINTS,
    PREFILL_POINTS,
    PRODUCTS,
    PassSizes,
    fitted,
    products_of,
)
from flint.tools.serve.surface.surface import Surface, passes_of, surface_of, surface_on
from tests.machine_output import valid

fresh = captured._captured

MODEL = """
import flint, jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

HEADS, SIZE, DIM, LAYERS = 8, 64, 512, 3

@flint.entry(axes=("model",))
def engine(
    mesh, *, batch: int = 1, new: int = 1, context: int = 8, bucket: int = 1, window: int = 0,
    num_layers: int = LAYERS,
):
    def array(*shape, spec=P()):
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))

    def step(p, caches, x):
        after = []
        for k, v in caches:
            q, n, w = (jnp.einsum("bsd,dhk->bshk", x, p[name]) for name in "qkv")
            k = jax.lax.dynamic_update_slice_in_dim(k, n, context, 1)
            v = jax.lax.dynamic_update_slice_in_dim(v, w, context, 1)
            s = jnp.einsum("bshk,bthk->bhst", q, k).astype(jnp.float32)
            at, of = context + jnp.arange(new)[:, None], jnp.arange(context + new)
            seen = (at >= of) & (at - of < window) if window else at >= of
            s = jax.nn.softmax(jnp.where(seen, s, -1e30), axis=-1).astype(x.dtype)
            x = x + jnp.einsum("bshk,hkd->bsd", jnp.einsum("bhst,bthk->bshk", s, v), p["o"])
            x = x + jnp.maximum(x @ p["up"], 0) @ p["down"]
            after.append((k, v))
        return jnp.argmax(x[:, -1] @ p["head"], -1), after

    heads = P(None, "model")
    p = {name: array(DIM, HEADS, SIZE, spec=heads) for name in "qkv"}
    p |= {"o": array(HEADS, SIZE, DIM, spec=P("model")), "head": array(DIM, 1000, spec=heads)}
    p |= {"up": array(DIM, 2048, spec=heads), "down": array(2048, DIM, spec=P("model"))}
    kv = array(batch, context + new, HEADS, SIZE, spec=P(None, None, "model"))
    x = array(batch, -(-new // bucket) * bucket, DIM)
    return flint.Step(step, (p, [(kv, kv)] * num_layers, x), donate_argnums=(1,))

@flint.entry(axes=("model",))
def latent(mesh, *, batch: int = 1, new: int = 1, context: int = 8):
    # absorbed, as in DeepSeek-V2: all heads read one latent and one rotary key
    def array(*shape, spec=P()):
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))

    def step(p, caches, x):
        after = []
        for kv in caches:
            q = jnp.einsum("bsd,dhc->bshc", x, p["q"])
            kv = jax.lax.dynamic_update_slice_in_dim(kv, x @ p["kv"], context, 1)
            s = jnp.einsum("bshc,btc->bhst", q, kv).astype(jnp.float32)
            seen = context + jnp.arange(new)[:, None] >= jnp.arange(context + new)
            s = jax.nn.softmax(jnp.where(seen, s, -1e30), axis=-1).astype(x.dtype)
            o = jnp.einsum("bhst,btc->bshc", s, kv[..., :128])
            x = x + jnp.einsum("bshc,hcd->bsd", o, p["o"])
            x = x + jnp.maximum(x @ p["up"], 0) @ p["down"]
            after.append(kv)
        return jnp.argmax(x[:, -1] @ p["head"], -1), after

    heads = P(None, "model")
    p = {"q": array(DIM, HEADS, 160, spec=heads), "kv": array(DIM, 160)}
    p |= {"o": array(HEADS, 128, DIM, spec=P("model")), "head": array(DIM, 1000, spec=heads)}
    p |= {"up": array(DIM, 2048, spec=heads), "down": array(2048, DIM, spec=P("model"))}
    caches = [array(batch, context + new, 160)] * 2
    return flint.Step(step, (p, caches, array(batch, new, DIM)), donate_argnums=(1,))

@flint.entry(axes=("data", "model"))
def divided(mesh, *, batch: int = 1, new: int = 1, context: int = 8):
    def array(*shape, spec=P()):
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))

    def step(w, cache, x):
        cache = jax.lax.dynamic_update_slice_in_dim(cache, x @ w, context, 1)
        return jnp.einsum("bsd,btd->bst", x, cache), cache

    split = P("data")
    args = array(DIM, DIM), array(batch, context + new, DIM, spec=split), array(batch, new, DIM, spec=split)
    return flint.Step(step, args, donate_argnums=(1,))

@flint.entry(axes=("model",))
def without_cache(mesh, *, batch: int = 1, new: int = 1, context: int = 8):
    x = jax.ShapeDtypeStruct((batch * new, 64), jnp.bfloat16, sharding=NamedSharding(mesh, P()))
    return flint.Step(lambda x: x * 2, (x,))

@flint.entry(axes=("model",))
def without_sizes(mesh, *, batch: int = 1):
    x = jax.ShapeDtypeStruct((batch, 64), jnp.bfloat16, sharding=NamedSharding(mesh, P()))
    return flint.Step(lambda x: x @ x.T, (x,))
"""
READS = """DIM, LAYERS = 8, 64, 512, 1
import pathlib
LAYERS = int(pathlib.Path(__file__).with_name("layers.txt").read_text())"""
DENSE = EstimateRequest(cluster="h100-dgx", stack="serving", profile="inductor")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("serve") / "engine.py"
    path.write_text(MODEL)
    return path


def request(model: Path, entry: str = "engine", **sizes: int) -> CaptureRequest:
    said = tuple(f"{name}={size}" for name, size in sizes.items())
    return CaptureRequest(f"{model}:{entry}", mesh="2", settings=said)


@pytest.fixture(scope="module")
def passes(model: Path) -> captured.PassCaptures:
    return passes_of(request(model))


@pytest.fixture(scope="module")
def surface(passes: captured.PassCaptures) -> Surface:
    return surface_on(passes, EstimateRequest(cluster="h100-dgx"))


@pytest.mark.parametrize(
    ("batch", "new", "context"), [(7, 1, 900), (130, 1, 4001), (1, 700, 320), (1, 416, 3000)]
)
def test_a_pass_takes_what_a_fresh_capture_takes(
    model: Path, surface: Surface, batch: int, new: int, context: int
) -> None:
    workload = capture(request(model, batch=batch, new=new, context=context)).workload
    true = setting_of(workload, DENSE).timed().timeline.total_ns
    if new == 1:
        found = surface.step_ns(batch, batch * context)
    else:
        found = surface.step_ns(0, 0, [PromptChunk(new, context)])
    assert found == pytest.approx(true, rel=0.01)


@pytest.mark.long
@pytest.mark.parametrize("entry", ["latent", "engine:window=512,num_layers=6"])
def test_latents_windows_and_layers_that_repeat(model: Path, entry: str) -> None:
    """MLA and windows as they are written; of six equal layers most captures have four."""
    name, _, option = entry.partition(":")
    options = tuple(option.split(",")) if option else ()
    asked = CaptureRequest(f"{model}:{name}", mesh="2", settings=options)
    found = surface_of(asked, EstimateRequest(cluster="h100-dgx"))
    for batch, new, context in ((90, 1, 3001), (2, 416, 3000)):
        sizes = (f"batch={batch}", f"new={new}", f"context={context}")
        workload = capture(asked.but(settings=(*asked.settings, *sizes))).workload
        true = setting_of(workload, DENSE).timed().timeline.total_ns
        chunks = [PromptChunk(new, context)] * batch if new > 1 else []
        ours = found.step_ns(0 if chunks else batch, 0 if chunks else batch * context, chunks)
        assert ours == pytest.approx(true, rel=0.01), sizes


def test_options_of_an_estimate_change_passes(
    model: Path, passes: captured.PassCaptures, surface: Surface
) -> None:
    faster = surface_on(
        passes, EstimateRequest(cluster="h100-dgx", scale=("attention=4x", "network=0.5x"))
    )
    workload = capture(request(model, batch=40, new=1, context=5000)).workload
    changed = DENSE.but(scale=("attention=4x", "network=0.5x"))
    true = setting_of(workload, changed).timed().timeline.total_ns
    assert faster.step_ns(40, 200_000) == pytest.approx(true, rel=0.01)
    assert faster.step_ns(40, 200_000) != pytest.approx(surface.step_ns(40, 200_000), rel=0.01)


def test_a_mixed_pass_is_its_tokens_and_the_attention_of_each_sequence(surface: Surface) -> None:
    alone = surface.step_ns(0, 0, [PromptChunk(512, 0)])
    mixed = surface.step_ns(64, 64_000, [PromptChunk(448, 0)])
    decode = surface.step_ns(64, 64_000)
    assert alone < mixed < alone + decode


def test_a_pass_that_checks_drafts_has_logits_of_each_token(surface: Surface) -> None:
    rules = rules_of("vllm:draft_tokens=3,acceptance_rate=0,draft_share=0,host_us=0")
    times, _ = speculating(surface, rules)
    chunks = {n: [PromptChunk(4, 100, n)] * 256 for n in (1, 4)}
    assert times.step_ns(256, 25_600) == surface.step_ns(0, 0, chunks[4])
    assert surface.step_ns(0, 0, chunks[1]) < times.step_ns(256, 25_600)


def test_the_cache_is_what_weights_and_a_pass_leave(surface: Surface) -> None:
    memory = surface.memory
    assert memory.token_bytes == pytest.approx(3 * 2 * 8 * 64 * 2 / 2)  # K and V, over two devices
    layers = 4 * 512 * 512 + 2 * 512 * 2048 + 512 * 1000
    assert memory.weight_bytes == layers * 2 / 2
    left = 0.9 * memory.capacity_bytes - memory.weight_bytes - memory.runtime_bytes
    assert surface.cache_tokens == int((left - surface.largest_pass_bytes) / memory.token_bytes)
    with pytest.raises(FlintError, match="FL895"):
        memory.cache_tokens(1e-6, 2048)


@pytest.mark.parametrize(
    ("entry", "settings", "says"),
    [
        ("without_cache", (), "FL893.*no cache"),
        ("without_sizes", (), "FL893.*no option 'new'"),
        ("engine", ("batch=4",), "FL893.*chooses"),
        ("divided", (), "FL893.*batch=3.*(?s:.)*data parallel"),
    ],
)
def test_models_that_are_no_pass(
    model: Path, entry: str, settings: tuple[str, ...], says: str
) -> None:
    mesh = "data=2,model=1" if entry == "divided" else "2"
    asked = CaptureRequest(f"{model}:{entry}", mesh=mesh, settings=settings)
    with pytest.raises(FlintError, match=f"(?s){says}"):
        surface_of(asked, EstimateRequest(cluster="h100-dgx"))


@pytest.mark.long
def test_captures_are_kept_while_what_the_model_reads_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[PassSizes] = []
    monkeypatch.setenv("FLINT_CACHE_DIR", str(tmp_path / "kept"))
    monkeypatch.setattr(
        captured, "_captured", lambda f, r, sizes: made.append(sizes) or fresh(f, r, sizes)
    )
    path = tmp_path / "engine.py"
    path.write_text(MODEL.replace("DIM, LAYERS = 8, 64, 512, 3", READS))
    (tmp_path / "layers.txt").write_text("1")

    def captures_made() -> int:
        made.clear()
        captured.captures(request(path), (*DECODE_POINTS[:2], *PREFILL_POINTS[:2]))
        return len(made)

    points = 4 + 2  # and two with all layers
    assert captures_made() == points
    (tmp_path / "requests.csv").write_text("what flint serve -o writes beside the model")
    assert captures_made() == 2
    (tmp_path / "layers.txt").write_text("1 ")  # the same program, but who knows of other sizes
    assert captures_made() == points
    monkeypatch.setenv("WHAT_A_MODEL_MAY_ASK", "for")
    assert captures_made() == points


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, len(PRODUCTS) - 1), min_size=1, max_size=3, unique=True),
    st.lists(st.integers(1, 9999), min_size=3, max_size=3),
)
def test_sums_of_products_are_found(chosen: list[int], factors: list[int]) -> None:
    sizes = np.array(PREFILL_POINTS, dtype=np.float64)
    true = np.zeros(len(PRODUCTS))
    true[chosen] = factors[: len(chosen)]
    values = (products_of(sizes) @ true).astype(np.int64)[None]
    found, wrong = fitted(values, sizes)
    other = np.array([[1, 77, 4001], [9, 1, 5], [31, 2048, 0]], dtype=np.float64)
    assert not wrong.any()
    assert found.at(other)[:, 0] == pytest.approx(products_of(other) @ true, rel=1e-3, abs=2)


def serve(*arguments: str) -> tuple[int, str, str]:
    found = CliRunner().invoke(app, ["serve", *arguments], prog_name="flint")
    return found.exit_code, found.stdout, found.stderr


@pytest.mark.long
def test_command(model: Path, tmp_path: Path) -> None:
    machine = (f"{model}:engine", "--mesh", "2", "-c", "h100-dgx")
    load = ("--requests", "poisson:50/s,input=uniform(50,900),output=40,n=60")
    page, trace = tmp_path / "page.html", tmp_path / "run.pftrace"
    files = ("--html", str(page), "--perfetto", str(trace))
    code, text, _ = serve(*machine, *load, "-o", str(tmp_path / "r.csv"), *files)
    assert code == 0
    assert OutputKind.PAGE.is_in(page) and OutputKind.TIMELINE.is_in(trace)
    assert "TPOT over time" in page.read_text()
    assert "TTFT" in text
    log = read_log(tmp_path / "r.csv")
    assert len(log) == 60
    pools = ("--decode-replicas", "2", "--decode-cluster", "h200-dgx", "--goodput", "ttft<=1s")
    code, text, _ = serve(*machine, *load, *pools, "--json")
    document = valid(text, "flint.serve/1")
    assert [e["cluster"] for e in document["engines"]] == ["h100-dgx", "h200-dgx"]
    assert document["devices"] == 6
    assert document["summary"]["goodput"]["share"] == 1
    code, text, _ = serve(*machine, "--requests", "constant:1e6/s,input=9000,output=90,n=300")
    assert code == 1
    assert "TOO MANY" in text


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--requests", "poison:4/s"), "FL301|FL884|FL889"),
        (("--requests", "poisson:4/s"), "FL889"),
        (("--requests", "poisson:4/s,lengths=sharegpt", "--engine", "vlm"), "FL890"),
        (("--requests", "poisson:4/s,lengths=sharegpt", "--memory-share", "2"), "FL892"),
        (("--requests", "poisson:4/s,lengths=sharegpt", "--decode-mesh", "4"), "FL218"),
        (("--requests", "constant:1/s,input=90,output=9", "--longest", "50"), "FL888"),
    ],
)
def test_mistakes(model: Path, options: tuple[str, ...], says: str) -> None:
    code, _, error = serve(f"{model}:engine", "--mesh", "2", "-c", "h100-dgx", *options)
    assert code == 2
    assert any(c in error for c in says.split("|")), error
