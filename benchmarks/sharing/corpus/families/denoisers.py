"""Models that make images of noise, step by step."""

from __future__ import annotations

from random import Random
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.sharing.corpus.families.convolutions import convolve, filter_weight, group_norm
from benchmarks.sharing.corpus.family import WIDTH_STYLES, Family
from benchmarks.sharing.corpus.parts import (
    Arrays,
    attention_weights,
    cross_attention,
    ffn,
    ffn_weights,
    layer_norm,
    self_attention,
    sinusoids,
)
from benchmarks.sharing.corpus.run import Input, Model, Run, Weight
from benchmarks.sharing.corpus.sizes import (
    Options,
    drawn_transformer,
)


def draw_denoiser(rng: Random) -> Options:
    """Levels, where attention is, words, and how many steps a sampler takes."""
    width = rng.choice((64, 128, 192, 256, 320, 320))
    return {
        "image": rng.choice((16, 32, 32, 64, 64, 128)),
        "channels": rng.choice((3, 4, 4, 16)),
        "width": width,
        "factors": rng.choice(([1], [1], [1, 2])),
        "blocks": 1,
        "middle": rng.choice((1, 2, 4, 8, 12)),
        "attention": rng.choice(("none", "middle", "middle", "inner")),
        "words": rng.choice((0, 77, 77, 256)),
        "word_dim": rng.choice((512, 768, 1024, 2048)),
        "heads": rng.choice((4, 8, 8)),
        "denoising": rng.choice((1, 1, 20, 50)),
        "target": rng.choice(("noise", "velocity")),
    }


def _denoising_block(o: Options, inward: int, outward: int, attends: bool) -> dict[str, Weight]:
    found = {
        "a": filter_weight(3, inward, outward),
        "b": filter_weight(3, outward, outward),
        "time": Weight((4 * o["width"], outward), ("embed", "ffn")),
    }
    for name, size in (("na", inward), ("nb", outward)):
        found |= {name + "_scale": Weight((size,)), name + "_bias": Weight((size,))}
    if inward != outward:
        found["skip"] = filter_weight(1, inward, outward)
    if attends:
        found |= {"scale": Weight((outward,)), "bias": Weight((outward,))}
        found |= attention_weights(outward, o["heads"], outward // o["heads"])
        if o["words"]:
            crossed = attention_weights(outward, o["heads"], outward // o["heads"], prefix="cross_")
            for name in ("cross_k", "cross_v"):
                shape = (o["word_dim"], *crossed[name].shape[1:])
                crossed[name] = Weight(shape, crossed[name].names)
            found |= crossed
    return found


def _denoiser_weights(o: Options, run: Run) -> Any:
    sizes = [o["width"] * f for f in o["factors"]]
    attends = [o["attention"] == "inner" and i == len(sizes) - 1 for i in range(len(sizes))]
    down, up, held, size = [], [], [o["width"]], o["width"]
    for i, outward in enumerate(sizes):
        for _ in range(o["blocks"]):
            down.append(_denoising_block(o, size, outward, attends[i]))
            size = outward
            held.append(size)
    middle = _denoising_block(o, size, size, o["attention"] == "middle")
    for i, outward in reversed(list(enumerate(sizes))):
        for _ in range(o["blocks"]):
            up.append(_denoising_block(o, size + held.pop(), outward, attends[i]))
            size = outward
    return {
        "time": [Weight((o["width"], 4 * o["width"])), Weight((4 * o["width"], 4 * o["width"]))],
        "first": filter_weight(3, o["channels"], o["width"]),
        "down": down,
        "middle": run.stack(o["middle"], middle),
        "up": up,
        "last": Weight((3, 3, size, o["channels"]), ("", "", "embed", "")),
    }


def _denoised_block(run: Run, x: Any, p: Arrays, time: Any, words: Any) -> Any:
    y = convolve(jax.nn.silu(group_norm(x, p["na_scale"], p["na_bias"])), p["a"])
    y = y + (jax.nn.silu(time) @ p["time"])[:, None, None]
    y = convolve(jax.nn.silu(group_norm(y, p["nb_scale"], p["nb_bias"])), p["b"])
    x = run.pin((convolve(x, p["skip"]) if "skip" in p else x) + y, "batch")
    if "q" not in p:
        return x
    y = layer_norm(x.reshape(x.shape[0], -1, x.shape[-1]), p["scale"], p["bias"])
    y = y + self_attention(run, y, p)
    y = y + cross_attention(run, y, words, p) if "cross_q" in p else y
    return x + y.reshape(x.shape)


def build_denoiser(o: Options, run: Run) -> Model:
    """The networks of diffusion models, and their sampling in a loop."""

    def noise(params: Any, x: Any, time: Any, words: Any) -> Any:
        time = sinusoids(1000, o["width"])[time].astype(x.dtype)
        time = jax.nn.silu(time @ params["time"][0]) @ params["time"][1]
        x, held = convolve(x, params["first"]), []
        block = run.recomputed(lambda x, p, t, w: _denoised_block(run, x, p, t, w))
        held.append(x)
        for i, p in enumerate(params["down"]):
            stride = 2 if i and i % o["blocks"] == 0 else 1
            x = x[:, ::stride, ::stride] if stride > 1 else x
            x = block(x, p, time, words)
            held.append(x)
        x = run.layers(lambda y, p: _denoised_block(run, y, p, time, words), x, params["middle"])
        for p in params["up"]:
            skip = held.pop()
            factor = skip.shape[1] // x.shape[1]
            x = jnp.repeat(jnp.repeat(x, factor, 1), factor, 2) if factor > 1 else x
            x = block(jnp.concatenate([x, skip], axis=-1), p, time, words)
        return convolve(jax.nn.silu(x), params["last"])

    def forward(params: Any, x: Any, time: Any, words: Any) -> Any:
        if o["denoising"] == 1:
            return noise(params, x, time, words)

        def step(x: Any, i: Any) -> Any:
            found = noise(params, x, jnp.broadcast_to(i, time.shape), words)
            return (x - 0.02 * found).astype(x.dtype), None

        return jax.lax.scan(step, x, jnp.arange(o["denoising"]))[0]

    def loss(params: Any, clean: Any, time: Any, words: Any, added: Any) -> Any:
        share = jnp.cos(time.astype(jnp.float32) / 1000 * jnp.pi / 2)[:, None, None, None]
        rest = jnp.sqrt(1 - jnp.square(share))
        found = noise(params, (share * clean + rest * added).astype(clean.dtype), time, words)
        target = added if o["target"] == "noise" else share * added - rest * clean
        return jnp.mean(jnp.square((found - target).astype(jnp.float32)))

    batch, image = run.plan.batch, (o["image"], o["image"], o["channels"])
    inputs = (
        Input((batch, *image), ("batch",)),
        Input((batch,), ("batch",), "int32"),
        Input((batch, max(o["words"], 1), o["word_dim"]), ("batch",)),
    )
    return Model(
        forward, loss, _denoiser_weights(o, run), inputs, (Input((batch, *image), ("batch",)),)
    )


def draw_diffusion_transformer(rng: Random) -> Options:
    """Patches, and how time and words come in."""
    return {
        **drawn_transformer(rng, 4096),
        "side": rng.choice((8, 16, 16, 32, 64)),
        "patch": rng.choice((2, 2, 4)),
        "channels": rng.choice((4, 4, 16)),
        "condition": rng.choice(("modulated", "modulated", "crossed", "joint")),
        "words": rng.choice((77, 120, 256)),
        "guided": rng.random() < 0.3,
    }


def _diffusion_weights(o: Options, run: Run) -> Any:
    dim, size = o["dim"], o["channels"] * o["patch"] ** 2
    layer = attention_weights(dim, o["heads"], o["head_dim"]) | ffn_weights(
        dim, o["ffn"], bias=True
    )
    layer |= {"in_scale": Weight((dim,)), "mid_scale": Weight((dim,))}
    layer["modulate"] = Weight((dim, 6, dim), ("embed", "", "ffn"))
    if o["condition"] == "crossed":
        layer |= attention_weights(dim, o["heads"], o["head_dim"], prefix="cross_")
    return {
        "first": Weight((size, dim), ("", "embed")),
        "positions": Weight((o["side"] ** 2, dim)),
        "words": Weight((1024, dim), ("", "embed")),
        "time": [Weight((256, dim), ("", "embed")), Weight((dim, dim), ("embed", "ffn"))],
        "layers": run.stack(o["layers"], layer),
        "out_scale": Weight((dim,)),
        "last": Weight((dim, size), ("embed", "")),
    }


def build_diffusion_transformer(o: Options, run: Run) -> Model:
    """DiT's kinds: blocks scaled and shifted by the time, by words beside or in the sequence."""

    def block(held: Any, p: Arrays) -> Any:
        x, condition, words = held
        parts = jnp.einsum("bd,dnf->nbf", jax.nn.silu(condition), p["modulate"])
        shift, scale, gate, shift2, scale2, gate2 = (part[:, None] for part in parts)
        y = layer_norm(x, p["in_scale"]) * (1 + scale) + shift
        x = x + gate * self_attention(run, run.pin(y, "batch"), p)
        if "cross_q" in p:
            x = x + cross_attention(run, x, words, p)
        y = layer_norm(x, p["mid_scale"]) * (1 + scale2) + shift2
        return x + gate2 * ffn(run, run.pin(y, "batch"), p, "gelu"), condition, words

    def forward(params: Any, x: Any, time: Any, words: Any) -> Any:
        words = words @ params["words"]
        y = sinusoids(1000, 256)[time].astype(x.dtype)
        condition = jax.nn.silu(y @ params["time"][0]) @ params["time"][1]
        condition = condition + words.mean(1) if o["condition"] != "crossed" else condition
        tokens = x @ params["first"] + params["positions"]
        if o["condition"] == "joint":
            tokens = jnp.concatenate([words, tokens], axis=1)
        tokens = run.pin(tokens, "batch")
        tokens, _, _ = run.layers(block, (tokens, condition, words), params["layers"])
        tokens = tokens[:, -(o["side"] ** 2) :]
        return layer_norm(tokens, params["out_scale"]) @ params["last"]

    def served(params: Any, x: Any, time: Any, words: Any) -> Any:
        found = forward(params, x, time, words)
        if not o["guided"]:
            return found
        plain = forward(params, x, time, jnp.zeros_like(words))
        return (x - 0.02 * (plain + 4.0 * (found - plain))).astype(x.dtype)

    def loss(params: Any, clean: Any, time: Any, words: Any, added: Any) -> Any:
        share = (time.astype(jnp.float32) / 1000)[:, None, None]
        found = forward(
            params, (share * added + (1 - share) * clean).astype(clean.dtype), time, words
        )
        return jnp.mean(jnp.square((found - (added - clean)).astype(jnp.float32)))

    batch, shape = run.plan.batch, (o["side"] ** 2, o["channels"] * o["patch"] ** 2)
    inputs = (
        Input((batch, *shape), ("batch",)),
        Input((batch,), ("batch",), "int32"),
        Input((batch, o["words"], 1024), ("batch",)),
    )
    weights = _diffusion_weights(o, run)
    return Model(served, loss, weights, inputs, (Input((batch, *shape), ("batch",)),))


FAMILIES = (
    Family("denoiser", draw_denoiser, build_denoiser, WIDTH_STYLES, 0.2),
    Family(
        "diffusion transformer",
        draw_diffusion_transformer,
        build_diffusion_transformer,
        WIDTH_STYLES,
        0.2,
    ),
)
