"""Layers that several families have."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.sharing.corpus.run import Run, Weight

Arrays = dict[str, Any]

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "gelu": jax.nn.gelu,
    "erf": lambda x: jax.nn.gelu(x, approximate=False),
    "relu": jax.nn.relu,
    "relu2": lambda x: jnp.square(jax.nn.relu(x)),
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
}


def rms_norm(x: Any, scale: Any, eps: float = 1e-6) -> Any:
    """Divide by the root of the mean square."""
    squares = jnp.square(x.astype(jnp.float32)).mean(-1, keepdims=True)
    return (x * jax.lax.rsqrt(squares + eps)).astype(x.dtype) * scale


def layer_norm(x: Any, scale: Any, bias: Any = None, eps: float = 1e-5) -> Any:
    """Subtract the mean and divide by the deviation."""
    x32 = x.astype(jnp.float32)
    centred = x32 - x32.mean(-1, keepdims=True)
    scaled = centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + eps)
    scaled = scaled.astype(x.dtype) * scale
    return scaled if bias is None else scaled + bias


def norm_weights(kind: str, dim: int, prefix: str) -> dict[str, Weight]:
    """Of `norm`: "rms", "layer" (scale and bias) or "scale" (a layer norm without bias)."""
    found = {prefix + "_scale": Weight((dim,))}
    return found | ({prefix + "_bias": Weight((dim,))} if kind == "layer" else {})


def norm(kind: str, x: Any, p: Arrays, prefix: str) -> Any:
    """The norm of that kind with the weights of that prefix."""
    if kind == "rms":
        return rms_norm(x, p[prefix + "_scale"])
    return layer_norm(x, p[prefix + "_scale"], p.get(prefix + "_bias"))


def rotary(x: Any, theta: float, offset: Any = 0) -> Any:
    """Rotate halves of (batch, length, heads, size) by angles of their place."""
    length, size = x.shape[1], x.shape[3]
    frequency = theta ** (-jnp.arange(0, size, 2, dtype=jnp.float32) / size)
    angle = (jnp.arange(length, dtype=jnp.float32) + offset)[:, None] * frequency
    cos, sin = jnp.cos(angle)[None, :, None, :], jnp.sin(angle)[None, :, None, :]
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def causal_mask(length: int, window: int = 0) -> Any:
    """Which keys a query sees: those up to itself, of the last `window` if that is not 0."""
    query, key = jnp.arange(length)[:, None], jnp.arange(length)[None, :]
    seen = query >= key
    return seen & (query - key < window) if window else seen


def attend(q: Any, k: Any, v: Any, mask: Any = None, bias: Any = None, cap: float = 0.0) -> Any:
    """Softmax attention written out: q (b, s, h, d) to k and v (b, t, h / n, d)."""
    batch, length, heads, size = q.shape
    grouped = q.reshape(batch, length, k.shape[2], -1, size)
    scores = jnp.einsum("bsngk,btnk->bngst", grouped, k).astype(jnp.float32) * size**-0.5
    scores = cap * jnp.tanh(scores / cap) if cap else scores
    scores = scores if bias is None else scores + bias
    scores = scores if mask is None else jnp.where(mask, scores, -1e30)
    weights = jax.nn.softmax(scores, axis=-1).astype(q.dtype)
    return jnp.einsum("bngst,btnk->bsngk", weights, v).reshape(batch, length, heads, v.shape[-1])


def attend_in_blocks(q: Any, k: Any, v: Any, block: int) -> Any:
    """Causal attention over blocks of keys in a loop, with running maxima and sums (arXiv 2112.05682)."""
    batch, length, heads, size = q.shape
    repeat = heads // k.shape[2]
    blocks = tuple(
        jnp.repeat(x, repeat, axis=2)
        .reshape(batch, length // block, block, heads, size)
        .transpose(1, 0, 2, 3, 4)
        for x in (k, v)
    )

    def add(held: Any, of: Any) -> Any:
        (top, total, out), (i, keys, values) = held, of
        scores = jnp.einsum("bshk,bthk->bhst", q, keys).astype(jnp.float32) * size**-0.5
        seen = jnp.arange(length)[:, None] >= i * block + jnp.arange(block)
        scores = jnp.where(seen, scores, -1e30)
        new = jnp.maximum(top, scores.max(-1))
        weights, old = jnp.exp(scores - new[..., None]), jnp.exp(top - new)
        out = out * old[..., None] + jnp.einsum("bhst,bthk->bhsk", weights.astype(q.dtype), values)
        return (new, total * old + weights.sum(-1), out), None

    start = jnp.full((batch, heads, length), -1e30, jnp.float32)
    held = start, jnp.zeros_like(start), jnp.zeros((batch, heads, length, size), jnp.float32)
    (_, total, out), _ = jax.lax.scan(add, held, (jnp.arange(length // block), *blocks))
    return (out / total[..., None]).astype(q.dtype).transpose(0, 2, 1, 3)


def attention_weights(
    dim: int, heads: int, head_dim: int, kv_heads: int = 0, prefix: str = "", *, bias: bool = False
) -> dict[str, Weight]:
    """Projections of queries, keys, values and of the result."""
    found = {}
    for name, count in (("q", heads), ("k", kv_heads or heads), ("v", kv_heads or heads)):
        found[prefix + name] = Weight((dim, count, head_dim), ("embed", "heads", ""))
        if bias:
            found[prefix + name + "_bias"] = Weight((count, head_dim), ("heads", ""))
    found[prefix + "o"] = Weight((heads, head_dim, dim), ("heads", "", "embed"))
    return found | ({prefix + "o_bias": Weight((dim,))} if bias else {})


def projected(run: Run, x: Any, p: Arrays, name: str) -> Any:
    """x (b, s, d) as heads (b, s, h, k)."""
    y = jnp.einsum("bsd,dhk->bshk", x, p[name])
    y = y + p[name + "_bias"] if name + "_bias" in p else y
    return run.pin(y, "batch", "length", "heads", "")


def attention_result(run: Run, y: Any, p: Arrays, prefix: str = "") -> Any:
    """Heads (b, s, h, k) as the model's width (b, s, d), for the residual."""
    y = run.pin(y, "batch", "length", "heads", "")
    out = jnp.einsum("bshk,hkd->bsd", y, p[prefix + "o"])
    out = out + p[prefix + "o_bias"] if prefix + "o_bias" in p else out
    return run.pin(out, "batch", "residual", "")


def self_attention(run: Run, x: Any, p: Arrays, mask: Any = None, bias: Any = None) -> Any:
    """Plain attention of x to itself."""
    q, k, v = (projected(run, x, p, name) for name in "qkv")
    return attention_result(run, attend(q, k, v, mask, bias), p)


def cross_attention(run: Run, x: Any, memory: Any, p: Arrays, prefix: str = "cross_") -> Any:
    """Plain attention of x to another sequence."""
    q = projected(run, x, p, prefix + "q")
    k, v = (projected(run, memory, p, prefix + name) for name in "kv")
    return attention_result(run, attend(q, k, v), p, prefix)


def ffn_weights(
    dim: int, ffn: int, *, gated: bool = False, bias: bool = False
) -> dict[str, Weight]:
    """Two products, or three."""
    found = {
        "up": Weight((dim, ffn), ("embed", "ffn")),
        "down": Weight((ffn, dim), ("ffn", "embed")),
    }
    if gated:
        found["gate"] = Weight((dim, ffn), ("embed", "ffn"))
    if bias:
        found |= {"up_bias": Weight((ffn,), ("ffn",)), "down_bias": Weight((dim,))}
    return found


def ffn(run: Run, x: Any, p: Arrays, activation: str) -> Any:
    """Up, an activation (of the gate if there is one), down."""
    hidden = run.pin(x @ p["up"], "batch", "length", "ffn")
    hidden = hidden + p["up_bias"] if "up_bias" in p else hidden
    if "gate" in p:
        hidden = hidden * ACTIVATIONS[activation](run.pin(x @ p["gate"], "batch", "length", "ffn"))
    else:
        hidden = ACTIVATIONS[activation](hidden)
    out = hidden @ p["down"]
    out = out + p["down_bias"] if "down_bias" in p else out
    return run.pin(out, "batch", "residual", "")


def embedded(run: Run, table: Any, tokens: Any) -> Any:
    """Rows of a table, laid out as the residual."""
    x = run.gathered(table, "vocab", "embed")[tokens]
    return run.pin(run.pin(x, "batch", "length", ""), "batch", "residual", "")


def whole(run: Run, x: Any) -> Any:
    """What blocks read: the residual with its length as attention has it."""
    return run.pin(x, "batch", "length", "")


def cross_entropy(run: Run, logits: Any, targets: Any) -> Any:
    """The mean over all targets; logits stay sharded over the vocabulary."""
    logits = logits.astype(jnp.float32)
    picked = jnp.arange(logits.shape[-1]) == targets[..., None]
    target = jnp.sum(jnp.where(picked, logits, 0.0), axis=-1)
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - target)


def picked_entropy(logits: Any, targets: Any) -> Any:
    """The same by indexing."""
    logs = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.take_along_axis(logs, targets[..., None], axis=-1).mean()


def sinusoids(length: int, dim: int) -> Any:
    """Positions (length, dim) as sines and cosines (arXiv 1706.03762, section 3.5)."""
    frequency = jnp.exp(jnp.arange(0, dim, 2, dtype=jnp.float32) * (-math.log(1e4) / dim))
    angle = jnp.arange(length, dtype=jnp.float32)[:, None] * frequency
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)
