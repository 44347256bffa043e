"""BERT, ViT and T5: training and inference steps, sharded over "data" and "model".

    flint capture benchmarks/sharing/encoders_jax.py:bert --mesh 8x4 --set model=large
    flint capture benchmarks/sharing/encoders_jax.py:vit --mesh 8x4 --set training=false
    flint capture benchmarks/sharing/encoders_jax.py:t5 --mesh 8x8 --set model=11b

Sizes: arXiv 1810.04805, section 3; 2010.11929, table 1; 1910.10683, section 3.7. Vocabularies are
padded to a multiple of 64. Weights are bfloat16 and sharded over "model", layers are a loop.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

import flint

Arrays = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of a stack of layers."""

    dim: int
    layers: int
    heads: int
    ffn: int
    head_dim: int = 64


BASE, LARGE = Size(768, 12, 12, 3072), Size(1024, 24, 16, 4096)
BERT = {"base": BASE, "large": LARGE}
VIT = {"b16": BASE, "l16": LARGE, "h16": Size(1280, 32, 16, 5120, 80)}
T5 = {
    "base": BASE,
    "large": LARGE,
    "3b": Size(1024, 24, 32, 16_384, 128),
    "11b": Size(1024, 24, 128, 65_536, 128),
}
BERT_VOCAB, T5_VOCAB, T5_BUCKETS = 30_528, 32_128, 32
PATCH, IMAGE, CLASSES = 16, 224, 1000


def attention_weights(c: Size, prefix: str = "") -> dict[str, tuple[tuple[int, ...], P]]:
    """Projections of stacked layers, and the norm."""
    inward = (c.layers, c.dim, c.heads, c.head_dim), P(None, None, "model", None)
    found = {prefix + name: inward for name in ("q", "k", "v")}
    outward = (c.layers, c.heads, c.head_dim, c.dim), P(None, "model", None, None)
    return {**found, prefix + "o": outward, prefix + "norm": ((c.layers, c.dim), P())}


def ffn_weights(c: Size) -> dict[str, tuple[tuple[int, ...], P]]:
    """Two products and a norm of stacked layers."""
    return {
        "up": ((c.layers, c.dim, c.ffn), P(None, None, "model")),
        "down": ((c.layers, c.ffn, c.dim), P(None, "model", None)),
        "ffn_norm": ((c.layers, c.dim), P()),
    }


def layer_norm(x: Any, scale: Any) -> Any:
    """Normalise the last dimension."""
    x32 = x.astype(jnp.float32)
    centred = x32 - x32.mean(-1, keepdims=True)
    scaled = centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-6)
    return scaled.astype(x.dtype) * scale


def rms_norm(x: Any, scale: Any) -> Any:
    """Divide by the root of the mean square."""
    squares = jnp.square(x.astype(jnp.float32)).mean(-1, keepdims=True)
    return (x * jax.lax.rsqrt(squares + 1e-6)).astype(x.dtype) * scale


def attend(x: Any, memory: Any, p: Arrays, prefix: str = "", bias: Any = None) -> Any:
    """Attention of x to memory, written out, with a bias added to scores."""
    q, k, v = (
        jnp.einsum("bsd,dhk->bshk", source, p[prefix + name])
        for name, source in (("q", x), ("k", memory), ("v", memory))
    )
    scores = jnp.einsum("bqhk,bshk->bhqs", q, k).astype(jnp.float32) / math.sqrt(q.shape[-1])
    scores = scores if bias is None else scores + bias
    weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
    return jnp.einsum("bqhk,hkd->bqd", jnp.einsum("bhqs,bshk->bqhk", weights, v), p[prefix + "o"])


def bert_layer(x: Any, p: Arrays) -> Any:
    """Norms after the sublayers."""
    x = layer_norm(x + attend(x, x, p), p["norm"])
    return layer_norm(x + jax.nn.gelu(x @ p["up"]) @ p["down"], p["ffn_norm"])


def vit_layer(x: Any, p: Arrays) -> Any:
    """Norms before the sublayers."""
    normed = layer_norm(x, p["norm"])
    x = x + attend(normed, normed, p)
    return x + jax.nn.gelu(layer_norm(x, p["ffn_norm"]) @ p["up"]) @ p["down"]


def t5_layer(x: Any, p: Arrays, memory: Any, bias: Any) -> Any:
    """RMS norms, a bias by distance, ReLU; a decoder's layer also reads the encoder's result."""
    normed = rms_norm(x, p["norm"])
    x = x + attend(normed, normed, p, bias=bias)
    if memory is not None:
        x = x + attend(rms_norm(x, p["cross_norm"]), memory, p, "cross_")
    return x + jax.nn.relu(rms_norm(x, p["ffn_norm"]) @ p["up"]) @ p["down"]


def stacked(layer: Callable[..., Any], x: Any, layers: Arrays) -> Any:
    """All layers, one after the other, recomputed in the backward pass."""
    x, _ = jax.lax.scan(lambda y, p: (jax.checkpoint(layer)(y, p), None), x, layers)
    return x


def cross_entropy(logits: Any, targets: Any) -> Any:
    """The mean over all targets."""
    logs = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.take_along_axis(logs, targets[..., None], axis=-1).mean()


def bert_logits(params: Arrays, tokens: Any) -> Any:
    """Words of a masked text."""
    x = params["embed"][tokens] + params["positions"]
    x = stacked(bert_layer, layer_norm(x, params["embed_norm"]), params["layers"])
    return layer_norm(jax.nn.gelu(x @ params["head"]), params["head_norm"]) @ params["embed"].T


def vit_logits(params: Arrays, images: Any) -> Any:
    """Classes of images, of patches' mean."""
    n, side = images.shape[0], IMAGE // PATCH
    patches = images.reshape(n, side, PATCH, side, PATCH, 3).transpose(0, 1, 3, 2, 4, 5)
    x = patches.reshape(n, side * side, -1) @ params["patches"] + params["positions"]
    x = stacked(vit_layer, x, params["layers"])
    return layer_norm(x, params["head_norm"]).mean(1) @ params["head"]


def distance_bias(table: Any, length: int, *, both: bool) -> Any:
    """T5's bias: a learned number for each head and bucket of distances, logarithmic from 8 on."""
    away = jnp.arange(length)[None, :] - jnp.arange(length)[:, None]
    far = 8 + (jnp.log(jnp.maximum(jnp.abs(away), 1) / 8.0) / math.log(16) * 8).astype(jnp.int32)
    bucket = jnp.where(jnp.abs(away) < 8, jnp.abs(away), jnp.minimum(far, 15))
    bias = table[bucket + jnp.where(away > 0, 16, 0)].transpose(2, 0, 1)[None]
    return bias if both else jnp.where(away > 0, -1e9, bias)


def t5_logits(params: Arrays, tokens: Any) -> Any:
    """The decoder's words; it reads the first half of the tokens, the encoder the rest."""
    length = tokens.shape[1] // 2
    embed = params["embed"]
    encode = functools.partial(
        t5_layer, memory=None, bias=distance_bias(params["near"], length, both=True)
    )
    memory = stacked(encode, embed[tokens[:, length:]], params["encoder"])
    memory = rms_norm(memory, params["encoder_norm"])
    bias = distance_bias(params["before"], length, both=False)
    decode = functools.partial(t5_layer, memory=memory, bias=bias)
    x = stacked(decode, embed[tokens[:, :length]], params["layers"])
    return rms_norm(x, params["head_norm"]) @ embed.T


def train_step(logits: Callable[..., Any], params: Arrays, moments: Any, x: Any, y: Any) -> Any:
    """A loss, its gradients, and Adam without corrections."""
    loss, gradients = jax.value_and_grad(lambda p: cross_entropy(logits(p, x), y))(params)
    m = jax.tree.map(lambda a, g: 0.9 * a + 0.1 * g, moments[0], gradients)
    v = jax.tree.map(lambda a, g: 0.99 * a + 0.01 * jnp.square(g), moments[1], gradients)
    update = lambda p, a, b: p - (1e-4 * a / (jnp.sqrt(b) + 1e-8)).astype(p.dtype)
    return jax.tree.map(update, params, m, v), (m, v), loss


def _abstract(mesh: AbstractMesh, tree: Any, dtype: Any) -> Any:
    def one(entry: tuple[tuple[int, ...], P]) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(entry[0], dtype, sharding=NamedSharding(mesh, entry[1]))

    return jax.tree.map(one, tree, is_leaf=lambda e: isinstance(e, tuple))


def step(
    mesh: AbstractMesh, logits: Callable[..., Any], weights: Any, inputs: Any, *, training: bool
) -> flint.Step:
    """A step of a model with such weights; `inputs` are arrays' shapes, and types."""
    x, y = (_abstract(mesh, (shape, P("data")), dtype) for shape, dtype in inputs)
    params = _abstract(mesh, weights, jnp.bfloat16)
    if not training:
        return flint.Step(logits, (params, x))
    moments = (_abstract(mesh, weights, jnp.float32),) * 2
    args = (params, moments, x, y)
    return flint.Step(functools.partial(train_step, logits), args, donate_argnums=(0, 1))


@flint.entry(axes=("data", "model"), default=True)
def bert(mesh: AbstractMesh, *, model: str = "base", training: bool = True) -> flint.Step:
    """Masked words of 16 texts of 512 tokens on each position of "data"."""
    c, batch = BERT[model], 16 * mesh.shape["data"]
    weights = {
        "embed": ((BERT_VOCAB, c.dim), P(None, "model")),
        "positions": ((512, c.dim), P()),
        "layers": attention_weights(c) | ffn_weights(c),
        "embed_norm": ((c.dim,), P()),
        "head": ((c.dim, c.dim), P(None, "model")),
        "head_norm": ((c.dim,), P()),
    }
    inputs = (((batch, 512), jnp.int32), ((batch, 512), jnp.int32))
    return step(mesh, bert_logits, weights, inputs, training=training)


@flint.entry(axes=("data", "model"))
def vit(mesh: AbstractMesh, *, model: str = "b16", training: bool = True) -> flint.Step:
    """Classes of 32 images of 224 x 224 on each position of "data"."""
    c, batch = VIT[model], 32 * mesh.shape["data"]
    weights = {
        "patches": ((3 * PATCH**2, c.dim), P(None, "model")),
        "positions": (((IMAGE // PATCH) ** 2, c.dim), P()),
        "layers": attention_weights(c) | ffn_weights(c),
        "head_norm": ((c.dim,), P()),
        "head": ((c.dim, CLASSES), P(None, "model")),
    }
    inputs = (((batch, IMAGE, IMAGE, 3), jnp.bfloat16), ((batch,), jnp.int32))
    return step(mesh, vit_logits, weights, inputs, training=training)


@flint.entry(axes=("data", "model"))
def t5(mesh: AbstractMesh, *, model: str = "base", training: bool = True) -> flint.Step:
    """Texts of 512 tokens from texts of 512, eight on each position of "data"."""
    c, batch = T5[model], 8 * mesh.shape["data"]
    weights = {
        "embed": ((T5_VOCAB, c.dim), P(None, "model")),
        "near": ((T5_BUCKETS, c.heads), P()),
        "before": ((T5_BUCKETS, c.heads), P()),
        "encoder": attention_weights(c) | ffn_weights(c),
        "encoder_norm": ((c.dim,), P()),
        "layers": attention_weights(c) | attention_weights(c, "cross_") | ffn_weights(c),
        "head_norm": ((c.dim,), P()),
    }
    inputs = (((batch, 1024), jnp.int32), ((batch, 512), jnp.int32))
    return step(mesh, t5_logits, weights, inputs, training=training)
