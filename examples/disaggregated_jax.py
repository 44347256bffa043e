"""Llama 3 served by two pools: one prefills prompts, the other decodes, the cache goes between.

    flint capture examples/disaggregated_jax.py --mesh pool=4,data=1,model=8 -o trace
    flint capture examples/disaggregated_jax.py --mesh pool=4,data=2,model=8 --set prefill_pool=2
    flint capture examples/disaggregated_jax.py --mesh pool=2,major=2,minor=4 \\
        --set prefill_tp=major+minor --set decode_tp=minor

The first position of the axis "pool" prefills, the others decode; each position is a replica over
the other axes. Weights are tensor parallel over the axes `prefill_tp` and `decode_tp`; requests
are sharded over the inner axes that are left. Where the two differ, each part of the cache goes
straight to the devices that will read it. Keys and values of a layer are sent while the prefill
step computes the next, and decoding waits for each layer where it attends to it.

Configurations: "The Llama 3 Herd of Models" (arXiv 2407.21783), table 3. Weights are bfloat16.

    model         8b, 70b
    prefill_pool  how many positions prefill
    prefill_tp    axes of tensor parallelism, joined by "+"
    decode_tp     the same for decoding
    prompt        tokens of each prompt
    length        places in the cache of each request that is decoded
    prompts       prompts that a prefill position takes at once; 0 is one for each shard of requests
                  of each decode position that it serves
    batch         requests that a decode position decodes at once; 0 is 16 for each shard, or more
                  if more arrive
    tokens        decoded one after the other in a loop on the device
    num_layers    cuts the model short; 0 is the published depth
"""

import dataclasses
import functools
import math
from typing import Annotated

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

import flint


@dataclasses.dataclass(frozen=True)
class Config:
    dim: int
    num_layers: int
    num_heads: int
    ffn_dim: int
    num_kv_heads: int = 8
    head_dim: int = 128
    vocab: int = 128_256
    rope_theta: float = 500_000.0
    norm_eps: float = 1e-5


CONFIGS = {
    "8b": Config(dim=4096, num_layers=32, num_heads=32, ffn_dim=14_336),
    "70b": Config(dim=8192, num_layers=80, num_heads=64, ffn_dim=28_672),
}


@dataclasses.dataclass(frozen=True)
class Layout:
    """How one pool shards: `tp` axes carry heads and hidden sizes, `batch` axes requests."""

    mesh: AbstractMesh
    tp: tuple[str, ...]

    @property
    def batch(self):
        return tuple(a for a in self.mesh.axis_names if a not in (*self.tp, "pool")) or None

    @property
    def shards(self):
        """Shards of the batch."""
        return math.prod(self.mesh.shape[a] for a in self.batch or ())

    def array(self, shape, *spec, dtype=jnp.bfloat16):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(self.mesh, P(*spec)))

    def shard(self, x, *spec):
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, P(*spec)))

    def whole(self, x):
        """Activations between blocks: (batch, ..., dim), only the batch is sharded."""
        return self.shard(x, self.batch)


def rms_norm(x, scale, eps):
    x32 = x.astype(jnp.float32)
    x32 *= jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + eps)
    return x32.astype(x.dtype) * scale


def rotary(x, positions, theta):
    """x is (batch, tokens, heads, head_dim), positions (tokens,)."""
    head_dim = x.shape[-1]
    frequency = theta ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    angle = positions[:, None, None] * frequency
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def projections(x, p, positions, c: Config):
    y = rms_norm(x, p["attention_norm"], c.norm_eps)
    q, k, v = (jnp.einsum("bsd,dhk->bshk", y, p[name]) for name in ("wq", "wk", "wv"))
    return rotary(q, positions, c.rope_theta), rotary(k, positions, c.rope_theta), v


def attend(q, k, v, seen):
    """`seen` (queries, keys) says which keys a query may look at."""
    batch, queries, heads, head_dim = q.shape
    q = q.reshape(batch, queries, k.shape[2], -1, head_dim)  # query heads by the head they read
    scores = jnp.einsum("bsngk,btnk->bngst", q, k).astype(jnp.float32) * head_dim**-0.5
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e30), axis=-1).astype(q.dtype)
    return jnp.einsum("bngst,btnk->bsngk", weights, v).reshape(batch, queries, heads, head_dim)


def mlp(x, p, c: Config):
    y = rms_norm(x, p["mlp_norm"], c.norm_eps)
    hidden = jax.nn.silu(jnp.einsum("bsd,df->bsf", y, p["gate"]))
    return jnp.einsum("bsf,fd->bsd", hidden * jnp.einsum("bsd,df->bsf", y, p["up"]), p["down"])


def block(x, p, attention, layout: Layout, c: Config):
    """One layer. `attention(x)` gives its heads' outputs and the layer's cache."""
    with jax.named_scope("attention"):
        out, cache = attention(x)
        x = x + layout.whole(jnp.einsum("bshk,hkd->bsd", out, p["wo"]))
    with jax.named_scope("mlp"):
        return x + layout.whole(mlp(x, p, c)), cache


def next_token(params, x, c: Config):
    with jax.named_scope("head"):
        logits = rms_norm(x, params["norm"], c.norm_eps) @ params["head"]
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)


def prefill_step(params, prompts, *, layout: Layout, c: Config):
    """prompts (batch, tokens) to the first new token of each, and keys and values of all layers."""
    tokens = prompts.shape[1]
    positions = jnp.arange(tokens)
    causal = positions[:, None] >= positions

    def layer(x, p):
        def attention(x):
            q, k, v = projections(x, p, positions, c)
            k, v = (layout.shard(t, layout.batch, None, layout.tp) for t in (k, v))
            return attend(q, k, v, causal), {"k": k, "v": v}

        return block(x, p, attention, layout, c)

    with jax.named_scope("embed"):
        x = layout.whole(params["embed"][prompts])
    with jax.named_scope("layers"):
        x, cache = jax.lax.scan(layer, x, params["layers"])
    return next_token(params, x[:, -1], c), cache


def decode_step(params, cache, token, position, *, layout: Layout, c: Config):
    """token (batch,) at `position` to the cache with it, the next token and its position."""
    seen = jnp.arange(cache["k"].shape[2]) <= position

    def layer(x, weights_and_cache):
        p, cache = weights_and_cache

        def attention(x):
            q, *new = projections(x, p, position[None], c)
            k, v = (
                jax.lax.dynamic_update_slice_in_dim(cache[name], t, position, axis=1)
                for name, t in zip(("k", "v"), new, strict=True)
            )
            return attend(q, k, v, seen[None]), {"k": k, "v": v}

        return block(x, p, attention, layout, c)

    with jax.named_scope("embed"):
        x = layout.whole(params["embed"][token][:, None])
    with jax.named_scope("layers"):
        x, cache = jax.lax.scan(layer, x, (params["layers"], cache))
    return cache, next_token(params, x[:, 0], c), position + 1


def decode_tokens(params, cache, token, position, *, tokens: int, layout: Layout, c: Config):
    step = functools.partial(decode_step, params, layout=layout, c=c)
    if tokens == 1:
        return step(cache, token, position)
    return jax.lax.fori_loop(0, tokens, lambda _, state: step(*state), (cache, token, position))


def parameters(layout: Layout, c: Config):
    tp = layout.tp

    def stacked(shape, *spec):
        return layout.array((c.num_layers, *shape), None, *spec)

    layers = {
        "attention_norm": stacked((c.dim,)),
        "wq": stacked((c.dim, c.num_heads, c.head_dim), None, tp),
        "wk": stacked((c.dim, c.num_kv_heads, c.head_dim), None, tp),
        "wv": stacked((c.dim, c.num_kv_heads, c.head_dim), None, tp),
        "wo": stacked((c.num_heads, c.head_dim, c.dim), tp),
        "mlp_norm": stacked((c.dim,)),
        "gate": stacked((c.dim, c.ffn_dim), None, tp),
        "up": stacked((c.dim, c.ffn_dim), None, tp),
        "down": stacked((c.ffn_dim, c.dim), tp),
    }
    return {
        "embed": layout.array((c.vocab, c.dim), tp),
        "layers": layers,
        "norm": layout.array((c.dim,)),
        "head": layout.array((c.dim, c.vocab), None, tp),
    }


def make_prefill(layout: Layout, c: Config, prompts: int, prompt: int):
    tokens = layout.array((prompts, prompt), layout.batch, dtype=jnp.int32)
    step = functools.partial(prefill_step, layout=layout, c=c)
    return flint.Step(step, (parameters(layout, c), tokens), name="prefill")


def make_decode(layout: Layout, c: Config, batch: int, length: int, tokens: int):
    shape = (c.num_layers, batch, length, c.num_kv_heads, c.head_dim)
    cache = {n: layout.array(shape, None, layout.batch, None, layout.tp) for n in ("k", "v")}
    token = layout.array((batch,), layout.batch, dtype=jnp.int32)
    args = (parameters(layout, c), cache, token, layout.array((), dtype=jnp.int32))
    step = functools.partial(decode_tokens, tokens=tokens, layout=layout, c=c)
    return flint.Step(step, args, donate_argnums=(1,), name="decode")


@flint.entry(axes=("pool",))
def serve(
    mesh: AbstractMesh,
    *,
    model: str = "8b",
    prefill_pool: Annotated[int, range(1, 9)] = 1,
    prefill_tp: str = "model",
    decode_tp: str = "model",
    prompt: int = 4096,
    length: int = 8192,
    prompts: int = 0,
    batch: int = 0,
    tokens: int = 1,
    num_layers: int = 0,
) -> flint.Disaggregated:
    """One prefill step of a pool, and one decode step of another on what it is sent."""
    if model not in CONFIGS:
        raise ValueError("model is 8b or 70b")
    if not 0 < prefill_pool < mesh.shape["pool"]:
        raise ValueError(f"prefill_pool={prefill_pool}: the axis pool has {mesh.shape['pool']}")
    c = CONFIGS[model]
    c = dataclasses.replace(c, num_layers=num_layers or c.num_layers)
    prefill, decode = (Layout(mesh, tuple(tp.split("+"))) for tp in (prefill_tp, decode_tp))
    decode_pool = mesh.shape["pool"] - prefill_pool
    served = decode_pool // math.gcd(prefill_pool, decode_pool)
    prompts = prompts or served * math.lcm(prefill.shards, decode.shards)
    arriving = prompts * prefill_pool // decode_pool
    batch = batch or max(16 * decode.shards, arriving)
    return flint.Disaggregated(
        make_prefill(prefill, c, prompts, prompt),
        make_decode(decode, c, batch, length, tokens),
        caches={"result[1]['*']": "cache['*']", "result[0]": "token"},
        prefill_positions=tuple(range(prefill_pool)),
        batch_dimension={"result[1]['*']": 1, "result[0]": 0},
        length_dimension={"result[1]['*']": 2},
        name=f"llama3-{model}-disaggregated",
    )
