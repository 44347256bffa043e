"""Llama 3 decoding: one new token for each sequence of a batch, with a key-value cache.

    flint capture examples/decode_jax.py --mesh 8x8 -o trace
    flint capture examples/decode_jax.py --mesh 8x8 --set model=8b --set tokens=64 --set cache=int8

Configurations: "The Llama 3 Herd of Models" (arXiv 2407.21783), table 3, and the released
`params.json`. Weights are bfloat16 and tensor parallel over "model"; sequences are sharded over
"data", key-value heads of the cache over "model". The cache is donated: it is updated in place.

    model    8b, 70b, 405b
    tokens   decoded one after the other in a loop on the device
    batch    sequences over the whole mesh; 0 is 16 for each rank of "data"
    length   places in the cache; attention reads all of them
    cache    bf16, or int8 or fp8 with one scale for each token and head
    layers   scan (one loop over stacked weights and caches) or unrolled (a list of layers)

A scan pays for its stacks on GPUs: XLA copies each layer's weights and cache out of them before
libraries multiply, the cache back, and the new stacks to the donated ones. (They read slices where
these are only with `--xla_gpu_enable_dynamic_slice_fusion`, which is off by default.) `flint estimate -v`
of the 70B model, 8x8 on h100-dgx with the profile `xla-gpu`: 42.1 ms, of which 25.1 ms are copies and fills;
unrolled 16.7 ms, without them.
"""

import dataclasses
import functools
from typing import Literal

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
    "405b": Config(dim=16_384, num_layers=126, num_heads=128, ffn_dim=53_248),
}
CACHE_DTYPES = {"bf16": jnp.bfloat16, "int8": jnp.int8, "fp8": jnp.float8_e4m3fn}
LARGEST = {"int8": 127.0, "float8_e4m3fn": 448.0}


def rms_norm(x, scale, eps):
    x32 = x.astype(jnp.float32)
    x32 *= jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + eps)
    return x32.astype(x.dtype) * scale


def rotary(x, position, theta):
    head_dim = x.shape[-1]
    frequency = theta ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    cos, sin = jnp.cos(position * frequency), jnp.sin(position * frequency)
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def append(cache, name, x, position):
    """Write x (batch, heads, head_dim) at `position`, scaled to the type of the cache."""
    cache = dict(cache)
    if name + "_scale" in cache:
        largest = LARGEST[cache[name].dtype.name]
        scale = jnp.max(jnp.abs(x.astype(jnp.float32)), axis=-1) / largest + 1e-12
        x = x.astype(jnp.float32) / scale[..., None]
        x = jnp.round(x) if cache[name].dtype == jnp.int8 else x
        cache[name + "_scale"] = jax.lax.dynamic_update_slice_in_dim(
            cache[name + "_scale"], scale[:, None], position, axis=1
        )
    cache[name] = jax.lax.dynamic_update_slice_in_dim(
        cache[name], x.astype(cache[name].dtype)[:, None], position, axis=1
    )
    return cache


def scales(cache, name):
    """The scale of each token and head, shaped like attention scores, or 1."""
    if name + "_scale" not in cache:
        return 1.0
    return jnp.transpose(cache[name + "_scale"], (0, 2, 1))[:, :, None, :]


def attention(x, p, cache, position, c: Config):
    y = rms_norm(x, p["attention_norm"], c.norm_eps)
    q, k, v = (jnp.einsum("bd,dhk->bhk", y, p[name]) for name in ("wq", "wk", "wv"))
    q, k = rotary(q, position, c.rope_theta), rotary(k, position, c.rope_theta)
    cache = append(append(cache, "k", k, position), "v", v, position)
    q = q.reshape(q.shape[0], c.num_kv_heads, -1, c.head_dim)  # query heads by the head they read
    scores = jnp.einsum("bngk,btnk->bngt", q, cache["k"].astype(q.dtype)).astype(jnp.float32)
    scores = scores * scales(cache, "k") * c.head_dim**-0.5
    seen = jnp.arange(cache["k"].shape[1]) <= position
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e30), axis=-1) * scales(cache, "v")
    out = jnp.einsum("bngt,btnk->bngk", weights.astype(x.dtype), cache["v"].astype(x.dtype))
    out = out.reshape(x.shape[0], c.num_heads, c.head_dim)
    return jnp.einsum("bhk,hkd->bd", out, p["wo"]), cache


def mlp(x, p, c: Config):
    y = rms_norm(x, p["mlp_norm"], c.norm_eps)
    hidden = jax.nn.silu(jnp.einsum("bd,df->bf", y, p["gate"]))
    return jnp.einsum("bf,fd->bd", hidden * jnp.einsum("bd,df->bf", y, p["up"]), p["down"])


def decode_step(params, cache, token, position, *, c: Config, mesh: AbstractMesh):
    """token (batch,) at `position` to the cache with it, the next token and its position."""

    def whole(x):
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("data", None)))

    def layer(x, weights_and_cache):
        p, layer_cache = weights_and_cache
        with jax.named_scope("attention"):
            out, layer_cache = attention(x, p, layer_cache, position, c)
            x = x + whole(out)
        with jax.named_scope("mlp"):
            return x + whole(mlp(x, p, c)), layer_cache

    with jax.named_scope("embed"):
        x = whole(params["embed"][token])
    with jax.named_scope("layers"):
        if isinstance(cache, list):
            cache, before = [], cache
            for weights_and_cache in zip(params["layers"], before, strict=True):
                x, layer_cache = layer(x, weights_and_cache)
                cache.append(layer_cache)
        else:
            x, cache = jax.lax.scan(layer, x, (params["layers"], cache))
    with jax.named_scope("head"):
        logits = rms_norm(x, params["norm"], c.norm_eps) @ params["head"]
    with jax.named_scope("sample"):
        return cache, jnp.argmax(logits, axis=-1).astype(jnp.int32), position + 1


def decode_tokens(params, cache, token, position, *, tokens: int, c: Config, mesh: AbstractMesh):
    if tokens == 1:
        return decode_step(params, cache, token, position, c=c, mesh=mesh)

    def body(_, state):
        return decode_step(params, *state, c=c, mesh=mesh)

    return jax.lax.fori_loop(0, tokens, body, (cache, token, position))


@flint.entry(axes=("data", "model"))
def decode(
    mesh: AbstractMesh,
    *,
    model: str = "70b",
    tokens: int = 1,
    batch: int = 0,
    length: int = 8192,
    cache: str = "bf16",
    layers: Literal["scan", "unrolled"] = "scan",
    num_layers: int = 0,
) -> flint.Step:
    """Greedy decoding. `num_layers` cuts the model short; 0 is the published depth."""
    if model not in CONFIGS or cache not in CACHE_DTYPES or layers not in ("scan", "unrolled"):
        raise ValueError(
            "model is 8b, 70b or 405b; cache bf16, int8 or fp8; layers scan or unrolled"
        )
    c = CONFIGS[model]
    c = dataclasses.replace(c, num_layers=num_layers or c.num_layers)
    batch = batch or 16 * mesh.shape["data"]

    def array(shape, *spec, dtype=jnp.bfloat16):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))

    def of_layers(shape, *spec, dtype=jnp.bfloat16):
        """One array for all layers, or one for each."""
        if layers == "scan":
            return array((c.num_layers, *shape), None, *spec, dtype=dtype)
        return array(shape, *spec, dtype=dtype)

    def of_all(one):
        return one if layers == "scan" else [one] * c.num_layers

    weights = {
        "attention_norm": of_layers((c.dim,)),
        "wq": of_layers((c.dim, c.num_heads, c.head_dim), None, "model"),
        "wk": of_layers((c.dim, c.num_kv_heads, c.head_dim), None, "model"),
        "wv": of_layers((c.dim, c.num_kv_heads, c.head_dim), None, "model"),
        "wo": of_layers((c.num_heads, c.head_dim, c.dim), "model"),
        "mlp_norm": of_layers((c.dim,)),
        "gate": of_layers((c.dim, c.ffn_dim), None, "model"),
        "up": of_layers((c.dim, c.ffn_dim), None, "model"),
        "down": of_layers((c.ffn_dim, c.dim), "model"),
    }
    params = {
        "embed": array((c.vocab, c.dim), "model"),
        "layers": of_all(weights),
        "norm": array((c.dim,)),
        "head": array((c.dim, c.vocab), None, "model"),
    }
    shape, spec = (batch, length, c.num_kv_heads), ("data", None, "model")
    kv = {n: of_layers((*shape, c.head_dim), *spec, dtype=CACHE_DTYPES[cache]) for n in ("k", "v")}
    if cache != "bf16":
        kv |= {n: of_layers(shape, *spec, dtype=jnp.float32) for n in ("k_scale", "v_scale")}
    args = (
        params,
        of_all(kv),
        array((batch,), "data", dtype=jnp.int32),
        array((), dtype=jnp.int32),
    )
    step = functools.partial(decode_tokens, tokens=tokens, c=c, mesh=mesh)
    return flint.Step(step, args, donate_argnums=(1,), name=f"llama3-{model}-decode")
