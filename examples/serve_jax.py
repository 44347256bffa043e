"""A pass of a serving engine: new tokens of each sequence of a batch, with the cache of those before.

    flint serve examples/serve_jax.py --mesh 1 -c h100-dgx --requests poisson:4/s,lengths=sharegpt
    flint serve examples/serve_jax.py --mesh 8 -c h200-dgx --set model=llama-70b --requests azure.csv

`flint serve` captures the entry with several values of `batch`, `new` and `context` and prices any pass
from them. Linear layers that read the same input are one product each, as in engines.
Configurations: "The Llama 3 Herd of Models" (arXiv 2407.21783), table 3; "Qwen3 Technical Report"
(arXiv 2505.09388), table 1, and the released `config.json`.

    model     llama-8b, llama-70b, qwen3-8b, qwen3-32b, qwen3-30b-a3b (128 experts, 8 for each token)
    batch     sequences
    new       tokens of each sequence that the pass computes: 1 decodes, more prefill
    context   tokens of each sequence that its cache holds before
    cache     bf16 or fp8
"""

import dataclasses
import functools

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
    head_norm: bool = False  # a norm of each query and key
    experts: int = 0  # each with `ffn_dim`; 0 is a dense layer
    chosen: int = 8  # experts of a token


QWEN3 = functools.partial(Config, vocab=151_936, rope_theta=1e6, norm_eps=1e-6, head_norm=True)
CONFIGS = {
    "llama-8b": Config(dim=4096, num_layers=32, num_heads=32, ffn_dim=14_336),
    "llama-70b": Config(dim=8192, num_layers=80, num_heads=64, ffn_dim=28_672),
    "qwen3-8b": QWEN3(dim=4096, num_layers=36, num_heads=32, ffn_dim=12_288),
    "qwen3-32b": QWEN3(dim=5120, num_layers=64, num_heads=64, ffn_dim=25_600),
    "qwen3-30b-a3b": QWEN3(
        dim=2048, num_layers=48, num_heads=32, num_kv_heads=4, ffn_dim=768, experts=128
    ),
}
CACHE_DTYPES = {"bf16": jnp.bfloat16, "fp8": jnp.float8_e4m3fn}


def rms_norm(x, scale, eps):
    x32 = x.astype(jnp.float32)
    x32 *= jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + eps)
    return x32.astype(x.dtype) * scale


def rotary(x, first, theta):
    """Rotate x (batch, new, heads, head_dim), whose first token is the sequence's number `first`."""
    frequency = theta ** (-jnp.arange(0, x.shape[-1], 2, dtype=jnp.float32) / x.shape[-1])
    angle = (first + jnp.arange(x.shape[1], dtype=jnp.float32))[:, None, None] * frequency
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def attention(y, p, cache, context, c: Config):
    """y (batch, new, dim) attends to itself and the `context` tokens before it."""
    qkv = jnp.einsum("bsd,dghk->bsghk", y, p["qkv"])  # per head of keys: queries, a key, a value
    q, k, v = qkv[..., :-2, :], qkv[..., -2, :], qkv[..., -1, :]
    if c.head_norm:
        q, k = rms_norm(q, p["q_norm"], c.norm_eps), rms_norm(k, p["k_norm"], c.norm_eps)
    q = rotary(q.reshape(*q.shape[:2], -1, c.head_dim), context, c.rope_theta).reshape(q.shape)
    k = rotary(k, context, c.rope_theta)
    cache = {
        name: jax.lax.dynamic_update_slice_in_dim(
            cache[name], new.astype(cache[name].dtype), context, 1
        )
        for name, new in (("k", k), ("v", v))
    }
    k, v = (cache[name].astype(q.dtype) for name in ("k", "v"))
    scores = jnp.einsum("bsghk,btgk->bghst", q, k).astype(jnp.float32) * c.head_dim**-0.5
    seen = context + jnp.arange(q.shape[1])[:, None] >= jnp.arange(k.shape[1])
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e30), axis=-1).astype(q.dtype)
    out = jnp.einsum("bghst,btgk->bsghk", weights, v)
    return jnp.einsum("bsghk,ghkd->bsd", out, p["out"]), cache


def mlp(y, p):
    hidden = jnp.einsum("bsd,dxf->bsxf", y, p["gate_up"])
    return jnp.einsum("bsf,fd->bsd", jax.nn.silu(hidden[..., 0, :]) * hidden[..., 1, :], p["down"])


def own_experts(y, scores, gate_up, down, *, c: Config):
    """What the experts of this device add to y (tokens, dim): as many rows as a balanced router gives."""
    weights, chosen = jax.lax.top_k(jax.nn.softmax(scores, axis=-1), c.chosen)
    weights = (weights / weights.sum(axis=-1, keepdims=True)).astype(y.dtype)
    own, rank = down.shape[0], jax.lax.axis_index("model")
    rows = -(-chosen.size * own // c.experts)
    order = jnp.argsort(chosen.reshape(-1))
    mine = jax.lax.dynamic_slice_in_dim(order, rank * rows, rows)
    sizes = jnp.bincount(chosen.reshape(-1), length=c.experts).astype(jnp.int32)
    sizes = jax.lax.dynamic_slice_in_dim(sizes, rank * own, own)
    hidden = jax.lax.ragged_dot(y[mine // c.chosen], gate_up, sizes)
    gate, up = jnp.split(hidden, 2, axis=-1)
    out = jax.lax.ragged_dot(jax.nn.silu(gate) * up, down, sizes)
    out = out * weights.reshape(-1)[mine][:, None]
    return jax.lax.psum(jnp.zeros_like(y).at[mine // c.chosen].add(out), "model")


def experts(y, p, mesh: AbstractMesh, c: Config):
    tokens = y.reshape(-1, c.dim)
    split, whole = P("model"), P()
    add = jax.shard_map(
        functools.partial(own_experts, c=c),
        mesh=mesh,
        in_specs=(whole, whole, split, split),
        out_specs=whole,
    )
    scores = (tokens @ p["router"]).astype(jnp.float32)
    return add(tokens, scores, p["gate_up"], p["down"]).reshape(y.shape)


def engine_pass(params, caches, tokens, *, context: int, mesh: AbstractMesh, c: Config):
    """tokens (batch, new) to the next token of each sequence, and the caches with them."""
    x = params["embed"][tokens]
    after = []
    for p, cache in zip(params["layers"], caches, strict=True):
        with jax.named_scope("attention"):
            out, cache = attention(rms_norm(x, p["norm"], c.norm_eps), p, cache, context, c)
            x = x + out
        with jax.named_scope("mlp"):
            y = rms_norm(x, p["mlp_norm"], c.norm_eps)
            x = x + (experts(y, p, mesh, c) if c.experts else mlp(y, p))
        after.append(cache)
    with jax.named_scope("head"):
        logits = rms_norm(x[:, -1], params["norm"], c.norm_eps) @ params["head"]
    with jax.named_scope("sample"):
        return jnp.argmax(logits, axis=-1).astype(jnp.int32), after


@flint.entry(axes=("model",))
def engine(
    mesh: AbstractMesh,
    *,
    model: str = "llama-8b",
    batch: int = 8,
    new: int = 1,
    context: int = 1024,
    cache: str = "bf16",
    num_layers: int = 0,
) -> flint.Step:
    """One pass, tensor (and expert) parallel over "model". `num_layers` cuts the model short; 0 is all of it."""
    if model not in CONFIGS or cache not in CACHE_DTYPES:
        raise ValueError(f"model is one of {', '.join(CONFIGS)}; cache bf16 or fp8")
    c = CONFIGS[model]
    c = dataclasses.replace(c, num_layers=num_layers or c.num_layers)

    def array(shape, *spec, dtype=jnp.bfloat16):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))

    group = c.num_heads // c.num_kv_heads
    layer = {
        "norm": array((c.dim,)),
        "qkv": array((c.dim, c.num_kv_heads, group + 2, c.head_dim), None, "model"),
        "out": array((c.num_kv_heads, group, c.head_dim, c.dim), "model"),
        "mlp_norm": array((c.dim,)),
    }
    if c.experts:
        layer |= {
            "router": array((c.dim, c.experts)),
            "gate_up": array((c.experts, c.dim, 2 * c.ffn_dim), "model"),
            "down": array((c.experts, c.ffn_dim, c.dim), "model"),
        }
    else:
        layer |= {
            "gate_up": array((c.dim, 2, c.ffn_dim), None, None, "model"),
            "down": array((c.ffn_dim, c.dim), "model"),
        }
    if c.head_norm:
        layer |= {name: array((c.head_dim,)) for name in ("q_norm", "k_norm")}
    params = {
        "embed": array((c.vocab, c.dim), "model"),
        "layers": [layer] * c.num_layers,
        "norm": array((c.dim,)),
        "head": array((c.dim, c.vocab), None, "model"),
    }
    shape = (batch, context + new, c.num_kv_heads, c.head_dim)
    kv = {n: array(shape, None, None, "model", dtype=CACHE_DTYPES[cache]) for n in ("k", "v")}
    tokens = array((batch, new), dtype=jnp.int32)
    step = functools.partial(engine_pass, context=context, mesh=mesh, c=c)
    args = (params, [kv] * c.num_layers, tokens)
    return flint.Step(step, args, donate_argnums=(1,), name=f"{model}-pass")
