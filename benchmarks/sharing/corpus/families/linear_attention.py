"""Attention without a softmax over all pairs: a state of products of keys and values."""

from __future__ import annotations

from random import Random
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.sharing.corpus.family import WIDTH_STYLES, Family
from benchmarks.sharing.corpus.language import layered_model
from benchmarks.sharing.corpus.parts import (
    Arrays,
    ffn,
    ffn_weights,
    layer_norm,
)
from benchmarks.sharing.corpus.run import Model, Run, Weight
from benchmarks.sharing.corpus.sizes import (
    LENGTHS,
    VOCABS,
    Options,
    drawn_transformer,
)


def draw_linear(rng: Random) -> Options:
    """How the state is kept, what decays it, shifts of tokens."""
    return {
        **drawn_transformer(rng, 8192),
        "vocab": rng.choice(VOCABS),
        "length": rng.choice(LENGTHS[2:14]),
        "form": rng.choice(("steps", "steps", "chunks", "features", "vectors", "delta")),
        "shift": rng.random() < 0.6,
        "low_rank": rng.choice((0, 32, 64)),
        "squared": rng.random() < 0.5,
        "gated": rng.random() < 0.6,
    }


def _linear_weights(o: Options) -> dict[str, Weight]:
    dim, heads, size = o["dim"], o["heads"], o["head_dim"]
    layer = {name: Weight((dim, heads, size), ("embed", "heads", "")) for name in "rkv"}
    layer |= {
        "o": Weight((heads, size, dim), ("heads", "", "embed")),
        "in_scale": Weight((dim,)),
        "mid_scale": Weight((dim,)),
        "head_scale": Weight((heads, size), ("heads", "")),
        "decay": Weight((heads, size), ("heads", "")),
        **ffn_weights(dim, o["ffn"]),
    }
    if o["shift"]:
        layer |= {"mix_" + name: Weight((dim,)) for name in ("r", "k", "v", "f")}
    if o["low_rank"]:
        layer |= {
            "w1": Weight((dim, o["low_rank"])),
            "w2": Weight((o["low_rank"], heads, size), ("", "heads", "")),
        }
    if o["form"] == "delta":
        layer["rate"] = Weight((dim, heads), ("embed", "heads"))
    return layer | ({"g": Weight((dim, heads, size), ("embed", "heads", ""))} if o["gated"] else {})


def _along(o: Options, r: Any, k: Any, v: Any, decay: Any, rate: Any) -> Any:
    """A state of products of keys and values, token after token (arXiv 2404.05892, section 4.1)."""

    def step(state: Any, of: Any) -> Any:
        r, k, v, decay, rate = of
        if o["form"] == "delta":
            known = jnp.einsum("bhk,bhkv->bhv", k, state)
            state = state + jnp.einsum("bhk,bhv->bhkv", k, rate[..., None] * (v - known))
        else:
            state = decay[..., None] * state + jnp.einsum("bhk,bhv->bhkv", k, v)
        return state, jnp.einsum("bhk,bhkv->bhv", r, state)

    batch, _, heads, size = r.shape
    start = jnp.zeros((batch, heads, size, size), jnp.float32)
    of = tuple(jnp.moveaxis(a.astype(jnp.float32), 1, 0) for a in (r, k, v, decay, rate))
    return jnp.moveaxis(jax.lax.scan(step, start, of)[1], 0, 1).astype(v.dtype)


def _retained(r: Any, k: Any, v: Any, decay: Any, size: int = 128) -> Any:
    """The same in chunks with one decay for each head (arXiv 2307.08621, section 2.2)."""
    batch, length, heads, dim = r.shape
    size = min(size, length)
    r, k, v = (a.reshape(batch, -1, size, heads, dim).transpose(1, 0, 3, 2, 4) for a in (r, k, v))
    place = jnp.arange(size, dtype=jnp.float32)
    away = place[:, None] - place
    mask = jnp.where(away >= 0, decay[:, None, None] ** jnp.maximum(away, 0.0), 0.0)

    def step(state: Any, of: Any) -> Any:
        r, k, v = of
        near = jnp.einsum("bhsd,bhtd->bhst", r, k) * mask.astype(r.dtype)
        out = jnp.einsum("bhst,bhtd->bhsd", near, v).astype(jnp.float32)
        ahead = decay[:, None] ** (place + 1)
        out = out + jnp.einsum("bhsd,bhde->bhse", r.astype(jnp.float32), state) * ahead[..., None]
        left = decay[:, None] ** (size - 1 - place)
        new = jnp.einsum("bhtd,bhte->bhde", k * left[..., None].astype(k.dtype), v)
        return (decay**size)[:, None, None] * state + new.astype(jnp.float32), out

    start = jnp.zeros((batch, heads, dim, dim), jnp.float32)
    _, out = jax.lax.scan(step, start, (r, k, v))
    return out.transpose(1, 0, 3, 2, 4).reshape(batch, length, heads, dim).astype(v.dtype)


def _by_features(r: Any, k: Any, v: Any) -> Any:
    """Attention without softmax of everything, by sums over the whole length (arXiv 2006.16236)."""
    r, k = jax.nn.elu(r.astype(jnp.float32)) + 1, jax.nn.elu(k.astype(jnp.float32)) + 1
    state = jnp.einsum("bshk,bshv->bhkv", k, v.astype(jnp.float32))
    total = jnp.einsum("bshk,bhk->bsh", r, k.sum(1))
    return (jnp.einsum("bshk,bhkv->bshv", r, state) / total[..., None]).astype(v.dtype)


def _by_vectors(r: Any, k: Any, v: Any, decay: Any) -> Any:
    """A weighted mean of values, channel by channel, by an associative scan (arXiv 2305.13048, section 3.1)."""

    def join(left: Any, right: Any) -> Any:
        top = jnp.maximum(left[0] + right[3], right[0])
        old, new = jnp.exp(left[0] + right[3] - top), jnp.exp(right[0] - top)
        return (
            top,
            old * left[1] + new * right[1],
            old * left[2] + new * right[2],
            left[3] + right[3],
        )

    k = k.astype(jnp.float32)
    gap = jnp.broadcast_to(jnp.log(decay), k.shape)
    of = (k, v.astype(jnp.float32), jnp.ones_like(k), gap)
    _, total, count, _ = jax.lax.associative_scan(join, of, axis=1)
    return (jax.nn.sigmoid(r) * (total / count).astype(r.dtype)).astype(v.dtype)


def build_linear(o: Options, run: Run) -> Model:
    """RWKV's, RetNet's, DeltaNet's and linear transformers' kinds."""

    def heads(x: Any, p: Arrays, name: str, before: Any) -> Any:
        if o["shift"]:
            x = x + (before - x) * p["mix_" + name]
        return run.pin(jnp.einsum("bsd,dhk->bshk", x, p[name]), "batch", "", "heads", "")

    def mixed(y: Any, p: Arrays) -> Any:
        before = jnp.pad(y, ((0, 0), (1, 0), (0, 0)))[:, :-1] if o["shift"] else y
        r, k, v = (heads(y, p, name, before) for name in "rkv")
        decay = p["decay"].astype(jnp.float32)
        if o["low_rank"]:
            decay = decay + jnp.einsum("bsr,rhk->bshk", jnp.tanh(y @ p["w1"]), p["w2"]).astype(
                jnp.float32
            )
        decay = jnp.exp(-jnp.exp(decay))
        if o["form"] == "features":
            return _by_features(r, k, v)
        if o["form"] == "chunks":
            return _retained(r, k, v, jnp.exp(-jnp.exp(p["decay"].astype(jnp.float32).mean(-1))))
        if o["form"] == "vectors":
            return _by_vectors(r, k, v, decay)
        rate = jax.nn.sigmoid(y @ p["rate"]) if "rate" in p else jnp.ones(r.shape[:3], r.dtype)
        k = (
            k / (jnp.linalg.norm(k.astype(jnp.float32), axis=-1, keepdims=True) + 1e-6)
            if "rate" in p
            else k
        )
        return _along(o, r, k, v, jnp.broadcast_to(decay, r.shape), rate)

    def block(x: Any, p: Arrays) -> Any:
        y = layer_norm(x, p["in_scale"])
        out = run.pin(mixed(y, p), "batch", "", "heads", "")
        out = layer_norm(out, p["head_scale"])
        if o["gated"]:
            out = out * jax.nn.silu(jnp.einsum("bsd,dhk->bshk", y, p["g"]))
        x = x + run.pin(jnp.einsum("bshk,hkd->bsd", out, p["o"]), "batch")
        y = layer_norm(x, p["mid_scale"])
        if o["shift"]:
            y = y + (jnp.pad(y, ((0, 0), (1, 0), (0, 0)))[:, :-1] - y) * p["mix_f"]
        return x + ffn(run, y, p, "relu2" if o["squared"] else "gelu")

    return layered_model(o, run, _linear_weights(o), block)


FAMILIES = (Family("linear attention", draw_linear, build_linear, WIDTH_STYLES, 0.2),)
