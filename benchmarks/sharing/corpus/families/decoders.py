"""Decoders of text: rotary with gated products and grouped heads, GPT's kind, and such with windows."""

from __future__ import annotations

from random import Random
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.sharing.corpus.family import LENGTH_STYLES, Example, Family
from benchmarks.sharing.corpus.language import language_model, token_input
from benchmarks.sharing.corpus.parts import (
    Arrays,
    attend,
    attend_in_blocks,
    attention_result,
    attention_weights,
    causal_mask,
    cross_entropy,
    embedded,
    ffn,
    ffn_weights,
    norm,
    norm_weights,
    picked_entropy,
    projected,
    rms_norm,
    rotary,
    whole,
)
from benchmarks.sharing.corpus.run import Input, Model, Run, Weight
from benchmarks.sharing.corpus.sizes import (
    LENGTHS,
    VOCABS,
    Options,
    divisor_at_most,
    drawn_transformer,
)


def draw_rotary(rng: Random) -> Options:
    """Heads that share keys, norms in several places, tied tables, attention in blocks."""
    o = drawn_transformer(rng)
    groups = [n for n in (1, 2, 4, 5, 8, 10) if o["heads"] % n == 0] + [o["heads"]]
    return {
        **o,
        "kv_heads": rng.choice(groups),
        "vocab": rng.choice(VOCABS),
        "length": rng.choice(LENGTHS),
        "activation": rng.choice(("silu", "silu", "gelu")),
        "parallel_block": rng.random() < 0.2,
        "qk_norm": rng.random() < 0.3,
        "sandwich": rng.random() < 0.2,
        "tied": rng.random() < 0.3,
        "cap": rng.choice((0, 0, 0, 50)),
        "blocks": rng.random() < 0.2,
        "scaled_embed": rng.random() < 0.2,
    }


def _rotary_weights(o: Options, run: Run) -> Any:
    dim = o["dim"]
    layer = attention_weights(dim, o["heads"], o["head_dim"], o["kv_heads"])
    layer |= ffn_weights(dim, o["ffn"], gated=True) | norm_weights("rms", dim, "in")
    layer |= {} if o["parallel_block"] else norm_weights("rms", dim, "mid")
    if o["sandwich"]:
        layer |= norm_weights("rms", dim, "after") | norm_weights("rms", dim, "end")
    if o["qk_norm"]:
        layer |= {"q_norm": Weight((o["head_dim"],)), "k_norm": Weight((o["head_dim"],))}
    top = {
        "embed": Weight((o["vocab"], dim), ("vocab", "embed")),
        "layers": run.stack(o["layers"], layer),
        **norm_weights("rms", dim, "out"),
    }
    return top if o["tied"] else {**top, "head": Weight((dim, o["vocab"]), ("embed", "vocab"))}


def _rotary_attention(o: Options, run: Run, x: Any, p: Arrays, mask: Any) -> Any:
    q, k, v = (projected(run, x, p, name) for name in "qkv")
    if o["qk_norm"]:
        q, k = rms_norm(q, p["q_norm"]), rms_norm(k, p["k_norm"])
    q, k = rotary(q, 10_000.0), rotary(k, 10_000.0)
    if o["blocks"]:
        return attention_result(run, attend_in_blocks(q, k, v, min(o["length"], 512)), p)
    return attention_result(run, attend(q, k, v, mask, cap=o["cap"]), p)


def build_rotary(o: Options, run: Run) -> Model:
    """Llama's, Gemma's and PaLM's kinds."""

    def block(x: Any, p: Arrays) -> Any:
        mask = causal_mask(o["length"])
        y = whole(run, rms_norm(x, p["in_scale"]))
        a = _rotary_attention(o, run, y, p, mask)
        if o["parallel_block"]:
            return x + a + ffn(run, y, p, o["activation"])
        x = x + (rms_norm(a, p["after_scale"]) if o["sandwich"] else a)
        f = ffn(run, whole(run, rms_norm(x, p["mid_scale"])), p, o["activation"])
        return x + (rms_norm(f, p["end_scale"]) if o["sandwich"] else f)

    def forward(params: Any, tokens: Any) -> Any:
        x = embedded(run, params["embed"], tokens)
        x = x * o["dim"] ** 0.5 if o["scaled_embed"] else x
        x = whole(run, rms_norm(run.layers(block, x, params["layers"]), params["out_scale"]))
        head = params["embed"].T if o["tied"] else params["head"]
        return run.pin(x @ head, "batch", "length", "vocab")

    return language_model(o, run, _rotary_weights(o, run), forward)


def draw_gpt(rng: Random) -> Options:
    """With or without bias, one product for queries, keys and values, random dropping."""
    return {
        **drawn_transformer(rng),
        "vocab": rng.choice(VOCABS),
        "length": rng.choice(LENGTHS[:12]),
        "activation": rng.choice(("gelu", "gelu", "erf", "relu", "relu2")),
        "bias": rng.random() < 0.75,
        "fused": rng.random() < 0.4,
        "library": rng.random() < 0.25,
        "tied": rng.random() < 0.6,
        "loss": rng.choice(("whole", "picked")),
        "dropout": rng.random() < 0.3,
    }


def _gpt_weights(o: Options, run: Run) -> Any:
    dim, kind = o["dim"], "layer" if o["bias"] else "scale"
    layer = attention_weights(dim, o["heads"], o["head_dim"], bias=o["bias"])
    if o["fused"]:
        layer = {n: w for n, w in layer.items() if n[0] == "o"}
        layer["qkv"] = Weight((dim, 3, o["heads"], o["head_dim"]), ("embed", "", "heads", ""))
    layer |= ffn_weights(dim, o["ffn"], bias=o["bias"])
    layer |= norm_weights(kind, dim, "in") | norm_weights(kind, dim, "mid")
    top = {
        "embed": Weight((o["vocab"], dim), ("vocab", "embed")),
        "positions": Weight((o["length"], dim), ("", "embed")),
        "layers": run.stack(o["layers"], layer),
        **norm_weights(kind, dim, "out"),
    }
    return top if o["tied"] else {**top, "head": Weight((dim, o["vocab"]), ("embed", "vocab"))}


def _gpt_attention(o: Options, run: Run, x: Any, p: Arrays) -> Any:
    if o["fused"]:
        qkv = run.pin(
            jnp.einsum("bsd,dnhk->nbshk", x, p["qkv"]), "", "batch", "length", "heads", ""
        )
        q, k, v = qkv[0], qkv[1], qkv[2]
    else:
        q, k, v = (projected(run, x, p, name) for name in "qkv")
    if o["library"]:
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="xla")
    else:
        y = attend(q, k, v, causal_mask(o["length"]))
    return attention_result(run, y, p)


def _dropped(x: Any, key: Any, share: float = 0.1) -> tuple[Any, Any]:
    """x without a share of its elements, by the random bits of a key, and the next key."""
    key, bits = jax.lax.rng_bit_generator(key, x.shape, jnp.uint32)
    kept = bits < jnp.uint32(int((1 - share) * 2**32))
    return jnp.where(kept, x / (1 - share), 0).astype(x.dtype), key


def build_gpt(o: Options, run: Run) -> Model:
    """GPT-2's kind: learned positions, norms before sublayers."""
    kind = "layer" if o["bias"] else "scale"
    drops = o["dropout"] and run.plan.training

    def block(held: Any, p: Arrays) -> Any:
        x, key = held
        a = _gpt_attention(o, run, whole(run, norm(kind, x, p, "in")), p)
        a, key = _dropped(a, key) if drops else (a, key)
        x = x + a
        f = ffn(run, whole(run, norm(kind, x, p, "mid")), p, o["activation"])
        f, key = _dropped(f, key) if drops else (f, key)
        return x + f, key

    def logits(params: Any, tokens: Any, key: Any) -> Any:
        x = embedded(run, params["embed"], tokens) + run.gathered(params["positions"], "", "embed")
        x, _ = run.layers(block, (x, key), params["layers"])
        x = whole(run, norm(kind, x, params, "out"))
        head = params["embed"].T if o["tied"] else params["head"]
        return run.pin(x @ head, "batch", "length", "vocab")

    def loss(params: Any, tokens: Any, targets: Any, *key: Any) -> Any:
        found = logits(params, tokens, key[0] if key else None)
        return (
            picked_entropy(found, targets)
            if o["loss"] == "picked"
            else cross_entropy(run, found, targets)
        )

    def forward(params: Any, tokens: Any) -> Any:
        return logits(params, tokens, None)

    words = token_input(o, run)
    key = (Input((4,), ("",), "uint32"),) if drops else ()
    return Model(forward, loss, _gpt_weights(o, run), (words,), (words, *key))


def draw_local(rng: Random) -> Options:
    """Windows of several sizes, in chunks, by a mask or in every other layer."""
    o = drawn_transformer(rng)
    return {
        **o,
        "layers": o["layers"] // 2 * 2,
        "kv_heads": rng.choice((1, divisor_at_most(o["heads"], 4), o["heads"])),
        "vocab": rng.choice(VOCABS),
        "length": rng.choice((2048, 4096, 8192, 16_384, 32_768)),
        "window": rng.choice((128, 256, 512, 1024)),
        "form": rng.choice(("chunks", "chunks", "mask", "alternating")),
        "gated": rng.random() < 0.5,
        "norm": rng.choice(("rms", "layer")),
    }


def _with_chunk_before(x: Any) -> Any:
    """(b, chunks, w, h, k) with the chunk before: (b, chunks, 2 w, h, k), zeros before the first."""
    before = jnp.pad(x, ((0, 0), (1, 0), (0, 0), (0, 0), (0, 0)))[:, :-1]
    return jnp.concatenate([before, x], axis=2)


def _chunked_attention(q: Any, k: Any, v: Any, window: int) -> Any:
    """Each query sees the last `window` keys: scores of chunks to themselves and to the one before."""
    batch, length, heads, size = q.shape
    k, v = (jnp.repeat(x, heads // x.shape[2], axis=2) for x in (k, v))
    q, k, v = (x.reshape(batch, length // window, window, heads, size) for x in (q, k, v))
    k, v = _with_chunk_before(k), _with_chunk_before(v)
    scores = jnp.einsum("bcshk,bcthk->bchst", q, k).astype(jnp.float32) * size**-0.5
    away = jnp.arange(window)[:, None] + window - jnp.arange(2 * window)
    seen = (away >= 0) & (away < window)
    first = jnp.arange(length // window)[:, None, None] > 0
    seen = seen & (first | (jnp.arange(2 * window) >= window))
    weights = jax.nn.softmax(jnp.where(seen[:, None], scores, -1e30), axis=-1).astype(q.dtype)
    return jnp.einsum("bchst,bcthk->bcshk", weights, v).reshape(batch, length, heads, size)


def _local_weights(o: Options, run: Run) -> Any:
    dim = o["dim"]
    layer = attention_weights(dim, o["heads"], o["head_dim"], o["kv_heads"])
    layer |= ffn_weights(dim, o["ffn"], gated=o["gated"])
    layer |= norm_weights(o["norm"], dim, "in") | norm_weights(o["norm"], dim, "mid")
    two = o["form"] == "alternating"
    layers = run.stack(o["layers"] // 2, {"near": layer, "far": layer}) if two else None
    return {
        "embed": Weight((o["vocab"], dim), ("vocab", "embed")),
        "layers": layers if two else run.stack(o["layers"], layer),
        **norm_weights(o["norm"], dim, "out"),
        "head": Weight((dim, o["vocab"]), ("embed", "vocab")),
    }


def build_local(o: Options, run: Run) -> Model:
    """Windows in chunks, by a mask, or in every other layer."""

    def one(x: Any, p: Arrays, near: bool) -> Any:
        y = whole(run, norm(o["norm"], x, p, "in"))
        q, k, v = (projected(run, y, p, name) for name in "qkv")
        q, k = rotary(q, 1e4), rotary(k, 1e4)
        if near and o["form"] != "mask":
            out = _chunked_attention(q, k, v, o["window"])
        else:
            out = attend(q, k, v, causal_mask(o["length"], o["window"] if near else 0))
        x = x + attention_result(run, out, p)
        return x + ffn(run, whole(run, norm(o["norm"], x, p, "mid")), p, "gelu")

    def block(x: Any, p: Arrays) -> Any:
        if o["form"] == "alternating":
            return one(one(x, p["near"], True), p["far"], False)
        return one(x, p, True)

    def forward(params: Any, tokens: Any) -> Any:
        x = embedded(run, params["embed"], tokens)
        x = whole(run, norm(o["norm"], run.layers(block, x, params["layers"]), params, "out"))
        return run.pin(x @ params["head"], "batch", "length", "vocab")

    return language_model(o, run, _local_weights(o, run), forward)


def _llama_settings(rng: Random) -> dict[str, str]:
    return {
        "model": rng.choice(("8b", "70b", "405b")),
        "parallel": rng.choice(("fsdp+tp", "fsdp+tp+sp", "tp", "tp+sp", "fsdp")),
        "remat": rng.choice(("full", "none")),
        "seq": str(rng.choice(LENGTHS)),
        "num_layers": str(rng.choice((0, 4, 16))),
        "optimizer": rng.choice(("", "", "sharded")),
    }


FAMILIES = (
    Family(
        "rotary decoder",
        draw_rotary,
        build_rotary,
        LENGTH_STYLES,
        0.15,
        Example("examples/llama_jax.py", (2, 4, 8), _llama_settings),
    ),
    Family("gpt", draw_gpt, build_gpt, LENGTH_STYLES, 0.15),
    Family("local attention", draw_local, build_local, LENGTH_STYLES, 0.2),
)
