"""Llama as Megatron-core trains it with Transformer Engine: fused kernels, cuDNN's attention.

    flint capture benchmarks/models/llama_megatron.py --mesh pipe=1,data=1,model=8 \\
        --set model=llama3-70b --set microbatches=16
    flint estimate program -c b200-dgx --stack megatron

What is where is as in gpt_megatron.py, which has the collectives, the optimizer and most kernels:
weights over "model", what lies between blocks over the sequence, 1F1B over "pipe". Here attention is
one kernel, the three projections into it are one product, so are the gate and the up projection;
norms are RMS norms, rotary embedding, SwiGLU and the addition at the end of a block are kernels of
their own (Transformer Engine's and Megatron-core's). No dropout, no biases. Gradients of weights are
added in 32 bits by the product's kernel (`gradient_accumulation_fusion`).

    recompute   none; activations: rotary embedding and SwiGLU are done again; mlp: all from the norm
                before it to its last product; full: whole layers, which keep their input alone
    distributed_optimizer   each rank of "data" updates its part of the weights, and all gather what
                came of it, as with Megatron-core's option of that name; that reduces and scatters the
                gradients, pipelines here all-reduce them
    Sizes: arXiv 2407.21783, table 3.
"""

from __future__ import annotations

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

import flint
from benchmarks.models.gpt_megatron import (
    Layout,
    adam_init,
    adam_update,
    column_linear,
    cross_entropy,
    kernel,
    needed_again,
)
from benchmarks.models.llama_size import LlamaSize

EPSILON = 1e-5
#: What the backward pass finds of a layer, beside its input, by what is done again.
KEPT = {
    "none": ("inverse", "qkv", "rotated", "context", "middle", "gate_up", "activated"),
    "activations": ("inverse", "qkv", "context", "middle", "gate_up"),
    "mlp": ("inverse", "qkv", "rotated", "context", "middle"),
    "full": (),
}


@dataclasses.dataclass(frozen=True)
class Llama(LlamaSize):
    """A model, and how a step of it is run; see the module."""

    microbatches: int = 1
    chunks: int = 1
    recompute: str = "none"
    distributed_optimizer: bool = False


SIZES = {
    "llama3-8b": Llama(),
    "llama3-70b": Llama(hidden=8192, layers=80, heads=64, ffn=28_672),
    "llama3-405b": Llama(hidden=16_384, layers=126, heads=128, ffn=53_248),
}


def layer_params(c: Llama, at: Layout):
    groups = (c.kv_heads, c.heads // c.kv_heads + 2, c.head_dim)  # queries of a key, key, value
    return {
        "norm1": at.abstract((c.hidden,)),
        "qkv": at.abstract((c.hidden, *groups), None, "model", None, None),
        "out": at.abstract((c.heads, c.head_dim, c.hidden), "model", None, None),
        "norm2": at.abstract((c.hidden,)),
        "gate_up": at.abstract((c.hidden, 2, c.ffn), None, None, "model"),
        "down": at.abstract((c.ffn, c.hidden), "model", None),
    }


@jax.custom_vjp
def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """A kernel forward and one backward."""
    return _norm_forward(x, scale)[0]


def _norm_forward(x: jax.Array, scale: jax.Array):
    with kernel("norm"):
        x32 = x.astype(jnp.float32)
        inverse = jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + EPSILON)
        inverse = checkpoint_name(inverse, "inverse")
        y = (x32 * inverse).astype(x.dtype) * scale
    return y, (x, scale, inverse)


def _norm_backward(kept, gradient: jax.Array):
    x, scale, inverse = kept
    with kernel("norm_backward"):
        y, g = x.astype(jnp.float32) * inverse, gradient.astype(jnp.float32)
        d_scale = jnp.sum(g * y, axis=tuple(range(x.ndim - 1)))
        g *= scale
        d_x = (g - y * jnp.mean(g * y, axis=-1, keepdims=True)) * inverse
        return d_x.astype(x.dtype), d_scale.astype(scale.dtype)


rms_norm.defvjp(_norm_forward, _norm_backward)


def _turned(x: jax.Array, sign: float) -> jax.Array:
    seq, head_dim = x.shape[1], x.shape[3]
    frequency = 500_000.0 ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    angle = sign * jnp.arange(seq, dtype=jnp.float32)[:, None, None] * frequency
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


@jax.custom_vjp
def rotary(x: jax.Array) -> jax.Array:
    """Megatron-core's fused rotary embedding: turned back, it is its own gradient."""
    with kernel("rotary"):
        return _turned(x, 1.0)


def _rotary_backward(_, gradient: jax.Array):
    with kernel("rotary_backward"):
        return (_turned(gradient, -1.0),)


rotary.defvjp(lambda x: (rotary(x), None), _rotary_backward)


@jax.custom_vjp
def swiglu(x: jax.Array) -> jax.Array:
    """The gate's SiLU times the other half, of (..., 2, ffn); backward from the input alone."""
    with kernel("swiglu"):
        return jax.nn.silu(x[..., 0, :]) * x[..., 1, :]


def _swiglu_backward(x: jax.Array, gradient: jax.Array):
    with kernel("swiglu_backward"):
        gate, up = x[..., 0, :].astype(jnp.float32), x[..., 1, :].astype(jnp.float32)
        g, sigmoid = gradient.astype(jnp.float32), jax.nn.sigmoid(gate)
        slope = sigmoid * (1 + gate * (1 - sigmoid))
        return (jnp.stack([g * up * slope, g * gate * sigmoid], axis=-2).astype(x.dtype),)


swiglu.defvjp(lambda x: (swiglu(x), x), _swiglu_backward)


def added(x: jax.Array, residual: jax.Array) -> jax.Array:
    """How a block ends."""
    with kernel("add"):
        return residual + x


def attention(x, p, c: Llama, at: Layout):
    y = rms_norm(x, p["norm1"])
    qkv = column_linear(y, p["qkv"], "bsd,dgrk->bsgrk", at)
    qkv = checkpoint_name(at.constrain(qkv, None, "model", None, None), "qkv")
    shape = (*qkv.shape[:2], c.heads, c.head_dim)
    q = rotary(at.constrain(qkv[..., :-2, :].reshape(shape), None, "model", None))
    k = rotary(at.constrain(qkv[..., -2, :], None, "model", None))
    q, k = checkpoint_name(q, "rotated"), checkpoint_name(k, "rotated")
    v = at.constrain(qkv[..., -1, :], None, "model", None)
    out = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")
    out = checkpoint_name(at.constrain(out, None, "model", None), "context")
    return at.residual(jnp.einsum("bshk,hkd->bsd", out, p["out"]))


def mlp(x, p, at: Layout):
    y = rms_norm(x, p["norm2"])
    gate_up = column_linear(y, p["gate_up"], "bsd,dcf->bscf", at)
    gate_up = checkpoint_name(at.constrain(gate_up, None, None, "model"), "gate_up")
    middle = checkpoint_name(swiglu(gate_up), "activated")
    return at.residual(jnp.einsum("bsf,fd->bsd", middle, p["down"]))


def layer(p, x, *, c: Llama, at: Layout):
    """One Transformer layer."""
    with jax.named_scope("attention"):
        x = checkpoint_name(added(attention(x, p, c, at), x), "middle")
    with jax.named_scope("mlp"):
        again = needed_again if c.recompute == "mlp" else lambda x: x
        x = added(again(mlp(x, p, at)), x)
        return needed_again(x) if c.recompute == "full" else x


def is_kept(primitive, *_, c: Llama, **options) -> bool:
    """What the backward pass finds; of attention, all that its kernel returns."""
    if c.recompute == "full":
        return False
    if primitive.name == "name":
        return options["name"] in KEPT[c.recompute]
    return "attention" in primitive.name


def embed(p, tokens, *, at: Layout):
    with jax.named_scope("embed"):
        return at.residual(at.constrain(p["table"][tokens], None, None))


def head(p, x, *, at: Layout):
    with jax.named_scope("head"):
        x = rms_norm(at.residual(x), p["scale"])
        return at.constrain(column_linear(x, p["table"], "bsd,vd->bsv", at), None, "model")


def pinned(tree, at: Layout, c: Llama, *, over_data: bool):
    """Arrays of the form of the weights, sharded as these are, and over "data" if that is asked.

    Every weight has one dimension of the model's width, and that is never over "model".
    """
    layer, vocabulary = layer_params(c, at), P("model", None)
    specs = {name: weight.sharding.spec for name, weight in layer.items()}
    specs |= {"table": vocabulary, "scale": P()}

    def pin(path, x):
        spec = specs[re.findall(r"\w+", path[-1].key)[-1]]  # of a stage: "params['layers']['qkv']"
        width = x.shape.index(c.hidden, x.ndim - max(len(spec), 1))
        axes = [*(None,) * (x.ndim - len(spec)), *spec]
        axes[width] = "data" if over_data else axes[width]
        sharding = NamedSharding(at.mesh, P(*axes))
        if isinstance(x, jax.ShapeDtypeStruct):
            return x.update(sharding=sharding)
        return jax.lax.with_sharding_constraint(x, sharding)

    return jax.tree_util.tree_map_with_path(pin, tree)


def scattered(at: Layout, c: Llama):
    """Megatron's distributed optimizer: what `Pipeline(optimizer=)` takes."""

    def init(params):
        def state():
            whole = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, jnp.float32), params)
            return pinned(whole, at, c, over_data=True)

        return {
            "master": state(), "m": state(), "v": state(), "count": jnp.zeros((), jnp.int32),
        }  # fmt: skip

    def update(params, gradients, state):
        mine, theirs = (pinned(t, at, c, over_data=True) for t in (params, gradients))
        new, state = adam_update(mine, theirs, state)
        held = {n: pinned(state[n], at, c, over_data=True) for n in ("master", "m", "v")}
        return pinned(new, at, c, over_data=False), held | {"count": state["count"]}

    return init, update


def step(mesh: AbstractMesh, c: Llama) -> flint.Pipeline:
    """One training step of `c` on microbatches * micro_batch sequences for each data rank."""
    at = Layout(mesh, "model")
    batch = c.microbatches * c.micro_batch * mesh.shape["data"]
    tokens = at.abstract((batch, c.seq), "data", None, dtype=jnp.int32)
    table = at.abstract((c.vocab, c.hidden), "model", None)
    block = jax.checkpoint(
        functools.partial(layer, c=c, at=at), policy=functools.partial(is_kept, c=c)
    )
    return flint.Pipeline(
        stages=[
            flint.Stage(functools.partial(embed, at=at), {"table": table}, "embed"),
            flint.Layers(block, layer_params(c, at), c.layers, ends=at.residual),
            flint.Stage(
                functools.partial(head, at=at),
                {"scale": at.abstract((c.hidden,)), "table": table},
                "head",
            ),
        ],
        inputs=(tokens,),
        targets=(tokens,),
        loss=cross_entropy,
        microbatches=c.microbatches,
        schedule="interleaved-1f1b" if c.chunks > 1 else "1f1b",
        chunks=c.chunks,
        boundary=P("data", "model", None),
        optimizer=scattered(at, c) if c.distributed_optimizer else (adam_init, adam_update),
        clip_norm=1.0,
        gradient_dtype="float32",
        name=f"llama-{c.hidden}x{c.layers}",
    )


@flint.entry(axes=("pipe", "data", "model"))
def train(
    mesh: AbstractMesh,
    *,
    model: str = "llama3-8b",
    num_layers: int = 0,
    seq: int = 8192,
    micro_batch: int = 1,
    microbatches: int = 8,
    chunks: int = 1,
    recompute: str = "none",
    distributed_optimizer: bool = False,
) -> flint.Pipeline:
    """The step of one of the sizes, with another number of layers if that is not 0."""
    if model not in SIZES or recompute not in KEPT:
        raise ValueError(f"model is {' or '.join(SIZES)}, recompute {', '.join(KEPT)}")
    config = dataclasses.replace(
        SIZES[model], layers=num_layers or SIZES[model].layers, seq=seq, micro_batch=micro_batch,
        microbatches=microbatches, chunks=chunks, recompute=recompute,
        distributed_optimizer=distributed_optimizer,
    )  # fmt: skip
    return step(mesh, config)
