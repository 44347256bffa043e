"""Models that make images: of noise step by step, by a code, or against a critic."""

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
from benchmarks.sharing.corpus.sizes import Options, drawn_transformer


def draw_denoiser(rng: Random) -> Options:
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


def draw_autoencoder(rng: Random) -> Options:
    return {
        "image": rng.choice((32, 64, 128, 256)),
        "width": rng.choice((32, 64, 96, 128)),
        "levels": rng.choice((2, 3, 4)),
        "blocks": rng.choice((0, 1, 2)),
        "code": rng.choice(("normal", "normal", "vectors", "plain", "masked")),
        "code_dim": rng.choice((4, 16, 64, 256)),
        "vectors": rng.choice((512, 1024, 8192)),
        "norm": rng.random() < 0.6,
    }


def _autoencoder_weights(o: Options, run: Run) -> Any:
    def block(size: int) -> dict[str, Weight]:
        return {
            "a": filter_weight(3, size, size),
            "scale": Weight((size,)),
            "bias": Weight((size,)),
        }

    sizes = [o["width"] * 2**i for i in range(o["levels"])]
    inner, code = sizes[-1], o["code_dim"] * (2 if o["code"] == "normal" else 1)
    down = [filter_weight(4, a, b) for a, b in zip([3, *sizes], sizes, strict=False)]
    up = [filter_weight(4, a, b) for a, b in zip(sizes[::-1], [*sizes[::-1][1:], 3], strict=True)]
    found = {
        "down": down,
        "inside": [run.stack(max(o["blocks"], 1), block(inner)) for _ in range(2)]
        if o["blocks"]
        else [],
        "to_code": Weight((1, 1, inner, code)),
        "from_code": Weight((1, 1, o["code_dim"], inner)),
        "up": up,
    }
    return found | (
        {"vectors": Weight((o["vectors"], o["code_dim"]))} if o["code"] == "vectors" else {}
    )


def _widened(x: Any, kernel: Any) -> Any:
    """A transposed convolution to twice the size."""
    return jax.lax.conv_transpose(
        x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def build_autoencoder(o: Options, run: Run) -> Model:
    """Variational ones, such with a table of vectors, plain and masked ones."""

    def block(x: Any, p: Arrays) -> Any:
        y = group_norm(x, p["scale"], p["bias"]) if o["norm"] else x
        return run.pin(x + convolve(jax.nn.relu(y), p["a"]), "batch")

    def encoded(params: Any, x: Any) -> Any:
        for kernel in params["down"]:
            x = run.pin(jax.nn.relu(convolve(x, kernel, 2)), "batch")
        for stack in params["inside"][:1]:
            x = run.layers(block, x, stack)
        return convolve(x, params["to_code"])

    def decoded(params: Any, code: Any) -> Any:
        x = convolve(code, params["from_code"])
        for stack in params["inside"][1:]:
            x = run.layers(block, x, stack)
        for i, kernel in enumerate(params["up"]):
            x = run.pin(_widened(x, kernel), "batch")
            x = jax.nn.relu(x) if i + 1 < len(params["up"]) else x
        return x

    def nearest(params: Any, code: Any) -> tuple[Any, Any]:
        vectors = params["vectors"]
        away = jnp.square(vectors).sum(-1) - 2 * jnp.einsum("bhwc,nc->bhwn", code, vectors)
        found = vectors[jnp.argmin(away, axis=-1)]
        gap = jnp.mean(jnp.square((jax.lax.stop_gradient(code) - found).astype(jnp.float32)))
        gap = gap + 0.25 * jnp.mean(
            jnp.square((code - jax.lax.stop_gradient(found)).astype(jnp.float32))
        )
        return code + jax.lax.stop_gradient(found - code), gap

    def both(params: Any, images: Any, noise: Any) -> tuple[Any, Any]:
        if o["code"] == "masked":
            images = images * (noise.mean(-1, keepdims=True) > 0)
        code = encoded(params, images)
        if o["code"] == "vectors":
            code, extra = nearest(params, code)
            return decoded(params, code), extra
        if o["code"] != "normal":
            return decoded(params, code), jnp.zeros((), jnp.float32)
        mean, logs = jnp.split(code, 2, axis=-1)
        width = 2 ** o["levels"]
        drawn = noise[:, ::width, ::width].mean(-1, keepdims=True) * jnp.exp(0.5 * logs)
        away = 0.5 * jnp.mean((jnp.square(mean) + jnp.exp(logs) - 1 - logs).astype(jnp.float32))
        return decoded(params, mean + drawn), away

    def forward(params: Any, images: Any, noise: Any) -> Any:
        return both(params, images, noise)[0]

    def loss(params: Any, images: Any, noise: Any) -> Any:
        found, extra = both(params, images, noise)
        return jnp.mean(jnp.square((found - images).astype(jnp.float32))) + 0.1 * extra

    image = Input((run.plan.batch, o["image"], o["image"], 3), ("batch",))
    return Model(forward, loss, _autoencoder_weights(o, run), (image, image))


def draw_adversary(rng: Random) -> Options:
    return {
        "image": rng.choice((32, 64, 128)),
        "width": rng.choice((32, 64, 64, 96)),
        "noise": rng.choice((100, 128, 512)),
        "penalty": rng.choice(("none", "none", "gradient")),
        "loss": rng.choice(("hinge", "logistic", "distance")),
        "mapping": rng.choice((0, 0, 4, 8)),
        "norm": rng.random() < 0.6,
        "attends": rng.random() < 0.3,
    }


def _adversary_weights(o: Options) -> Any:
    levels = {32: 3, 64: 4, 128: 5}[o["image"]]
    sizes = [min(o["width"] * 2**i, 512) for i in range(levels)]
    maker: dict[str, Any] = {"first": Weight((o["noise"], 16 * sizes[-1]), ("", "ffn"))}
    maker["up"] = [
        filter_weight(4, a, b) for a, b in zip(sizes[::-1], [*sizes[::-1][1:], 3], strict=True)
    ]
    maker["scales"] = [Weight((b,)) for b in [*sizes[::-1][1:], 3]]
    maker["biases"] = [Weight((b,)) for b in [*sizes[::-1][1:], 3]]
    maker["mapping"] = [Weight((o["noise"], o["noise"]), ("embed", "ffn"))] * o["mapping"]
    critic: dict[str, Any] = {"last": Weight((16 * sizes[-1], 1), ("embed", ""))}
    critic["down"] = [filter_weight(4, a, b) for a, b in zip([3, *sizes], sizes, strict=False)]
    if o["attends"]:
        critic["mix"] = [Weight((sizes[-1], max(sizes[-1] // 8, 8))) for _ in range(2)]
    return {"maker": maker, "critic": critic}


def build_adversary(o: Options, run: Run) -> Model:
    """A maker and a critic, both trained in one step."""

    def made(p: Arrays, noise: Any) -> Any:
        for weight in p["mapping"]:
            noise = jax.nn.leaky_relu(noise @ weight, 0.2)
        x = (noise @ p["first"]).reshape(noise.shape[0], 4, 4, -1)
        for i, kernel in enumerate(p["up"]):
            x = run.pin(_widened(jax.nn.relu(x), kernel), "batch")
            last = i + 1 == len(p["up"])
            x = group_norm(x, p["scales"][i], p["biases"][i]) if o["norm"] and not last else x
        return jnp.tanh(x)

    def score(p: Arrays, x: Any) -> Any:
        for kernel in p["down"]:
            x = run.pin(jax.nn.leaky_relu(convolve(x, kernel, 2), 0.2), "batch")
        if o["attends"]:
            y = x.reshape(x.shape[0], -1, x.shape[-1])
            q, k = (y @ w for w in p["mix"])
            weights = jax.nn.softmax(jnp.einsum("bsc,btc->bst", q, k).astype(jnp.float32), axis=-1)
            x = x + jnp.einsum("bst,btc->bsc", weights.astype(x.dtype), y).reshape(x.shape)
        return (x.reshape(x.shape[0], -1) @ p["last"])[:, 0].astype(jnp.float32)

    def losses(real: Any, fake: Any, fooled: Any) -> Any:
        if o["loss"] == "hinge":
            critic = jnp.mean(jax.nn.relu(1 - real)) + jnp.mean(jax.nn.relu(1 + fake))
        elif o["loss"] == "logistic":
            critic = jnp.mean(jax.nn.softplus(-real)) + jnp.mean(jax.nn.softplus(fake))
            return critic + jnp.mean(jax.nn.softplus(-fooled))
        else:
            critic = jnp.mean(fake) - jnp.mean(real)
        return critic - jnp.mean(fooled)

    def loss(params: Any, noise: Any, images: Any) -> Any:
        found = made(params["maker"], noise)
        still = jax.lax.stop_gradient(found)
        real, fake = score(params["critic"], images), score(params["critic"], still)
        fooled = score(jax.lax.stop_gradient(params["critic"]), found)
        total = losses(real, fake, fooled)
        if o["penalty"] == "gradient":
            slopes = jax.grad(lambda x: score(params["critic"], x).sum())(images)
            total = total + 10 * jnp.mean(jnp.square(slopes.astype(jnp.float32)).sum((1, 2, 3)))
        return total

    def forward(params: Any, noise: Any) -> Any:
        return made(params["maker"], noise)

    noise = Input((run.plan.batch, o["noise"]), ("batch",))
    image = Input((run.plan.batch, o["image"], o["image"], 3), ("batch",))
    return Model(forward, loss, _adversary_weights(o), (noise,), (image,))


FAMILIES = (
    Family("denoiser", draw_denoiser, build_denoiser, WIDTH_STYLES, 0.2),
    Family(
        "diffusion transformer",
        draw_diffusion_transformer,
        build_diffusion_transformer,
        WIDTH_STYLES,
        0.2,
    ),
    Family("autoencoder", draw_autoencoder, build_autoencoder, WIDTH_STYLES, 0.1),
    Family("adversary", draw_adversary, build_adversary, WIDTH_STYLES, 0.05),
)
