"""Steps that serve: one new token with a cache of keys and values, guesses that are checked, search by vectors."""

from __future__ import annotations

from random import Random
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.sharing.corpus.family import Example, Family
from benchmarks.sharing.corpus.parts import (
    Arrays,
    attend,
    attention_result,
    attention_weights,
    embedded,
    ffn,
    ffn_weights,
    projected,
    rms_norm,
    rotary,
)
from benchmarks.sharing.corpus.run import Input, Model, Run, Weight
from benchmarks.sharing.corpus.sizes import VOCABS, Options, divisor_at_most, drawn_transformer


def draw_served(rng: Random) -> Options:
    """Kinds of caches, new tokens, how the next one is chosen."""
    o = drawn_transformer(rng)
    return {
        **o,
        "kv_heads": divisor_at_most(o["heads"], rng.choice((1, 4, 8, 8, 128))),
        "vocab": rng.choice(VOCABS),
        "places": rng.choice((1024, 2048, 4096, 8192, 32_768)),
        "cache": rng.choice(("whole", "whole", "window", "int8", "latent", "pages")),
        "latent": rng.choice((256, 512)),
        "new": rng.choice((1, 1, 1, 4, 8)),
        "tokens": rng.choice((1, 1, 1, 16, 64)),
        "gated": rng.random() < 0.7,
        "sample": rng.choice(("largest", "top", "random", "logits", "search")),
    }


def _weights(o: Options, run: Run) -> Any:
    dim, heads, size = o["dim"], o["heads"], o["head_dim"]
    layer = attention_weights(dim, heads, size, o["kv_heads"])
    layer |= ffn_weights(dim, o["ffn"], gated=o["gated"])
    layer |= {"in_scale": Weight((dim,)), "mid_scale": Weight((dim,))}
    if o["cache"] == "latent":
        del layer["k"], layer["v"]
        layer["shrink"] = Weight((dim, o["latent"]), ("embed", ""))
        for name in ("k_up", "v_up"):
            layer[name] = Weight((o["latent"], heads, size), ("", "heads", ""))
    found = {
        "embed": Weight((o["vocab"], dim), ("vocab", "embed")),
        "layers": run.stack(o["layers"], layer),
        "out_scale": Weight((dim,)),
        "head": Weight((dim, o["vocab"]), ("embed", "vocab")),
    }
    if o["sample"] == "search":
        found["store"] = Weight((1_048_576, dim), ("vocab", ""))
    return found


def _cache(o: Options, run: Run) -> dict[str, Input]:
    """One array for all layers, by name."""
    layers, batch, places = o["layers"], run.plan.batch * run.positions("batch"), o["places"]
    names = ("", "batch", "length")
    if o["cache"] == "latent":
        return {"latent": Input((layers, batch, places, o["latent"]), names)}
    shape = (layers, batch, places, o["kv_heads"], o["head_dim"])
    if o["cache"] == "pages":
        shape = (layers, batch * places // 64, 64, o["kv_heads"], o["head_dim"])
        names = ("", "batch", "")
    kind = "int8" if o["cache"] == "int8" else "float32"
    found = {name: Input(shape, (*names, "heads", ""), kind) for name in "kv"}
    if o["cache"] == "int8":
        found |= {name + "_scale": Input(shape[:-1], (*names, "heads")) for name in "kv"}
    return found


def _put(o: Options, cache: Arrays, name: str, x: Any, place: Any) -> Arrays:
    """The cache with x (b, new, ...) at a place."""
    held = cache[name]
    if name + "_scale" in cache:
        scale = jnp.abs(x).max(-1) / 127 + 1e-6
        x = jnp.round(x / scale[..., None])
        start = (0, place, 0)
        scaled = jax.lax.dynamic_update_slice(
            cache[name + "_scale"], scale.astype(cache[name + "_scale"].dtype), start
        )
        cache = {**cache, name + "_scale": scaled}
    start = (0, place, *[0] * (held.ndim - 2))
    return {**cache, name: jax.lax.dynamic_update_slice(held, x.astype(held.dtype), start)}


def _seen(o: Options, cache: Arrays, name: str, like: Any, pages: Any) -> Any:
    held = cache[name]
    if o["cache"] == "pages":
        held = held[pages].reshape(pages.shape[0], -1, *held.shape[2:])
    if name + "_scale" in cache:
        held = held.astype(like.dtype) * cache[name + "_scale"][..., None]
    return held.astype(like.dtype)


def _attended(
    o: Options, run: Run, x: Any, p: Arrays, cache: Arrays, place: Any, pages: Any
) -> Any:
    """The attention's result for new tokens, and the cache with them."""
    y = rms_norm(x, p["in_scale"])
    q = rotary(projected(run, y, p, "q"), 1e4, place)
    if o["cache"] == "latent":
        cache = _put(o, cache, "latent", y @ p["shrink"], place)
        k, v = (jnp.einsum("btl,lhk->bthk", cache["latent"], p[name]) for name in ("k_up", "v_up"))
    else:
        k, v = rotary(projected(run, y, p, "k"), 1e4, place), projected(run, y, p, "v")
        if o["cache"] == "pages":
            page = pages[:, 0]
            cache = {n: cache[n].at[page, place % 64].set(a[:, 0]) for n, a in (("k", k), ("v", v))}
        else:
            at = place % o["places"] if o["cache"] == "window" else place
            cache = _put(o, _put(o, cache, "k", k, at), "v", v, at)
        k, v = (_seen(o, cache, name, q, pages) for name in "kv")
    query = place + jnp.arange(q.shape[1])[:, None]
    mask = None if o["cache"] == "window" else jnp.arange(k.shape[1]) <= query
    return attention_result(run, attend(q, k, v, mask), p), cache


def _next(o: Options, params: Any, x: Any, logits: Any, draw: Any) -> Any:
    """What comes out: tokens, or what the search finds."""
    if o["sample"] == "largest":
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    if o["sample"] == "top":
        top, index = jax.lax.top_k(logits.astype(jnp.float32), 40)
        chosen = jnp.argmax(top - jnp.log(-jnp.log(draw[..., None] + 1e-6)), axis=-1)
        return jnp.take_along_axis(index, chosen[..., None], axis=-1)[..., 0]
    share = jnp.cumsum(jax.nn.softmax(logits.astype(jnp.float32), axis=-1), axis=-1)
    return jnp.sum(share < draw[..., None], axis=-1).astype(jnp.int32)


def build_served(o: Options, run: Run) -> Model:
    """Decoding with a cache, whole, by windows, quantised, of latent vectors or in pages."""
    new = 1 if o["cache"] == "pages" or o["tokens"] > 1 else o["new"]

    def once(params: Any, cache: Any, tokens: Any, place: Any, pages: Any, draw: Any) -> Any:
        def layer(x: Any, of: Any) -> Any:
            p, held = of
            out, held = _attended(o, run, x, p, held, place, pages)
            x = x + out
            return x + ffn(run, rms_norm(x, p["mid_scale"]), p, "silu"), held

        x = embedded(run, params["embed"], tokens)
        if isinstance(params["layers"], list):
            made = []
            for i, p in enumerate(params["layers"]):
                x, held = layer(x, (p, {name: a[i] for name, a in cache.items()}))
                made.append(held)
            cache = {name: jnp.stack([held[name] for held in made]) for name in cache}
        else:
            x, cache = jax.lax.scan(layer, x, (params["layers"], cache))
        x = rms_norm(x, params["out_scale"])
        if o["sample"] == "search":
            scores = jnp.einsum("bsd,nd->bsn", x, params["store"]).astype(jnp.float32)
            return jax.lax.top_k(run.pin(scores, "batch", "", "vocab"), 16)[1], cache
        logits = run.pin(x @ params["head"], "batch", "", "vocab")
        return (logits if o["sample"] == "logits" else _next(o, params, x, logits, draw)), cache

    def forward(params: Any, cache: Any, tokens: Any, place: Any, pages: Any, draw: Any) -> Any:
        if o["tokens"] == 1 or o["sample"] in ("logits", "search"):
            return once(params, cache, tokens, place, pages, draw)

        def step(i: Any, held: Any) -> Any:
            tokens, cache = held
            return once(params, cache, tokens, place + i, pages, draw)

        return jax.lax.fori_loop(0, o["tokens"], step, (tokens, cache))

    batch = run.plan.batch
    inputs: tuple[Any, ...] = (
        _cache(o, run),
        Input((batch, new), ("batch", ""), "int32"),
        Input((), (), "int32"),
        Input((batch, max(o["places"] // 64, 1)), ("batch", ""), "int32"),
        Input((batch, new), ("batch", "")),
    )
    return Model(forward, forward, _weights(o, run), inputs)


def _decode_settings(rng: Random) -> dict[str, str]:
    return {
        "model": rng.choice(("8b", "70b", "405b")),
        "tokens": rng.choice(("1", "1", "16")),
        "length": rng.choice(("2048", "8192", "32768")),
        "cache": rng.choice(("bf16", "int8", "fp8")),
        "num_layers": rng.choice(("0", "8", "24")),
    }


STYLES = ("tp", "tp", "tp", "dp", "tp+cp", "cp")
FAMILIES = (
    Family(
        *("decoding", draw_served, build_served, STYLES, 1.0),
        example=Example("examples/decode_jax.py", (2, 4, 8), _decode_settings),
    ),
)
