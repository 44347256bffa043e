"""Llama under fully sharded data parallelism, as torchtitan (FSDP2) and MaxText train it.

    flint capture benchmarks/models/llama_fsdp.py --mesh 8 --set micro_batch=2
    flint capture benchmarks/models/llama_fsdp.py --mesh 256 --set kept=maxtext --set micro_batch=4

Parameters are float32, sharded over all ranks, and gathered in bfloat16 for each layer and pass;
gradients are reduced in float32 and scattered. The program is written for one rank (shard_map),
attention is one kernel. Sizes: arXiv 2407.21783, table 3, and arXiv 2310.06825, table 1.

    kept    what the backward pass of a layer finds; it computes all else again
            titan: torchtitan's selective checkpointing by operator: attention, and of the products
            of matrices each second one (wq, wv, the gate and the last, which nothing reads)
            titan-eager: the same without a compiler, which keeps the last one too
            maxtext: the layer's input, queries, keys, values and the output projection, which the
            "custom" policy of its recipes offloads to the host
            none: nothing but the layer's input
    scan    the layers as a loop, as MaxText has them; PyTorch runs one after the other
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
from benchmarks.models.llama_size import LlamaSize

AXIS = "data"
KEPT = {
    "titan": ("query", "value", "attention", "gate"),
    "titan-eager": ("query", "value", "attention", "gate", "down"),
    "maxtext": ("input", "query", "key", "value", "out"),
    "none": (),
}
#: Of which the backward pass finds it on the host.
OFFLOADED = ("maxtext",)


@dataclasses.dataclass(frozen=True)
class Llama(LlamaSize):
    """A model, and how a step of it is run; see the module."""

    kept: str = "titan"
    scan: bool = False


SIZES = {
    "llama3.1-8b": Llama(),
    "mistral-7b": Llama(vocab=32_000),
}
Shapes = dict[str, tuple[int, ...]]
#: A shard of parameters, and the same in bfloat16.
Flat = tuple[jax.Array, jax.Array]


def layer_shapes(c: Llama) -> Shapes:
    d, f, kv = c.hidden, c.ffn, c.kv_heads * c.head_dim
    return {
        "wq": (d, d), "wk": (d, kv), "wv": (d, kv), "wo": (d, d),
        "gate": (d, f), "up": (d, f), "down": (f, d), "norm1": (d,), "norm2": (d,),
    }  # fmt: skip


def root_shapes(c: Llama) -> Shapes:
    return {"table": (c.vocab, c.hidden), "norm": (c.hidden,), "head": (c.hidden, c.vocab)}


def flat_size(shapes: Shapes, ranks: int) -> int:
    """Elements of a flat parameter, padded so that all ranks have as many."""
    return math.ceil(sum(map(math.prod, shapes.values())) / ranks) * ranks


def gathered(flat: Flat, shapes: Shapes) -> dict[str, jax.Array]:
    """The parameters that a shard of a flat one is of; the reverse, in float32, for gradients."""

    def whole(flat):
        return jax.lax.all_gather(flat[1], AXIS, tiled=True)

    def forward(flat):
        return whole(flat), None

    def backward(_, gradient):
        part = jax.lax.psum_scatter(gradient.astype(jnp.float32), AXIS, tiled=True)
        return ((part, None),)

    gather = jax.custom_vjp(whole)
    gather.defvjp(forward, backward)
    edges = [*itertools.accumulate(map(math.prod, shapes.values()))]
    parts = jnp.split(gather(flat), edges)
    return {n: part.reshape(s) for (n, s), part in zip(shapes.items(), parts, strict=False)}


def rms_norm(x, scale):
    x32 = x.astype(jnp.float32)
    x32 *= jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + 1e-5)
    return x32.astype(x.dtype) * scale


def rotary(x):
    seq, head_dim = x.shape[1], x.shape[3]
    frequency = 500_000.0 ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    angle = jnp.arange(seq, dtype=jnp.float32)[:, None] * frequency
    cos, sin = jnp.cos(angle)[:, None, :], jnp.sin(angle)[:, None, :]
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def attention(x, p, c: Llama):
    def project(name, weight, heads):
        y = checkpoint_name(jnp.einsum("bsd,de->bse", x, weight), name)
        return y.reshape(*x.shape[:2], heads, c.head_dim)

    q = rotary(project("query", p["wq"], c.heads))
    k = rotary(project("key", p["wk"], c.kv_heads))
    v = project("value", p["wv"], c.kv_heads)
    out = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")
    out = checkpoint_name(out, "attention").reshape(x.shape)
    return checkpoint_name(jnp.einsum("bsd,de->bse", out, p["wo"]), "out")


@jax.custom_vjp
def held(x: jax.Array) -> jax.Array:
    """x, which stays until the backward pass has come by, although nothing needs it there."""
    return x


held.defvjp(lambda x: (x, x), lambda x, gradient: (gradient + 0 * x,))


def mlp(x, p, c: Llama):
    gate = checkpoint_name(jnp.einsum("bsd,df->bsf", x, p["gate"]), "gate")
    up = checkpoint_name(jnp.einsum("bsd,df->bsf", x, p["up"]), "up")
    down = jnp.einsum("bsf,fd->bsd", jax.nn.silu(gate) * up, p["down"])
    return held(checkpoint_name(down, "down")) if "down" in KEPT[c.kept] else down


def layer(x, flat, *, c: Llama):
    p = gathered(flat, layer_shapes(c))
    x = checkpoint_name(x, "input")
    with jax.named_scope("attention"):
        x = x + attention(rms_norm(x, p["norm1"]), p, c)
    with jax.named_scope("mlp"):
        return x + mlp(rms_norm(x, p["norm2"]), p, c)


def is_kept(primitive, *_, c: Llama, **options) -> bool:
    """What the backward pass finds; of attention, all that its kernel returns."""
    if primitive.name == "name":
        return options["name"] in KEPT[c.kept]
    return "attention" in KEPT[c.kept] and "attention" in primitive.name


def policy(c: Llama):
    """What is kept of a layer, on the device or on the host."""
    if c.kept not in OFFLOADED:
        return functools.partial(is_kept, c=c)
    return jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=list(KEPT[c.kept]),
        offload_src="device",
        offload_dst="pinned_host",
    )


def loss_fn(params, tokens, *, c: Llama):
    # First of all, so that gathering waits for no layer: FSDP copies on a stream of its own.
    params = jax.tree.map(lambda w: (w, jax.lax.stop_gradient(w.astype(jnp.bfloat16))), params)
    # As MaxText has it: a scan needs no barrier to compute a layer again.
    block = jax.checkpoint(
        functools.partial(layer, c=c),
        prevent_cse=not c.scan,
        policy=policy(c),
    )
    root = gathered(params["root"], root_shapes(c))
    with jax.named_scope("embed"):
        x = root["table"][tokens]
    with jax.named_scope("layers"):
        if isinstance(params["layers"], list):
            block = jax.jit(block)  # traced and lowered once for all layers
            for flat in params["layers"]:
                x = block(x, flat)
        else:
            x, _ = jax.lax.scan(lambda x, p: (block(x, p), None), x, params["layers"])
    with jax.named_scope("head"):
        logits = jnp.einsum("bsd,dv->bsv", rms_norm(x, root["norm"]), root["head"])
    with jax.named_scope("loss"):
        logits = logits.astype(jnp.float32)
        if c.kept == "maxtext":  # its one_hot: nothing is gathered or scattered
            target = tokens[..., None] == jnp.arange(c.vocab)
            target_logit = jnp.sum(jnp.where(target, logits, 0.0), axis=-1)
        else:
            target_logit = jnp.take_along_axis(logits, tokens[..., None], axis=-1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - target_logit)


@jax.jit
def adamw(p, g, m, v, count, rate=3e-4, b1=0.9, b2=0.95, epsilon=1e-8, decay=0.1):
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * jnp.square(g)
    update = (m / (1 - b1**count)) / (jnp.sqrt(v / (1 - b2**count)) + epsilon)
    return p - rate * (update + decay * p), m, v


def train_step(params, moments, count, tokens, *, c: Llama):
    """What one rank does."""
    loss, gradients = jax.value_and_grad(functools.partial(loss_fn, c=c))(params, tokens)
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
    return params, {"m": m, "v": v}, count, jax.lax.pmean(loss, AXIS)


def step(mesh: AbstractMesh, c: Llama, platform: str = "cuda") -> flint.Step:
    """One training step on micro_batch sequences for each rank of the axis."""
    ranks = mesh.shape[AXIS]

    def abstract(shape, dtype, spec):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    layer_size = flat_size(layer_shapes(c), ranks)
    root = abstract((flat_size(root_shapes(c), ranks),), jnp.float32, P(AXIS))
    if c.scan:
        stacked = abstract((c.layers, layer_size), jnp.float32, P(None, AXIS))
        params, specs = (
            {"root": root, "layers": stacked},
            {"root": P(AXIS), "layers": P(None, AXIS)},
        )
    else:
        one = abstract((layer_size,), jnp.float32, P(AXIS))
        params = {"root": root, "layers": [one] * c.layers}
        specs = {"root": P(AXIS), "layers": [P(AXIS)] * c.layers}
    tokens = abstract((c.micro_batch * ranks, c.seq), jnp.int32, P(AXIS, None))
    moments = {"m": specs, "v": specs}
    run = jax.shard_map(
        functools.partial(train_step, c=c),
        mesh=mesh,
        in_specs=(specs, moments, P(), P(AXIS, None)),
        out_specs=(specs, moments, P(), P()),
        check_vma=False,
    )
    args = (params, {"m": params, "v": params}, abstract((), jnp.int32, P()), tokens)
    name = f"llama-{c.hidden}x{c.layers}"
    return flint.Step(run, args, donate_argnums=(0, 1, 2), platform=platform, name=name)


@flint.entry(axes=(AXIS,))
def train(
    mesh: AbstractMesh,
    *,
    model: str = "llama3.1-8b",
    seq: int = 8192,
    micro_batch: int = 1,
    kept: str = "titan",
    scan: bool = False,
) -> flint.Step:
    """The step of one of the sizes."""
    if model not in SIZES or kept not in KEPT:
        raise ValueError(f"model is {' or '.join(SIZES)}, kept {', '.join(KEPT)}")
    config = dataclasses.replace(
        SIZES[model], seq=seq, micro_batch=micro_batch, kept=kept, scan=scan
    )
    return step(mesh, config)
