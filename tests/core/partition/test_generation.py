"""A program that prefills and decodes in a loop is told from others by its structure, whatever the style."""

from __future__ import annotations

from collections.abc import Callable
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

LAYERS, WIDTH, HEADS, DIM, WORDS, BATCH, PROMPT, NEW = 2, 64, 4, 16, 96, 4, 24, 8
LENGTH = PROMPT + NEW
SHAPE = (LAYERS, BATCH, LENGTH, HEADS, DIM)
SPECS = ({"words": P(), "out": P(None, "model"), "qkv": P(None, None, None, "model")}, P("data"))


def shaped(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


WEIGHTS = {"words": shaped(WORDS, WIDTH), "out": shaped(WIDTH, WORDS)}
WEIGHTS |= {"qkv": shaped(LAYERS, 3, WIDTH, HEADS, DIM)}
PROMPTS, STATES = shaped(BATCH, PROMPT, dtype=jnp.int32), shaped(BATCH, PROMPT, WIDTH)


def put(cache: Array, new: Array, at: Any, style: str) -> Array:
    if "rows" in style and new.shape[1] == 1:
        return cache.at[jnp.arange(BATCH), at + jnp.zeros(BATCH, jnp.int32)].set(new[:, 0])
    return lax.dynamic_update_slice(cache, new, (0, at, 0, 0))


def block(x: Array, w: Array, keys: Array, values: Array, at: Any, style: str) -> tuple[Array, ...]:
    q, k, v = jnp.einsum("bsd,ndhk->nbshk", x, w)
    keys, values = put(keys, k, at, style), put(values, v, at, style)
    seen = jnp.arange(LENGTH) <= (at + jnp.arange(x.shape[1]))[:, None]
    scores = jnp.where(seen, jnp.einsum("bqhd,bkhd->bhqk", q, keys), -1e30)
    heads = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), values)
    return x + heads.reshape(x.shape), keys, values


def forward(ps: Any, tokens: Array, cache: Any, at: Any, style: str = "") -> tuple[Array, Any]:
    def body(x: Array, xs: Any) -> Any:
        x, *made = block(x, xs[0], *xs[1], at, style)
        return x, tuple(made)

    def indexed(i: Any, c: Any) -> Any:
        x, k, v = block(c[0], ps["qkv"][i], c[1][i], c[2][i], at, style)
        return x, c[1].at[i].set(k), c[2].at[i].set(v)

    x = ps["words"][tokens]
    if "indexed" in style:
        x, *cache = lax.fori_loop(0, LAYERS, indexed, (x, *cache))
    else:
        x, cache = lax.scan(body, x, (ps["qkv"], cache), unroll="unrolled" in style)
    return x[:, -1] @ ps["out"], tuple(cache)


def best(logits: Array) -> Array:
    return jnp.argmax(logits, -1).astype(jnp.int32)


def generate(ps: Any, prompt: Array, style: str = "", width: int = 1) -> Any:
    cache: Any = (jnp.zeros(SHAPE),) * 2
    for at in range(0, PROMPT, 8 if "chunks" in style else PROMPT):
        part = prompt[:, at : at + 8] if "chunks" in style else prompt
        logits, cache = forward(ps, part, cache, at, style)

    def step(c: Any, _: Any = None) -> Any:
        token, cache, at, done = c
        logits, cache = forward(ps, jnp.stack([token] * width, 1), cache, at, style)
        token = jnp.where(done, 0, best(logits))
        return (token, cache, at + 1, done | (token == 1)), token

    def goes_on(c: Any) -> Any:
        return (c[2] < LENGTH) & ~c[3].all() if "stop" in style else c[2] < LENGTH

    first = (best(logits), cache, jnp.int32(PROMPT), jnp.zeros(BATCH, bool))
    if "while" in style:
        return lax.while_loop(goes_on, lambda c: step(c)[0], first)[0]
    return lax.scan(step, first, None, length=NEW)[1].T


def prompt_in_the_loop(ps: Any, prompt: Array) -> Any:
    def step(c: Any, at: Any) -> Any:
        logits, cache = forward(ps, c[0][:, None], c[1], at)
        token = jnp.where(at < PROMPT - 1, prompt[:, at + 1], best(logits))
        return (token, cache), token

    return lax.scan(step, (prompt[:, 0], (jnp.zeros(SHAPE),) * 2), jnp.arange(LENGTH))[1]


def attention_over_steps(ps: Any, x: Array) -> Any:
    """As of layers to the layers before, or of a sampler to its steps: no token comes back."""

    def layer(at: Any, c: Any) -> Any:
        x, made = c
        share = jax.nn.softmax(jnp.einsum("bsd,bsnd->bsn", x @ ps["out"] @ ps["words"], made), -1)
        x = jnp.einsum("bsn,bsnd->bsd", share, made)
        return x, made.at[:, :, at + 1].set(x)

    x = x @ ps["out"] @ ps["words"]
    made = jnp.zeros((BATCH, PROMPT, NEW + 1, WIDTH)).at[:, :, 0].set(x)
    return best(lax.fori_loop(0, NEW, layer, (x, made))[0])


def accumulated(ps: Any, batches: Array) -> Any:
    def loss(ps: Any, tokens: Array) -> Array:
        return forward(ps, tokens, (jnp.zeros(SHAPE),) * 2, 0)[0].mean()

    def add(sums: Any, tokens: Array) -> Any:
        return jax.tree.map(jnp.add, sums, jax.grad(loss)(ps, tokens)), None

    return lax.scan(add, jax.tree.map(jnp.zeros_like, ps), batches)[0]


@pytest.mark.parametrize("style", ["", "while rows", "indexed chunks", "unrolled", "while stop"])
@pytest.mark.parametrize("partitioner", ["shardy", "xla"])
def test_prefill_and_decoding_have_the_flops_of_a_hand_count(style: str, partitioner: str) -> None:
    trace = flint.trace(
        *(lambda ps, prompt: generate(ps, prompt, style), "data=2,model=4", WEIGHTS, PROMPTS),
        in_shardings=SPECS,
        partitioner=partitioner,
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
        (lambda ps, t: forward(ps, t[:, :1], (jnp.zeros(SHAPE),) * 2, t[0, 0], "indexed"), PROMPTS),
        (prompt_in_the_loop, PROMPTS),
        (lambda ps, t: generate(ps, t, width=3), PROMPTS),  # drafts that are verified
        (attention_over_steps, STATES),
        (accumulated, shaped(3, BATCH, PROMPT, dtype=jnp.int32)),
        (lambda ps, t: (generate(ps, t), generate(ps, t[:, ::-1])), PROMPTS),
        (lambda ps, t: generate(ps, jnp.tile(generate(ps, t), 3)), PROMPTS),
        (
            lambda ps, ts: lax.map(lambda t: generate(ps, t), ts),
            shaped(2, *PROMPTS.shape, dtype=jnp.int32),
        ),
    ],
)
def test_what_only_looks_like_a_generation_has_no_such_phases(
    fn: Callable[..., Any], given: Any
) -> None:
    program = flint.trace(fn, "data=2,model=4", WEIGHTS, given).program
    assert not np.isin(program.phase, (Phase.PREFILL, Phase.DECODE)).any()
