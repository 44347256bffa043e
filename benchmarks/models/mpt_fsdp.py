"""MPT as LLM Foundry trained it in 2023: fully sharded data parallelism, flash attention.

    flint capture benchmarks/models/mpt_fsdp.py --mesh 8 --set model=7b --set micro_batch=6

Sizes follow from the numbers of parameters that LLM Foundry's benchmark table lists. Learned
positions, biases everywhere, no dropout. Parameters are float32 and sharded over all ranks; a layer
gathers them in bfloat16 for its forward pass and once more for its backward pass, and reduces and
scatters its gradients for every microbatch: PyTorch's FSDP with FULL_SHARD, which makes one flat
array of each layer's parameters. Hence the program is written for one rank (shard_map).

    recompute   activation checkpointing of whole layers, as torch.utils.checkpoint does it: all of
                the forward pass is done again
    accumulate  microbatches of `micro_batch` sequences in a step
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

import flint

AXIS = "data"


@dataclasses.dataclass(frozen=True)
class Mpt:
    """A model, and how a step of it is run; see the module."""

    hidden: int
    layers: int
    heads: int
    seq: int = 2048
    vocab: int = 50_368
    micro_batch: int = 1
    accumulate: int = 1
    recompute: bool = False


SIZES = {
    "125m": (768, 12, 12),
    "350m": (1024, 24, 16),
    "760m": (1536, 24, 12),
    "1b": (2048, 24, 16),
    "3b": (2560, 32, 20),
    "7b": (4096, 32, 32),
    "13b": (5120, 40, 40),
    "30b": (7168, 48, 56),
    "70b": (8192, 80, 64),
    "175b": (12_288, 96, 96),
}
Shapes = dict[str, tuple[int, ...]]


def layer_shapes(c: Mpt) -> Shapes:
    d = c.hidden
    return {
        "qkv": (d, 3 * d), "out": (d, d), "up": (d, 4 * d), "down": (4 * d, d),
        "qkv_bias": (3 * d,), "out_bias": (d,), "up_bias": (4 * d,), "down_bias": (d,),
        "scale1": (d,), "bias1": (d,), "scale2": (d,), "bias2": (d,),
    }  # fmt: skip


def root_shapes(c: Mpt) -> Shapes:
    d = c.hidden
    return {"table": (c.vocab, d), "positions": (c.seq, d), "scale": (d,), "bias": (d,)}


def flat_size(shapes: Shapes, ranks: int) -> int:
    """Elements of a flat parameter, padded so that all ranks have as many."""
    return math.ceil(sum(map(math.prod, shapes.values())) / ranks) * ranks


def gathered(flat: jax.Array, shapes: Shapes) -> dict[str, jax.Array]:
    """The parameters that a shard of a flat one is of; gradients are reduced and scattered.

    The shard is cast each time, as FSDP does it on its stream for copies, and not kept.
    """
    edges = [*itertools.accumulate(map(math.prod, shapes.values()))]
    parts = jnp.split(jax.lax.all_gather(flat.astype(jnp.bfloat16), AXIS, tiled=True), edges)
    return {n: part.reshape(s) for (n, s), part in zip(shapes.items(), parts, strict=False)}


@jax.custom_vjp
def needed_again(x: jax.Array) -> jax.Array:
    """x; where it is recomputed, all of what leads to it is, although no gradient needs it."""
    return x


def _needed_forward(x: jax.Array):
    return x, x


def _needed_backward(x: jax.Array, gradient: jax.Array):
    return (gradient + 0 * x,)


needed_again.defvjp(_needed_forward, _needed_backward)


@jax.custom_vjp
def cross_entropy(logits: jax.Array, tokens: jax.Array) -> jax.Array:
    """The mean loss, as flash-attn's kernels have it (LLM Foundry's `fused_crossentropy`): logits
    and their gradient stay in bfloat16, and the backward pass reads the logits again."""
    return _entropy(logits, tokens)[0]


def _entropy(logits: jax.Array, tokens: jax.Array):
    wide = logits.astype(jnp.float32)
    total = jax.nn.logsumexp(wide, axis=-1)
    target_logit = jnp.take_along_axis(logits, tokens[..., None], axis=-1)[..., 0]
    return jnp.mean(total - target_logit.astype(jnp.float32)), (logits, total, tokens)


def _entropy_backward(saved, gradient: jax.Array):
    logits, total, tokens = saved
    weights = jnp.exp(logits.astype(jnp.float32) - total[..., None])
    target = tokens[..., None] == jnp.arange(logits.shape[-1])
    return ((weights - target) * (gradient / tokens.size)).astype(logits.dtype), None


cross_entropy.defvjp(_entropy, _entropy_backward)


def metrics(logits: jax.Array, tokens: jax.Array) -> jax.Array:
    """Composer's cross entropy and perplexity of each microbatch (LLM Foundry's
    `use_train_metrics`, its default): PyTorch's, of all logits, each a kernel of its own."""
    found = []
    for name in ("cross_entropy", "perplexity"):
        logits = jax.lax.optimization_barrier(logits)  # else one log-softmax would do for both
        with jax.named_scope(f"kernel.{name}"):
            log_softmax = jax.nn.log_softmax(logits.astype(jnp.float32)).astype(logits.dtype)
        picked = jnp.take_along_axis(log_softmax, tokens[..., None], axis=-1)
        found.append(-jnp.sum(picked.astype(jnp.float32)))
    return jnp.stack(found)


def layer_norm(x, scale, bias):
    x32 = x.astype(jnp.float32)
    x32 -= jnp.mean(x32, axis=-1, keepdims=True)
    x32 *= jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + 1e-5)
    return x32.astype(x.dtype) * scale + bias


def layer(x, flat, *, c: Mpt):
    batch = x.shape[0]
    p = gathered(flat, layer_shapes(c))
    with jax.named_scope("attention"):
        y = checkpoint_name(layer_norm(x, p["scale1"], p["bias1"]), "norm")
        qkv = checkpoint_name(jnp.einsum("bsd,de->bse", y, p["qkv"]) + p["qkv_bias"], "qkv")
        q, k, v = jnp.split(qkv.reshape(batch, c.seq, 3 * c.heads, -1), 3, axis=2)
        out = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")
        out = out.reshape(batch, c.seq, c.hidden)
        x = x + (jnp.einsum("bsd,de->bse", out, p["out"]) + p["out_bias"])
        x = checkpoint_name(x, "middle")
    with jax.named_scope("mlp"):
        y = checkpoint_name(layer_norm(x, p["scale2"], p["bias2"]), "norm")
        up = checkpoint_name(jnp.einsum("bsd,df->bsf", y, p["up"]) + p["up_bias"], "up")
        up = checkpoint_name(jax.nn.gelu(up, approximate=False), "gelu")
        return x + (jnp.einsum("bsf,fd->bsd", up, p["down"]) + p["down_bias"])


def kept(primitive, *_, **options) -> bool:
    """What PyTorch keeps of a layer: what attention returns, and the operands of other products."""
    if primitive.name == "name":
        return options["name"] in ("norm", "qkv", "middle", "up", "gelu")
    return "attention" in primitive.name


def loss_fn(params, tokens, *, c: Mpt):
    block = functools.partial(layer, c=c)
    if c.recompute:
        once = block
        block = jax.checkpoint(
            lambda x, p: needed_again(once(x, p)), policy=jax.checkpoint_policies.nothing_saveable
        )
    else:
        block = jax.checkpoint(block, policy=kept)
    root = gathered(params["root"], root_shapes(c))
    with jax.named_scope("embed"):
        x = root["table"][tokens] + root["positions"]
    with jax.named_scope("layers"):
        block = jax.jit(block)  # traced and lowered once; PyTorch runs layer after layer, no loop
        for flat in params["layers"]:
            x = block(x, flat)
    with jax.named_scope("head"):
        x = layer_norm(x, root["scale"], root["bias"])
        logits = jnp.einsum("bsd,vd->bsv", x, root["table"])
    with jax.named_scope("loss"):
        return cross_entropy(logits, tokens), jax.lax.stop_gradient(logits)


@jax.jit
def adamw(p, g, m, v, count, rate=1e-4, b1=0.9, b2=0.95, epsilon=1e-8, decay=1e-5):
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * jnp.square(g)
    update = (m / (1 - b1**count)) / (jnp.sqrt(v / (1 - b2**count)) + epsilon)
    return p - rate * update - decay * p, m, v


def train_step(params, moments, count, tokens, *, c: Mpt):
    """What one rank does."""

    def gradient(tokens):
        found = jax.value_and_grad(functools.partial(loss_fn, c=c), has_aux=True)(params, tokens)
        (loss, logits), gradients = found
        # Composer measures when the backward pass has ended: with the gradient of the embedding
        logits, last = jax.lax.optimization_barrier((logits, gradients["root"]))
        with jax.named_scope("metrics"):
            told = metrics(logits, tokens)
        return (loss, told), gradients | {"root": last}

    def microbatch(total, tokens):
        told, gradients = gradient(tokens)
        return jax.tree.map(lambda t, g: t + g.astype(jnp.float32), total, gradients), told

    if c.accumulate > 1:
        zeros = jax.tree.map(jnp.zeros_like, params)
        gradients, (loss, told) = jax.lax.scan(microbatch, zeros, tokens)
    else:
        (loss, told), gradients = gradient(tokens[0])
        gradients = jax.tree.map(lambda g: g.astype(jnp.float32), gradients)
    with jax.named_scope("optimizer"):
        squares = sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(gradients))
        norm = jnp.sqrt(jax.lax.psum(squares, AXIS))
        scale = jnp.minimum(1.0, 1.0 / (norm + 1e-6))
        count = count + 1
        new = jax.tree.map(
            lambda p, g, m, v: adamw(p, g * scale, m, v, count.astype(jnp.float32)),
            params, gradients, moments["m"], moments["v"],
        )  # fmt: skip
        params, m, v = jax.tree.transpose(jax.tree.structure(params), None, new)
    loss = jax.lax.pmean(jnp.mean(loss), AXIS)
    return params, {"m": m, "v": v}, count, loss, jnp.sum(told.reshape(-1, 2), axis=0)


def step(mesh: AbstractMesh, c: Mpt) -> flint.Step:
    """One training step on accumulate * micro_batch sequences for each rank of the axis."""
    ranks = mesh.shape[AXIS]

    def abstract(shape, dtype, spec):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    def flat(shapes):
        return abstract((flat_size(shapes, ranks),), jnp.float32, P(AXIS))

    params = {"root": flat(root_shapes(c)), "layers": [flat(layer_shapes(c))] * c.layers}
    specs = {"root": P(AXIS), "layers": [P(AXIS)] * c.layers}
    tokens = abstract((c.accumulate, c.micro_batch * ranks, c.seq), jnp.int32, P(None, AXIS, None))
    moments = {"m": specs, "v": specs}
    run = jax.shard_map(
        functools.partial(train_step, c=c),
        mesh=mesh,
        in_specs=(specs, moments, P(), P(None, AXIS, None)),
        out_specs=(specs, moments, P(), P(), P(AXIS)),
        check_vma=False,
    )
    args = (params, {"m": params, "v": params}, abstract((), jnp.int32, P()), tokens)
    return flint.Step(run, args, donate_argnums=(0, 1, 2), name=f"mpt-{c.hidden}x{c.layers}")


@flint.entry(axes=(AXIS,))
def train(
    mesh: AbstractMesh,
    *,
    model: str = "7b",
    seq: int = 2048,
    micro_batch: int = 1,
    accumulate: int = 1,
    recompute: bool = False,
) -> flint.Step:
    """The step of one of LLM Foundry's sizes."""
    if model not in SIZES:
        raise ValueError(f"model is one of {', '.join(SIZES)}")
    hidden, layers, heads = SIZES[model]
    config = Mpt(
        hidden, layers, heads, seq, micro_batch=micro_batch, accumulate=accumulate,
        recompute=recompute,
    )  # fmt: skip
    return step(mesh, config)
