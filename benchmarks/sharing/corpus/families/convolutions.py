"""Networks of convolutions that say the class of an image: residual ones, and with depthwise filters."""

from __future__ import annotations

from random import Random
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.sharing.corpus.family import Family
from benchmarks.sharing.corpus.parts import Arrays, layer_norm, picked_entropy
from benchmarks.sharing.corpus.run import Input, Model, Run, Weight
from benchmarks.sharing.corpus.sizes import Options


def convolve(x: Any, kernel: Any, stride: int = 1, groups: int = 1, padding: str = "SAME") -> Any:
    """Images (b, h, w, c) with a filter (h, w, c / groups, f)."""
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        padding,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def filter_weight(size: int, inward: int, outward: int) -> Weight:
    """A square filter, cut over what it makes."""
    return Weight((size, size, inward, outward), ("", "", "embed", "ffn"))


def batch_norm(x: Any, scale: Any, bias: Any) -> Any:
    """By mean and variance over the batch and the image."""
    x32 = x.astype(jnp.float32)
    mean = x32.mean((0, 1, 2))
    variance = jnp.square(x32).mean((0, 1, 2)) - jnp.square(mean)
    y = (x32 - mean) * jax.lax.rsqrt(variance + 1e-5)
    return y.astype(x.dtype) * scale + bias


def group_norm(x: Any, scale: Any, bias: Any, groups: int = 32) -> Any:
    """By mean and variance over the image and a group of channels."""
    batch, height, width, channels = x.shape
    count = next(g for g in range(min(groups, channels), 0, -1) if channels % g == 0)
    y = x.astype(jnp.float32).reshape(batch, height, width, count, -1)
    mean = y.mean((1, 2, 4), keepdims=True)
    variance = jnp.square(y - mean).mean((1, 2, 4), keepdims=True)
    y = ((y - mean) * jax.lax.rsqrt(variance + 1e-5)).reshape(x.shape)
    return y.astype(x.dtype) * scale + bias


def _norm_of(o: Options, channels: int, name: str) -> dict[str, Weight]:
    return {name + "_scale": Weight((channels,)), name + "_bias": Weight((channels,))}


def _normed(o: Options, x: Any, p: Arrays, name: str) -> Any:
    norm = batch_norm if o["norm"] == "batch" else group_norm
    return norm(x, p[name + "_scale"], p[name + "_bias"])


def draw_residual(rng: Random) -> Options:
    """Stages, kinds of blocks, norms over the batch or over groups."""
    stages = rng.choice((2, 3, 3, 4))
    return {
        "image": rng.choice((32, 64, 128, 224, 224, 256)),
        "stages": [rng.choice((2, 2, 3, 4, 6, 12, 23)) for _ in range(stages)],
        "width": rng.choice((32, 48, 64, 64, 96, 128)),
        "form": rng.choice(("basic", "bottleneck", "bottleneck", "inverted", "before")),
        "norm": rng.choice(("batch", "batch", "group")),
        "groups": rng.choice((1, 1, 1, 8)),
        "squeeze": rng.random() < 0.25,
        "classes": rng.choice((10, 100, 1000)),
    }


def _residual_block(o: Options, inward: int, outward: int) -> dict[str, Weight]:
    """Weights of a block from `inward` to `outward` channels."""
    if o["form"] in ("basic", "before"):
        found = {
            "a": filter_weight(3, inward, outward),
            "b": filter_weight(3, outward, outward),
            **_norm_of(o, inward if o["form"] == "before" else outward, "na"),
            **_norm_of(o, outward, "nb"),
        }
    else:
        wide = o["form"] == "inverted"
        inner = inward * 4 if wide else outward // 4
        groups = inner if wide else o["groups"]
        middle = Weight((3, 3, inner // groups, inner), ("", "", "", "ffn"))
        found = {
            "a": filter_weight(1, inward, inner),
            "m": middle,
            "b": filter_weight(1, inner, outward),
            **_norm_of(o, inner, "na"),
            **_norm_of(o, inner, "nm"),
            **_norm_of(o, outward, "nb"),
        }
    if o["squeeze"]:
        found |= {"s": Weight((outward, outward // 4)), "e": Weight((outward // 4, outward))}
    return found | ({"skip": filter_weight(1, inward, outward)} if inward != outward else {})


def _residual_weights(o: Options, run: Run) -> Any:
    inward, found = o["width"], []
    for i, count in enumerate(o["stages"]):
        outward = o["width"] * 2**i * (1 if o["form"] in ("basic", "before") else 4)
        first = _residual_block(o, inward, outward)
        first["skip"] = filter_weight(1, inward, outward)
        found.append(
            {"first": first, "rest": run.stack(count - 1, _residual_block(o, outward, outward))}
        )
        inward = outward
    return {
        "stem": filter_weight(7 if o["image"] > 64 else 3, 3, o["width"]),
        **_norm_of(o, o["width"], "stem"),
        "stages": found,
        "head": Weight((inward, o["classes"]), ("embed", "vocab")),
    }


def _residual(o: Options, run: Run, x: Any, p: Arrays, stride: int = 1) -> Any:
    skip = convolve(x, p["skip"], stride) if "skip" in p else x
    if o["form"] == "before":
        y = convolve(jax.nn.relu(_normed(o, x, p, "na")), p["a"], stride)
        y = convolve(jax.nn.relu(_normed(o, y, p, "nb")), p["b"])
    elif o["form"] == "basic":
        y = jax.nn.relu(_normed(o, convolve(x, p["a"], stride), p, "na"))
        y = _normed(o, convolve(y, p["b"]), p, "nb")
    else:
        y = jax.nn.relu(_normed(o, convolve(x, p["a"]), p, "na"))
        groups = p["m"].shape[3] // p["m"].shape[2]
        y = jax.nn.relu(_normed(o, convolve(y, p["m"], stride, groups), p, "nm"))
        y = _normed(o, convolve(y, p["b"]), p, "nb")
    if o["squeeze"]:
        y = y * jax.nn.sigmoid(jax.nn.relu(y.mean((1, 2)) @ p["s"]) @ p["e"])[:, None, None]
    y = run.pin(skip + y, "batch")
    return y if o["form"] in ("before", "inverted") else jax.nn.relu(y)


def build_residual(o: Options, run: Run) -> Model:
    """ResNet's, ResNeXt's, MobileNet's kinds; blocks of a stage after its first are a loop."""

    def forward(params: Any, images: Any) -> Any:
        large = o["image"] > 64
        x = convolve(images, params["stem"], 2 if large else 1)
        x = jax.nn.relu(_normed(o, x, params, "stem"))
        if large:
            pool = ((1, 3, 3, 1), (1, 2, 2, 1), "SAME")
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, *pool)
        for i, stage in enumerate(params["stages"]):
            x = _residual(o, run, x, stage["first"], 2 if i else 1)
            x = run.layers(lambda y, p: _residual(o, run, y, p), x, stage["rest"])
        return x.mean((1, 2)) @ params["head"]

    return _classifier(o, run, forward, _residual_weights(o, run))


def _classifier(o: Options, run: Run, forward: Any, weights: Any) -> Model:
    def loss(params: Any, images: Any, labels: Any) -> Any:
        return picked_entropy(forward(params, images), labels)

    images = Input((run.plan.batch, o["image"], o["image"], 3), ("batch",))
    labels = Input((run.plan.batch,), ("batch",), "int32")
    return Model(forward, loss, weights, (images,), (labels,))


def draw_depthwise(rng: Random) -> Options:
    """Stages, sizes of filters, response normalisation."""
    return {
        "image": rng.choice((128, 224, 224, 256, 384)),
        "stages": [rng.choice((2, 3, 4, 9, 27)) for _ in range(rng.choice((1, 2, 3, 4)))],
        "width": rng.choice((40, 64, 96, 96, 128, 192, 256)),
        "kernel": rng.choice((3, 5, 7, 7, 9)),
        "expand": rng.choice((2, 3, 4, 4)),
        "scaled": rng.random() < 0.5,
        "response": rng.random() < 0.3,
        "linear": rng.random() < 0.5,
        "classes": rng.choice((10, 1000, 21_841)),
    }


def _depthwise_weights(o: Options, run: Run) -> Any:
    stages, inward = [], 3
    for i, count in enumerate(o["stages"]):
        dim, inner = o["width"] * 2**i, o["width"] * 2**i * o["expand"]
        block = {
            "depth": Weight((o["kernel"], o["kernel"], 1, dim)),
            "scale": Weight((dim,)),
            "bias": Weight((dim,)),
            "up": Weight((dim, inner), ("embed", "ffn")),
            "down": Weight((inner, dim), ("ffn", "embed")),
        }
        block |= {"layer_scale": Weight((dim,))} if o["scaled"] else {}
        block |= (
            {"gamma": Weight((inner,), ("ffn",)), "beta": Weight((inner,), ("ffn",))}
            if o["response"]
            else {}
        )
        size = 2 if i else 4
        down = {
            "filter": filter_weight(size, inward, dim),
            "scale": Weight((dim,)),
            "bias": Weight((dim,)),
        }
        stages.append({"down": down, "blocks": run.stack(count, block)})
        inward = dim
    return {
        "stages": stages,
        "scale": Weight((inward,)),
        "head": Weight((inward, o["classes"]), ("embed", "vocab")),
    }


def build_depthwise(o: Options, run: Run) -> Model:
    """ConvNeXt's kinds, one and two (with response normalisation)."""

    def block(x: Any, p: Arrays) -> Any:
        y = layer_norm(convolve(x, p["depth"], groups=x.shape[-1]), p["scale"], p["bias"])
        up = "bhwd,df->bhwf"
        hidden = jax.nn.gelu(
            jnp.einsum(up, y, p["up"]) if o["linear"] else convolve(y, p["up"][None, None])
        )
        hidden = run.pin(hidden, "batch", "", "", "ffn")
        if o["response"]:
            response = jnp.sqrt(
                jnp.square(hidden.astype(jnp.float32)).sum((1, 2), keepdims=True) + 1e-6
            )
            share = (response / (response.mean(-1, keepdims=True) + 1e-6)).astype(x.dtype)
            hidden = p["gamma"] * (hidden * share) + p["beta"] + hidden
        y = jnp.einsum("bhwf,fd->bhwd", hidden, p["down"])
        return run.pin(x + (y * p["layer_scale"] if o["scaled"] else y), "batch")

    def forward(params: Any, images: Any) -> Any:
        x = images
        for i, stage in enumerate(params["stages"]):
            down = stage["down"]
            x = convolve(x, down["filter"], 2 if i else 4, padding="VALID")
            x = run.layers(block, layer_norm(x, down["scale"], down["bias"]), stage["blocks"])
        return layer_norm(x.mean((1, 2)), params["scale"]) @ params["head"]

    return _classifier(o, run, forward, _depthwise_weights(o, run))


STYLES = ("dp", "dp", "fsdp", "fsdp", "tp", "fsdp+tp")
FAMILIES = (
    Family("residual network", draw_residual, build_residual, STYLES, 0.25),
    Family("depthwise network", draw_depthwise, build_depthwise, STYLES, 0.25),
)
