"""Two towers whose vectors are compared: of images and texts, or of two views."""

from __future__ import annotations

from random import Random
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.sharing.corpus.families.vision import drawn_image, first_tokens, image_input
from benchmarks.sharing.corpus.family import WIDTH_STYLES, Family
from benchmarks.sharing.corpus.parts import (
    Arrays,
    attention_weights,
    causal_mask,
    embedded,
    ffn,
    ffn_weights,
    layer_norm,
    picked_entropy,
    self_attention,
    whole,
)
from benchmarks.sharing.corpus.run import Input, Model, Run, Weight
from benchmarks.sharing.corpus.sizes import (
    LAYERS,
    VOCABS,
    Options,
    drawn_width,
)


def draw_towers(rng: Random) -> Options:
    """Both towers and the loss between them."""
    return {
        **drawn_image(rng),
        **drawn_width(rng, 3072),
        "layers": rng.choice(LAYERS[2:12]),
        "text": drawn_width(rng, 2048),
        "text_layers": rng.choice(LAYERS[2:10]),
        "vocab": rng.choice(VOCABS[:8]),
        "length": rng.choice((32, 64, 77, 77, 128, 256)),
        "shared_dim": rng.choice((256, 512, 768, 1024)),
        "loss": rng.choice(("softmax", "softmax", "sigmoid", "queue")),
        "second": rng.choice(("text", "text", "image")),
        "convolved": rng.random() < 0.5,
        "causal": rng.random() < 0.5,
    }


def _tower(run: Run, o: Options, layers: int, out: int) -> dict[str, Any]:
    dim = o["dim"]
    layer = attention_weights(dim, o["heads"], o["head_dim"]) | ffn_weights(dim, 4 * dim, bias=True)
    layer |= {"in_scale": Weight((dim,)), "mid_scale": Weight((dim,))}
    return {
        "layers": run.stack(layers, layer),
        "scale": Weight((dim,)),
        "out": Weight((dim, out), ("embed", "")),
    }


def _climbed(run: Run, x: Any, p: Arrays, mask: Any = None) -> Any:
    """A tower's vector, of length 1."""

    def block(x: Any, p: Arrays) -> Any:
        x = x + self_attention(run, whole(run, layer_norm(x, p["in_scale"])), p, mask)
        return x + ffn(run, whole(run, layer_norm(x, p["mid_scale"])), p, "gelu")

    x = layer_norm(run.layers(block, x, p["layers"]), p["scale"])
    y = (x.mean(1) @ p["out"]).astype(jnp.float32)
    return y * jax.lax.rsqrt(jnp.square(y).sum(-1, keepdims=True) + 1e-6)


def build_towers(o: Options, run: Run) -> Model:
    """CLIP's and SigLIP's kinds, and two views of one image."""
    is_text = o["second"] == "text"

    def images_of(params: Any, images: Any) -> Any:
        p = params["image"]
        return _climbed(run, first_tokens(o, run, p, images) + p["positions"], p)

    def second_of(params: Any, second: Any) -> Any:
        if not is_text:
            return images_of(params, second)
        p = params["text"]
        x = embedded(run, p["embed"], second) + p["positions"]
        return _climbed(run, x, p, causal_mask(o["length"]) if o["causal"] else None)

    def forward(params: Any, images: Any, second: Any) -> Any:
        a, b = images_of(params, images), second_of(params, second)
        if o["loss"] == "queue":
            b = jnp.concatenate([b, params["queue"].astype(jnp.float32)], axis=0)
        scores = jnp.einsum("id,jd->ij", a, run.pin(b, "", ""))
        scores = scores * jnp.exp(params["temperature"].astype(jnp.float32))
        return run.pin(scores, "batch")

    def loss(params: Any, images: Any, second: Any) -> Any:
        scores = forward(params, images, second)
        same = jnp.arange(scores.shape[0])
        if o["loss"] == "sigmoid":
            sign = 2.0 * (same[:, None] == same) - 1.0
            return jnp.mean(jax.nn.softplus(-sign * (scores - 10.0)).sum(-1))
        found = picked_entropy(scores, same)
        return found if o["loss"] == "queue" else 0.5 * (found + picked_entropy(scores.T, same))

    image: dict[str, Any] = {
        "patches": Weight((3 * o["patch"] ** 2, o["dim"]), ("", "embed")),
        "positions": Weight((o["side"] ** 2, o["dim"])),
        **_tower(run, o, o["layers"], o["shared_dim"]),
    }
    weights: dict[str, Any] = {"image": image, "temperature": Weight(())}
    if is_text:
        size = o["text"]
        weights["text"] = {
            "embed": Weight((o["vocab"], size["dim"]), ("vocab", "embed")),
            "positions": Weight((o["length"], size["dim"])),
            **_tower(run, size, o["text_layers"], o["shared_dim"]),
        }
    if o["loss"] == "queue":
        weights["queue"] = Weight((4096, o["shared_dim"]))
    words = Input((run.plan.batch, o["length"]), ("batch", ""), "int32")
    inputs = image_input(o, run), words if is_text else image_input(o, run)
    return Model(forward, loss, weights, inputs)


FAMILIES = (Family("two towers", draw_towers, build_towers, WIDTH_STYLES, 0.15),)
