"""Encoders of text, and encoders with a decoder."""

from __future__ import annotations

import functools
import math
from random import Random
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.sharing.corpus.family import LENGTH_STYLES, Example, Family
from benchmarks.sharing.corpus.parts import (
    ACTIVATIONS,
    Arrays,
    attend,
    attention_result,
    attention_weights,
    causal_mask,
    cross_attention,
    cross_entropy,
    embedded,
    ffn,
    ffn_weights,
    norm,
    norm_weights,
    picked_entropy,
    projected,
    self_attention,
    sinusoids,
    whole,
)
from benchmarks.sharing.corpus.run import Input, Model, Run, Weight
from benchmarks.sharing.corpus.sizes import LAYERS, VOCABS, Options, drawn_transformer


def draw_encoder(rng: Random) -> Options:
    """Norms before or after, shared layers, padding, three tasks."""
    return {
        **drawn_transformer(rng, 8192),
        "vocab": rng.choice(VOCABS),
        "length": rng.choice((128, 256, 384, 512, 512, 1024, 2048)),
        "activation": rng.choice(("gelu", "erf", "relu")),
        "pre_norm": rng.random() < 0.4,
        "shared": rng.random() < 0.15,
        "segments": rng.random() < 0.5,
        "padding": rng.random() < 0.5,
        "task": rng.choice(("words", "words", "some words", "classes")),
        "bias": rng.random() < 0.7,
    }


def _encoder_weights(o: Options, run: Run) -> Any:
    dim, kind = o["dim"], "layer" if o["bias"] else "scale"
    layer = attention_weights(dim, o["heads"], o["head_dim"], bias=o["bias"])
    layer |= ffn_weights(dim, o["ffn"], bias=o["bias"])
    layer |= norm_weights(kind, dim, "in") | norm_weights(kind, dim, "mid")
    found = {
        "embed": Weight((o["vocab"], dim), ("vocab", "embed")),
        "positions": Weight((o["length"], dim)),
        "layers": layer if o["shared"] else run.stack(o["layers"], layer),
        **norm_weights(kind, dim, "first"),
        "pool": Weight((dim, dim), ("embed", "ffn")),
        **norm_weights(kind, dim, "out"),
    }
    found |= {"segments": Weight((2, dim))} if o["segments"] else {}
    return found | ({"classes": Weight((dim, 2))} if o["task"] == "classes" else {})


def build_encoder(o: Options, run: Run) -> Model:
    """BERT's kind, and ALBERT's (layers that share weights)."""
    kind = "layer" if o["bias"] else "scale"

    def block(x: Any, p: Arrays, mask: Any) -> Any:
        if o["pre_norm"]:
            x = x + self_attention(run, whole(run, norm(kind, x, p, "in")), p, mask)
            return x + ffn(run, whole(run, norm(kind, x, p, "mid")), p, o["activation"])
        x = norm(kind, x + self_attention(run, whole(run, x), p, mask), p, "in")
        return norm(kind, x + ffn(run, whole(run, x), p, o["activation"]), p, "mid")

    def encoded(params: Any, tokens: Any, lengths: Any) -> Any:
        x = embedded(run, params["embed"], tokens) + params["positions"]
        if o["segments"]:
            x = (
                x
                + params["segments"][
                    (jnp.arange(o["length"]) >= o["length"] // 2).astype(jnp.int32)
                ]
            )
        x = norm(kind, x, params, "first")
        keys = jnp.arange(o["length"]) < lengths[:, None]
        mask = keys[:, None, None, None, :] if o["padding"] else None
        layer = functools.partial(block, mask=mask)
        if o["shared"]:
            one = run.recomputed(lambda y, _: layer(y, params["layers"]))
            return _repeated(one, x, o["layers"])
        return run.layers(layer, x, params["layers"])

    def forward(params: Any, tokens: Any, lengths: Any) -> Any:
        x = encoded(params, tokens, lengths)
        if o["task"] == "classes":
            return jnp.tanh(x[:, 0] @ params["pool"]) @ params["classes"]
        x = x[:, : o["length"] // 8] if o["task"] == "some words" else x
        x = whole(run, ACTIVATIONS[o["activation"]](x @ params["pool"]))
        x = norm(kind, x, params, "out") @ params["embed"].T
        return run.pin(x, "batch", "length", "vocab")

    def loss(params: Any, tokens: Any, lengths: Any, targets: Any) -> Any:
        logits = forward(params, tokens, lengths)
        return (
            picked_entropy(logits, targets)
            if o["task"] == "classes"
            else cross_entropy(run, logits, targets)
        )

    batch, words = run.plan.batch, o["length"] // (8 if o["task"] == "some words" else 1)
    inputs = (
        Input((batch, o["length"]), ("batch", "length"), "int32"),
        Input((batch,), ("batch",), "int32"),
    )
    target = Input((batch,), ("batch",), "int32")
    if o["task"] != "classes":
        target = Input((batch, words), ("batch", "length"), "int32")
    return Model(forward, loss, _encoder_weights(o, run), inputs, (target,))


def _repeated(block: Any, x: Any, count: int) -> Any:
    return jax.lax.scan(lambda y, _: (block(y, None), None), x, None, length=count)[0]


def draw_pair(rng: Random) -> Options:
    """Depths of both stacks, how places are told, texts or spectra in front."""
    return {
        **drawn_transformer(rng, 8192),
        "decoder_layers": rng.choice(LAYERS[:12]),
        "vocab": rng.choice(VOCABS),
        "length": rng.choice((128, 256, 512, 1024, 1500, 2048)),
        "out_length": rng.choice((128, 256, 448, 512, 1024)),
        "place": rng.choice(("relative", "relative", "learned", "sines")),
        "gated": rng.random() < 0.5,
        "norm": rng.choice(("rms", "rms", "layer")),
        "activation": rng.choice(("relu", "gelu")),
        "tied": rng.random() < 0.5,
        "audio": rng.random() < 0.2,
    }


def _pair_weights(o: Options, run: Run) -> Any:
    dim, kind = o["dim"], o["norm"]
    base = attention_weights(dim, o["heads"], o["head_dim"])
    base |= ffn_weights(dim, o["ffn"], gated=o["gated"])
    base |= norm_weights(kind, dim, "in") | norm_weights(kind, dim, "mid")
    crossed = attention_weights(dim, o["heads"], o["head_dim"], prefix="cross_")
    crossed |= norm_weights(kind, dim, "before")
    found = {
        "embed": Weight((o["vocab"], dim), ("vocab", "embed")),
        "encoder": run.stack(o["layers"], base),
        "decoder": run.stack(o["decoder_layers"], base | crossed),
        **norm_weights(kind, dim, "encoded"),
        **norm_weights(kind, dim, "out"),
    }
    found |= {} if o["tied"] else {"head": Weight((dim, o["vocab"]), ("embed", "vocab"))}
    if o["place"] == "relative":
        found |= {name: Weight((32, o["heads"])) for name in ("near", "past")}
    if o["place"] == "learned":
        found |= {
            "places": Weight((o["length"], dim)),
            "out_places": Weight((o["out_length"], dim)),
        }
    return found | ({"filter": Weight((3, 80, dim), ("", "", "ffn"))} if o["audio"] else {})


def _distances(table: Any, length: int, *, both: bool) -> Any:
    """A learned number for each head and bucket of distances, logarithmic from 8 on (arXiv 1910.10683, 2.1)."""
    away = jnp.arange(length)[None, :] - jnp.arange(length)[:, None]
    far = 8 + (jnp.log(jnp.maximum(jnp.abs(away), 1) / 8.0) / math.log(16) * 8).astype(jnp.int32)
    bucket = jnp.where(jnp.abs(away) < 8, jnp.abs(away), jnp.minimum(far, 15))
    bias = table[bucket + jnp.where(away > 0, 16, 0)].astype(jnp.float32).transpose(2, 0, 1)
    bias = bias if both else jnp.where(away > 0, -1e9, bias)
    return bias[None, :, None]


def _placed(o: Options, params: Any, x: Any, name: str) -> Any:
    if o["place"] == "learned":
        return x + params[name]
    return x + sinusoids(x.shape[1], o["dim"]).astype(x.dtype) if o["place"] == "sines" else x


def build_pair(o: Options, run: Run) -> Model:
    """T5's, BART's and, with a convolution of spectra in front, Whisper's kinds."""
    relative = o["place"] == "relative"

    def attended(x: Any, p: Arrays, bias: Any, mask: Any) -> Any:
        y = whole(run, norm(o["norm"], x, p, "in"))
        q, k, v = (projected(run, y, p, name) for name in "qkv")
        return x + attention_result(run, attend(q, k, v, mask, bias), p)

    def encoder(x: Any, p: Arrays, bias: Any) -> Any:
        x = attended(x, p, bias, None)
        return x + ffn(run, whole(run, norm(o["norm"], x, p, "mid")), p, o["activation"])

    def decoder(x: Any, p: Arrays, memory: Any, bias: Any) -> Any:
        x = attended(x, p, bias, None if relative else causal_mask(o["out_length"]))
        x = x + cross_attention(run, whole(run, norm(o["norm"], x, p, "before")), memory, p)
        return x + ffn(run, whole(run, norm(o["norm"], x, p, "mid")), p, o["activation"])

    def encoded(params: Any, source: Any) -> Any:
        x = (
            _heard(run, params["filter"], source)
            if o["audio"]
            else embedded(run, params["embed"], source)
        )
        bias = _distances(params["near"], o["length"], both=True) if relative else None
        x = run.layers(
            functools.partial(encoder, bias=bias),
            _placed(o, params, x, "places"),
            params["encoder"],
        )
        return whole(run, norm(o["norm"], x, params, "encoded"))

    def forward(params: Any, source: Any, tokens: Any) -> Any:
        memory = encoded(params, source)
        bias = _distances(params["past"], o["out_length"], both=False) if relative else None
        x = _placed(o, params, embedded(run, params["embed"], tokens), "out_places")
        layer = functools.partial(decoder, memory=memory, bias=bias)
        x = whole(run, norm(o["norm"], run.layers(layer, x, params["decoder"]), params, "out"))
        return run.pin(
            x @ (params["embed"].T if o["tied"] else params["head"]), "batch", "length", "vocab"
        )

    def loss(params: Any, source: Any, tokens: Any, targets: Any) -> Any:
        return cross_entropy(run, forward(params, source, tokens), targets)

    batch = run.plan.batch
    source = Input((batch, o["length"]), ("batch", "length"), "int32")
    if o["audio"]:
        source = Input((batch, 2 * o["length"], 80), ("batch", "", ""))
    words = Input((batch, o["out_length"]), ("batch", "length"), "int32")
    return Model(forward, loss, _pair_weights(o, run), (source, words), (words,))


def _heard(run: Run, kernel: Any, spectra: Any) -> Any:
    """Spectra (b, 2 s, 80) as (b, s, d)."""
    x = jax.lax.conv_general_dilated(
        spectra, kernel, (2,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
    )
    return run.pin(jax.nn.gelu(x), "batch", "residual", "")


def _sized(*models: str) -> Any:
    def settings(rng: Random) -> dict[str, str]:
        return {"model": rng.choice(models), "training": rng.choice(("true", "true", "false"))}

    return settings


_FILE = "benchmarks/sharing/encoders_jax.py"
FAMILIES = (
    Family(
        *("encoder", draw_encoder, build_encoder, LENGTH_STYLES, 0.3),
        example=Example(_FILE + ":bert", (2, 4), _sized("base", "large")),
    ),
    Family(
        *("encoder-decoder", draw_pair, build_pair, LENGTH_STYLES, 0.2),
        example=Example(_FILE + ":t5", (2, 4), _sized("base", "large", "3b", "11b")),
    ),
)
