"""Models of images without convolutions but the first: vision transformers and mixers."""

from __future__ import annotations

from random import Random
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.sharing.corpus.family import LENGTH_STYLES, WIDTH_STYLES, Example, Family
from benchmarks.sharing.corpus.parts import (
    Arrays,
    attend,
    attention_result,
    attention_weights,
    cross_attention,
    ffn,
    ffn_weights,
    norm,
    norm_weights,
    picked_entropy,
    projected,
    self_attention,
    whole,
)
from benchmarks.sharing.corpus.run import Input, Model, Run, Weight
from benchmarks.sharing.corpus.sizes import LAYERS, WIDTHS, Options, drawn_transformer


def drawn_image(rng: Random) -> Options:
    """Patches and images that they divide."""
    patch = rng.choice((8, 14, 16, 16, 32))
    return {"patch": patch, "side": rng.choice((8, 12, 14, 16, 16, 24, 32))}


def patches_of(o: Options, images: Any) -> Any:
    """(b, side * patch, side * patch, 3) as (b, side * side, 3 * patch * patch)."""
    batch, patch, side = images.shape[0], o["patch"], o["side"]
    x = images.reshape(batch, side, patch, side, patch, 3).transpose(0, 1, 3, 2, 4, 5)
    return x.reshape(batch, side * side, 3 * patch * patch)


def first_tokens(o: Options, run: Run, params: Arrays, images: Any) -> Any:
    """Patches as vectors, by a product or by a convolution with the patch's stride."""
    if not o["convolved"]:
        return run.pin(patches_of(o, images) @ params["patches"], "batch", "residual", "")
    patch, dim = o["patch"], params["patches"].shape[-1]
    kernel = params["patches"].reshape(patch, patch, 3, dim)
    x = jax.lax.conv_general_dilated(
        images, kernel, (patch, patch), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return run.pin(x.reshape(x.shape[0], -1, dim), "batch", "residual", "")


def draw_vit(rng: Random) -> Options:
    """Windows, how the image's vector is made, layers side by side."""
    return {
        **drawn_transformer(rng, 6144),
        **drawn_image(rng),
        "convolved": rng.random() < 0.4,
        "pool": rng.choice(("mean", "class", "query")),
        "scaled": rng.random() < 0.3,
        "windows": rng.random() < 0.3,
        "parallel_block": rng.random() < 0.15,
        "bias": rng.random() < 0.7,
        "classes": rng.choice((10, 1000, 1000, 21_841)),
    }


def _vit_weights(o: Options, run: Run) -> Any:
    dim, kind = o["dim"], "layer" if o["bias"] else "scale"
    layer = attention_weights(dim, o["heads"], o["head_dim"], bias=o["bias"])
    layer |= ffn_weights(dim, o["ffn"], bias=o["bias"])
    layer |= norm_weights(kind, dim, "in") | norm_weights(kind, dim, "mid")
    layer |= {"scale1": Weight((dim,)), "scale2": Weight((dim,))} if o["scaled"] else {}
    found = {
        "patches": Weight((3 * o["patch"] ** 2, dim), ("", "embed")),
        "positions": Weight((o["side"] ** 2, dim)),
        "layers": run.stack(o["layers"], layer),
        **norm_weights(kind, dim, "out"),
        "head": Weight((dim, o["classes"]), ("embed", "vocab")),
    }
    if o["pool"] != "mean":
        found["query"] = Weight((1, 1, dim))
    if o["pool"] == "query":
        found |= attention_weights(dim, o["heads"], o["head_dim"], prefix="cross_")
    return found


def _in_windows(o: Options, run: Run, x: Any, p: Arrays, shifted: bool) -> Any:
    """Attention within windows of half the image's side, moved by half a window if `shifted`."""
    batch, side, dim = x.shape[0], o["side"], x.shape[-1]
    half = side // 2
    x = x.reshape(batch, side, side, dim)
    x = jnp.roll(x, (-(half // 2), -(half // 2)), (1, 2)) if shifted else x
    x = x.reshape(batch, 2, half, 2, half, dim).transpose(0, 1, 3, 2, 4, 5)
    x = run.pin(x.reshape(batch * 4, half * half, dim), "batch")
    q, k, v = (projected(run, x, p, name) for name in "qkv")
    y = attention_result(run, attend(q, k, v), p)
    y = y.reshape(batch, 2, 2, half, half, dim).transpose(0, 1, 3, 2, 4, 5)
    y = y.reshape(batch, side, side, dim)
    y = jnp.roll(y, (half // 2, half // 2), (1, 2)) if shifted else y
    return run.pin(y.reshape(batch, side * side, dim), "batch", "residual", "")


def build_vit(o: Options, run: Run) -> Model:
    """ViT's kinds, and those with windows."""
    kind, windows = "layer" if o["bias"] else "scale", o["windows"] and o["pool"] != "class"

    def scaled(y: Any, p: Arrays, name: str) -> Any:
        return y * p[name] if o["scaled"] else y

    def block(x: Any, p: Arrays) -> Any:
        y = whole(run, norm(kind, x, p, "in"))
        if windows:
            a = _in_windows(o, run, _in_windows(o, run, y, p, False), p, True)
        else:
            a = self_attention(run, y, p)
        if o["parallel_block"]:
            return x + scaled(a, p, "scale1") + scaled(ffn(run, y, p, "gelu"), p, "scale2")
        x = x + scaled(a, p, "scale1")
        y = whole(run, norm(kind, x, p, "mid"))
        return x + scaled(ffn(run, y, p, "gelu"), p, "scale2")

    def forward(params: Any, images: Any) -> Any:
        x = first_tokens(o, run, params, images) + params["positions"]
        if o["pool"] == "class":
            first = jnp.broadcast_to(params["query"], (x.shape[0], 1, o["dim"]))
            x = jnp.concatenate([first.astype(x.dtype), x], axis=1)
        x = whole(run, norm(kind, run.layers(block, x, params["layers"]), params, "out"))
        if o["pool"] == "query":
            query = jnp.broadcast_to(params["query"], (x.shape[0], 1, o["dim"])).astype(x.dtype)
            x = cross_attention(run, query, x, params)
        return (x.mean(1) if o["pool"] == "mean" else x[:, 0]) @ params["head"]

    def loss(params: Any, images: Any, labels: Any) -> Any:
        return picked_entropy(forward(params, images), labels)

    return Model(forward, loss, _vit_weights(o, run), (image_input(o, run),), (label_input(run),))


def image_input(o: Options, run: Run) -> Input:
    """Images that patches divide."""
    pixels = o["side"] * o["patch"]
    return Input((run.plan.batch, pixels, pixels, 3), ("batch",))


def label_input(run: Run) -> Input:
    """A class for each image."""
    return Input((run.plan.batch,), ("batch",), "int32")


def draw_mixer(rng: Random) -> Options:
    """How tokens are mixed: products, gates, means, Fourier transforms."""
    dim = rng.choice(WIDTHS[1:15])
    return {
        **drawn_image(rng),
        "dim": dim,
        "ffn": dim * rng.choice((2, 4, 6)),
        "tokens": rng.choice((128, 256, 384, 512, 2048)),
        "layers": rng.choice(LAYERS[2:16]),
        "form": rng.choice(("mixer", "mixer", "gate", "pool", "fourier", "affine")),
        "convolved": rng.random() < 0.3,
        "bias": rng.random() < 0.6,
        "classes": rng.choice((10, 1000, 18_291)),
    }


def _mixer_weights(o: Options, run: Run) -> Any:
    dim, count, kind = o["dim"], o["side"] ** 2, "layer" if o["bias"] else "scale"
    layer = norm_weights(kind, dim, "in")
    if o["form"] in ("mixer", "affine"):
        layer |= {"mix": Weight((count, o["tokens"])), "unmix": Weight((o["tokens"], count))}
    if o["form"] == "gate":
        layer |= {
            "expand": Weight((dim, 2 * o["ffn"]), ("embed", "")),
            "space": Weight((count, count)),
            "space_bias": Weight((count,)),
            "shrink": Weight((o["ffn"], dim), ("ffn", "embed")),
            **norm_weights(kind, o["ffn"], "gate"),
        }
    else:
        layer |= norm_weights(kind, dim, "mid") | ffn_weights(dim, o["ffn"], bias=o["bias"])
    return {
        "patches": Weight((3 * o["patch"] ** 2, dim), ("", "embed")),
        "layers": run.stack(o["layers"], layer),
        **norm_weights(kind, dim, "out"),
        "head": Weight((dim, o["classes"]), ("embed", "vocab")),
    }


def _mixed(o: Options, y: Any, p: Arrays) -> Any:
    """Tokens (b, s, d) mixed with each other."""
    if o["form"] == "pool":
        side = o["side"]
        grid = y.reshape(y.shape[0], side, side, -1)
        window = ((1, 3, 3, 1), (1, 1, 1, 1), "SAME")
        return jax.lax.reduce_window(grid, 0.0, jax.lax.add, *window).reshape(y.shape) / 9 - y
    if o["form"] == "fourier":
        return jnp.fft.fft2(y.astype(jnp.float32)).real.astype(y.dtype)
    return jnp.einsum(
        "bts,sn->btn", jax.nn.gelu(y.transpose(0, 2, 1) @ p["mix"]), p["unmix"]
    ).transpose(0, 2, 1)


def build_mixer(o: Options, run: Run) -> Model:
    """MLP-Mixer's, gMLP's, PoolFormer's, FNet's and ResMLP's kinds."""
    kind = "layer" if o["bias"] else "scale"

    def normed(x: Any, p: Arrays, name: str) -> Any:
        if o["form"] == "affine":
            y = x * p[name + "_scale"]
            return y + p[name + "_bias"] if o["bias"] else y
        return norm(kind, x, p, name)

    def gated(x: Any, p: Arrays) -> Any:
        y = jax.nn.gelu(norm(kind, x, p, "in") @ p["expand"])
        a, b = jnp.split(y, 2, axis=-1)
        b = jnp.einsum("bsd,st->btd", norm(kind, b, p, "gate"), p["space"])
        return run.pin(x + (a * (b + p["space_bias"][:, None])) @ p["shrink"], "batch")

    def block(x: Any, p: Arrays) -> Any:
        if o["form"] == "gate":
            return gated(x, p)
        x = run.pin(x + _mixed(o, normed(x, p, "in"), p), "batch")
        return x + ffn(run, normed(x, p, "mid"), p, "gelu")

    def forward(params: Any, images: Any) -> Any:
        x = run.layers(block, first_tokens(o, run, params, images), params["layers"])
        return norm(kind, x, params, "out").mean(1) @ params["head"]

    def loss(params: Any, images: Any, labels: Any) -> Any:
        return picked_entropy(forward(params, images), labels)

    return Model(forward, loss, _mixer_weights(o, run), (image_input(o, run),), (label_input(run),))


def _vit_settings(rng: Random) -> dict[str, str]:
    return {
        "model": rng.choice(("b16", "l16", "h16")),
        "training": rng.choice(("true", "true", "false")),
    }


FAMILIES = (
    Family(
        *("vision transformer", draw_vit, build_vit, LENGTH_STYLES, 0.2),
        example=Example("benchmarks/sharing/encoders_jax.py:vit", (2, 4), _vit_settings),
    ),
    Family("mixer", draw_mixer, build_mixer, WIDTH_STYLES, 0.2),
)
