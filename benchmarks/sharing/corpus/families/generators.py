"""Models that make images of a code, or against a critic."""

from __future__ import annotations

from random import Random
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.sharing.corpus.families.convolutions import convolve, filter_weight, group_norm
from benchmarks.sharing.corpus.family import WIDTH_STYLES, Family
from benchmarks.sharing.corpus.parts import (
    Arrays,
)
from benchmarks.sharing.corpus.run import Input, Model, Run, Weight
from benchmarks.sharing.corpus.sizes import (
    Options,
)


def draw_autoencoder(rng: Random) -> Options:
    """Levels and kinds of code."""
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
    """Losses, a penalty on gradients, a network before the maker."""
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
    Family("autoencoder", draw_autoencoder, build_autoencoder, WIDTH_STYLES, 0.1),
    Family("adversary", draw_adversary, build_adversary, WIDTH_STYLES, 0.05),
)
