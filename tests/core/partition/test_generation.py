"""A program that prefills and decodes in a loop is told from others by its structure, whatever the style."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, lax
from jax.sharding import PartitionSpec as P

import flint
from flint.ir.op_class import OpClass
from flint.ir.program import Phase
from flint.passes.rewrites.generation import with_generation
from flint.tracing import trace_script
from tests.long import long_but

LAYERS, WIDTH, HEADS, DIM, WORDS, BATCH, PROMPT, NEW = 2, 64, 4, 16, 96, 4, 24, 8
LENGTH = PROMPT + NEW
SHAPE = (LAYERS, BATCH, LENGTH, HEADS, DIM)
SIZES = {"words": (WORDS, WIDTH), "out": (WIDTH, WORDS), "qkv": (LAYERS, 3, WIDTH, HEADS, DIM)}
WEIGHTS = {name: jax.ShapeDtypeStruct(size, jnp.float32) for name, size in SIZES.items()}
SPLIT = {"words": P(), "out": P(None, "model"), "qkv": P(None, None, None, "model")}
PROMPTS = jax.ShapeDtypeStruct((BATCH, PROMPT), jnp.int32)
BATCHES = jax.ShapeDtypeStruct((3, BATCH, PROMPT), jnp.int32)


def block(x: Array, w: Array, cache: Any, at: Any, style: str) -> tuple[Array, tuple[Array, ...]]:
    def put(cache: Array, new: Array) -> Array:
        if "rows" in style and new.shape[1] == 1:
            return cache.at[jnp.arange(BATCH), at + jnp.zeros(BATCH, jnp.int32)].set(new[:, 0])
        return lax.dynamic_update_slice(cache, new, (0, at, 0, 0))

    q, *new = jnp.einsum("bsd,ndhk->nbshk", x, w)
    keys, values = map(put, cache, new)
    seen = jnp.arange(LENGTH) <= (at + jnp.arange(x.shape[1]))[:, None]
    scores = jnp.where(seen, jnp.einsum("bqhd,bkhd->bhqk", q, keys), -1e30)
    heads = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), values)
    return x + heads.reshape(x.shape), (keys, values)


def forward(ps: Any, tokens: Array, cache: Any, at: Any, style: str = "") -> tuple[Array, Any]:
    def indexed(i: Any, c: Any) -> Any:
        x, new = block(c[0], ps["qkv"][i], [each[i] for each in c[1]], at, style)
        return x, tuple(whole.at[i].set(one) for whole, one in zip(c[1], new, strict=True))

    x, body = ps["words"][tokens], lambda x, xs: block(x, *xs, at, style)
    if "indexed" in style:
        x, cache = lax.fori_loop(0, LAYERS, indexed, (x, cache))
    else:
        x, cache = lax.scan(body, x, (ps["qkv"], cache), unroll="unrolled" in style)
    return x[:, -1] @ ps["out"], cache


def best(logits: Array) -> Array:
    return jnp.argmax(logits, -1).astype(jnp.int32)


def empty() -> tuple[Array, Array]:
    return (jnp.zeros(SHAPE),) * 2


def generate(ps: Any, prompt: Array, style: str = "", width: int = 1) -> Any:
    cache, logits = empty(), jnp.zeros((BATCH, WORDS))
    for at in range(0, 0 if "inside" in style else PROMPT, 8 if "chunks" in style else PROMPT):
        part = prompt[:, at : at + 8] if "chunks" in style else prompt
        logits, cache = forward(ps, part, cache, at, style)

    def step(c: Any, _: Any = None) -> Any:
        token, cache, at, done = c
        logits, cache = forward(ps, jnp.stack([token] * width, 1), cache, at, style)
        token = jnp.where(done, 0, best(logits))
        return (token, cache, at + 1, done | (token == 1)), token

    first = (best(logits), cache, jnp.int32(PROMPT), jnp.zeros(BATCH, bool))
    if "while" in style:
        more = (lambda c: ~c[3].all()) if "stop" in style else lambda c: c[2] < LENGTH
        return lax.while_loop(more, lambda c: step(c)[0], first)
    return lax.scan(step, first, None, length=NEW)[1].T


def attention_to_layers_before(ps: Any, tokens: Array) -> Any:
    def layer(at: Any, c: Any) -> Any:
        share = jax.nn.softmax(
            jnp.einsum("bsd,bsnd->bsn", c[0] @ ps["out"] @ ps["words"], c[1]), -1
        )
        x = jnp.einsum("bsn,bsnd->bsd", share, c[1])
        return x, c[1].at[:, :, at + 1].set(x)

    x = ps["words"][tokens] @ ps["out"] @ ps["words"]
    made = jnp.zeros((BATCH, PROMPT, NEW + 1, WIDTH)).at[:, :, 0].set(x)
    return best(lax.fori_loop(0, NEW, layer, (x, made))[0])


@pytest.mark.parametrize(
    "style",
    long_but(
        ["", "indexed chunks", "while stop"],
        ["", "while rows", "indexed chunks", "unrolled", "while stop"],
    ),
)
def test_prefill_and_decoding_have_the_flops_of_a_hand_count(style: str) -> None:
    trace = flint.trace(
        *(lambda ps, prompt: generate(ps, prompt, style), "data=2,model=4", WEIGHTS, PROMPTS),
        in_shardings=(SPLIT, P("data")),
        trip_counts={"loop0": NEW} if "stop" in style else {},
    )
    p = trace.program
    flops = p.flops * p.trips * (p.op == OpClass.MATMUL) * 8
    token = LAYERS * HEADS * DIM * (6 * WIDTH + 4 * LENGTH)
    prefill, decode = (int(flops[p.phase == x].sum()) for x in (Phase.PREFILL, Phase.DECODE))
    assert prefill == BATCH * (PROMPT * token + 2 * WIDTH * WORDS)
    assert decode == BATCH * NEW * (token + 2 * WIDTH * WORDS)
    found = trace.estimate("h100-dgx")
    assert found.serving and found.serving["decode_passes"] == NEW
    total = found.serving["ttft_ns"] + NEW * found.serving["tpot_ns"]
    assert total == pytest.approx(found.step_time_ns, rel=1e-6)
    assert found.tokens == BATCH * (1 + NEW)


@pytest.mark.parametrize(
    ("fn", "given"),
    [
        (lambda ps, t: forward(ps, t[:, :1], empty(), t[0, 0], "indexed"), PROMPTS),
        (lambda ps, t: generate(ps, t, "inside"), PROMPTS),  # a loop that reads its prompt
        (lambda ps, t: generate(ps, t, width=3), PROMPTS),  # drafts that are verified
        (attention_to_layers_before, PROMPTS),
        (lambda ps, t: jax.grad(lambda ps: forward(ps, t, empty(), 0)[0].mean())(ps), PROMPTS),
        (lambda ps, t: (generate(ps, t), generate(ps, t[:, ::-1])), PROMPTS),
        (lambda ps, t: generate(ps, jnp.tile(generate(ps, t), 3)), PROMPTS),
        (lambda ps, ts: lax.map(lambda t: generate(ps, t), ts), BATCHES),
    ],
)
def test_what_looks_like_a_generation_has_no_such_phases(
    fn: Callable[..., Any], given: Any
) -> None:
    program = flint.trace(fn, "data=2,model=4", WEIGHTS, given).program
    assert not np.isin(program.phase, (Phase.PREFILL, Phase.DECODE)).any()


SERVE = """
from tests.core.partition.test_generation import *
def serve(ps, tokens, cache, at): return forward(ps, tokens, cache, at)
prefill, decode = jax.jit(serve), jax.jit(serve, donate_argnums=2)
ps = {name: jnp.ones(size) for name, size in SIZES.items()}
prompt, key, at = jnp.ones(PROMPTS.shape, jnp.int32), jax.random.key(0), jnp.int32(0)
"""
GENERATES = """
for length in (3, 8):
    logits, cache = prefill(ps, prompt, empty(), at)
    for n in range(length):
        key, now = jax.random.split(key)
        logits, cache = decode(ps, jax.random.categorical(now, logits)[:, None], cache, {at})
        at = at + 1
"""
TRAINS = """
loss = lambda ps, y: (serve(ps, y, empty(), 0)[0] ** 2).mean()
train = jax.jit(lambda ps, y: jax.tree.map(jnp.add, ps, jax.grad(loss)(ps, y)))
y = best(prefill(ps, prompt, empty(), 0)[0])[:, None]
for n in range(24): ps = train(ps, y)
"""


@pytest.mark.parametrize(
    ("script", "passes"),
    long_but(
        [(GENERATES.format(at="at"), 8)],
        [(GENERATES.format(at="at"), 8), (GENERATES.format(at="n"), 8), (TRAINS, None)],
    ),
)
def test_a_prefill_and_calls_that_decode_are_one_program(
    script: str, passes: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    (tmp_path / "serve.py").write_text(SERVE + script)
    trace = trace_script(tmp_path / "serve.py", "1")
    serving = trace.estimate("h100-dgx").serving
    assert (serving and serving["decode_passes"]) == passes
    if passes:
        flops = trace.program.flops * trace.program.trips * (trace.program.op == OpClass.MATMUL)
        token = LAYERS * HEADS * DIM * (6 * WIDTH + 4 * LENGTH)
        assert flops.sum() == BATCH * ((PROMPT + passes) * token + (passes + 1) * 2 * WIDTH * WORDS)
        assert {"ps['qkv']", "tokens"} <= {trace.program.row(n).name for n in range(9)}


def test_a_kernel_that_makes_what_it_writes_writes_no_cache() -> None:
    """A compiler's scatter may hold its update: then it reads an array and places alone."""
    traced = flint.trace(lambda ps, t: generate(ps, t, "rows"), "data=2,model=2", WEIGHTS, PROMPTS)
    program = traced.program
    plain = program.with_rows(phase=np.full(len(program), Phase.FORWARD, dtype=np.uint8))
    assert (with_generation(plain).phase == Phase.DECODE).any()
    dtype, places = plain.dtype.copy(), plain.dtypes.index("int32")
    for row in np.flatnonzero(plain.op == OpClass.SCATTER).tolist():
        dtype[plain.dependencies(row)[1:]] = places
    assert not (with_generation(plain.with_rows(dtype=dtype)).phase == Phase.DECODE).any()
