"""Decoders whose inner products are of experts, a few for each token."""

from __future__ import annotations

import functools
import math
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from benchmarks.sharing.corpus.family import Example, Family
from benchmarks.sharing.corpus.parts import (
    Arrays,
    attend,
    attention_result,
    attention_weights,
    causal_mask,
    cross_entropy,
    embedded,
    ffn,
    ffn_weights,
    projected,
    rms_norm,
    rotary,
)
from benchmarks.sharing.corpus.run import Input, Model, Run, Weight
from benchmarks.sharing.corpus.sizes import (
    LENGTHS,
    VOCABS,
    Options,
    divisor_at_most,
    drawn_transformer,
)


def draw_experts(rng: Random) -> Options:
    """How many experts, how many of them a token sees, and how tokens get there."""
    o = drawn_transformer(rng, 8192)
    experts = rng.choice((8, 8, 16, 32, 64, 128))
    return {
        **o,
        "ffn": rng.choice((o["ffn"], 1408, 2048, 14_336)),
        "kv_heads": divisor_at_most(o["heads"], rng.choice((1, 4, 8, 128))),
        "vocab": rng.choice(VOCABS),
        "length": rng.choice(LENGTHS[:13]),
        "experts": experts,
        "chosen": rng.choice((1, 2, 2, 4, 6)),
        "capacity": rng.choice((1.0, 1.25, 2.0)),
        "dispatch": rng.choice(("one-hot", "one-hot", "scatter", "all-to-all", "dense")),
        "gated": rng.random() < 0.7,
        "shared": rng.random() < 0.3,
        "sparse_every": rng.choice((1, 1, 2)),
        "balance": rng.random() < 0.6,
        "gate": rng.choice(("softmax", "softmax", "sigmoid")),
    }


def _weights(o: Options, run: Run) -> Any:
    dim, inner, n = o["dim"], o["ffn"], o["experts"]
    base = attention_weights(dim, o["heads"], o["head_dim"], o["kv_heads"])
    base |= {"in_scale": Weight((dim,)), "mid_scale": Weight((dim,))}
    sparse = base | {
        "router": Weight((dim, n)),
        "experts_up": Weight((n, dim, inner), ("experts", "embed", "ffn")),
        "experts_down": Weight((n, inner, dim), ("experts", "ffn", "embed")),
    }
    if o["gated"]:
        sparse["experts_gate"] = Weight((n, dim, inner), ("experts", "embed", "ffn"))
    if o["shared"]:
        sparse |= ffn_weights(dim, inner, gated=True)
    dense = base | ffn_weights(dim, inner, gated=True)
    every = o["sparse_every"]
    layer: Any = sparse if every == 1 else {"sparse": sparse, "dense": dense}
    return {
        "embed": Weight((o["vocab"], dim), ("vocab", "embed")),
        "layers": run.stack(max(o["layers"] // every, 1), layer),
        "out_scale": Weight((dim,)),
        "head": Weight((dim, o["vocab"]), ("embed", "vocab")),
    }


def _through(x: Any, p: Arrays) -> Any:
    """x (expert, ..., dim) through the expert that its first dimension names."""
    hidden = jnp.einsum("e...d,edf->e...f", x, p["experts_up"])
    if "experts_gate" in p:
        hidden = hidden * jax.nn.silu(jnp.einsum("e...d,edf->e...f", x, p["experts_gate"]))
    else:
        hidden = jax.nn.relu(hidden)
    return jnp.einsum("e...f,efd->e...d", hidden, p["experts_down"])


def _places(expert: Any, experts: int, slots: int) -> Any:
    """Slots 0..experts * slots - 1 of choices (tokens, k); one beyond the end is none."""
    chosen = jax.nn.one_hot(expert.T, experts, dtype=jnp.int32)  # first choices come first
    flat = chosen.reshape(-1, experts)
    position = jnp.sum((jnp.cumsum(flat, axis=0) - flat) * flat, axis=-1)
    position = position.reshape(expert.T.shape).T
    return jnp.where(position < slots, expert * slots + position, experts * slots)


def _slots(o: Options, tokens: int) -> int:
    share: float = tokens * o["chosen"] * o["capacity"] / o["experts"]
    return max(math.ceil(share), 1)


def _by_one_hot(o: Options, run: Run, x: Any, weight: Any, expert: Any, p: Arrays) -> Any:
    """Products with one-hot arrays put tokens into slots and take them out (arXiv 2006.16668, algorithm 1)."""
    batch, length, _ = x.shape
    slots, n = _slots(o, length), o["experts"]
    slot = jax.vmap(lambda e: _places(e, n, slots))(expert)
    hot = jax.nn.one_hot(slot, n * slots, dtype=x.dtype)
    shape = (batch, length, n, slots)
    send, combine = hot.sum(2).reshape(shape), (hot * weight[..., None]).sum(2).reshape(shape)
    y = run.pin(jnp.einsum("bsec,bsd->ebcd", send, x), "", "batch")
    y = _through(run.pin(y, "experts", "groups"), p)
    y = run.pin(run.pin(y, "experts", "groups"), "", "batch")
    return jnp.einsum("bsec,ebcd->bsd", combine, y)


def _by_scatter(o: Options, run: Run, x: Any, weight: Any, expert: Any, p: Arrays) -> Any:
    """Tokens of each sequence are written to slots by their number."""
    batch, length, dim = x.shape
    slots, n, k = _slots(o, length), o["experts"], o["chosen"]

    def put(x: Any, slot: Any) -> Any:
        rows = jnp.repeat(x, k, axis=0)
        return jnp.zeros((n * slots, dim), x.dtype).at[slot.reshape(-1)].add(rows, mode="drop")

    def take(y: Any, slot: Any) -> Any:
        return y.at[slot].get(mode="fill", fill_value=0)

    slot = jax.vmap(lambda e: _places(e, n, slots))(expert)
    y = run.pin(jax.vmap(put)(x, slot).reshape(batch, n, slots, dim), "batch")
    y = run.pin(y.transpose(1, 0, 2, 3), "experts", "groups")
    y = run.pin(_through(y, p).transpose(1, 0, 2, 3), "batch")
    y = jax.vmap(take)(y.reshape(batch, n * slots, dim), slot)
    return jnp.sum(y * weight[..., None], axis=2)


def _by_exchange(o: Options, run: Run, x: Any, weight: Any, expert: Any, p: Arrays) -> Any:
    """Each device writes its tokens to slots; two all-to-alls carry them to their experts and back."""
    axis = run.axes("experts")
    if not axis or o["experts"] % run.positions("experts") or run.axes("embed") or run.axes("ffn"):
        return _by_one_hot(o, run, x, weight, expert, p)
    names = [name for name in p if name.startswith("experts_")]

    def on_device(x: Any, weight: Any, expert: Any, *held: Any) -> Any:
        batch, length, dim = x.shape
        slots, n, k = _slots(o, batch * length), o["experts"], o["chosen"]
        slot = _places(expert.reshape(-1, k), n, slots)
        rows = jnp.repeat(x.reshape(-1, dim), k, axis=0)
        buffer = jnp.zeros((n * slots, dim), x.dtype).at[slot.reshape(-1)].add(rows, mode="drop")
        buffer = buffer.reshape(n, slots, dim)
        y = jax.lax.all_to_all(buffer, axis, split_axis=0, concat_axis=1, tiled=True)
        y = _through(y, dict(zip(names, held, strict=True)))
        y = jax.lax.all_to_all(y, axis, split_axis=1, concat_axis=0, tiled=True)
        y = y.reshape(-1, dim).at[slot].get(mode="fill", fill_value=0)
        return jnp.sum(y * weight.reshape(-1, k, 1), axis=1).reshape(batch, length, dim)

    tokens = P(run.axes("batch"))
    specs = (tokens, tokens, tokens, *[P(axis)] * len(names))
    mapped = jax.shard_map(on_device, mesh=run.mesh, in_specs=specs, out_specs=tokens)
    return mapped(x, weight, expert, *(p[name] for name in names))


def _by_all(o: Options, run: Run, x: Any, weight: Any, expert: Any, p: Arrays) -> Any:
    """All experts see all tokens; what was not chosen weighs nothing."""
    share = jnp.sum(jax.nn.one_hot(expert, o["experts"], dtype=x.dtype) * weight[..., None], axis=2)
    y = jnp.broadcast_to(x[None], (o["experts"], *x.shape))
    return jnp.einsum("bse,ebsd->bsd", share, _through(run.pin(y, "experts", "groups"), p))


_DISPATCH = {
    "one-hot": _by_one_hot,
    "scatter": _by_scatter,
    "all-to-all": _by_exchange,
    "dense": _by_all,
}


def _routed(o: Options, run: Run, x: Any, p: Arrays) -> tuple[Any, Any]:
    """The experts' result, and how far their shares are from even."""
    logits = (x @ p["router"]).astype(jnp.float32)
    scores = jax.nn.softmax(logits) if o["gate"] == "softmax" else jax.nn.sigmoid(logits)
    top, expert = jax.lax.top_k(scores, o["chosen"])
    weight = (top / (top.sum(-1, keepdims=True) + 1e-9)).astype(x.dtype)
    balance = jnp.zeros((), jnp.float32)
    if o["balance"]:
        share = jnp.mean(jax.nn.one_hot(expert, o["experts"]), axis=(0, 1, 2))
        balance = o["experts"] * jnp.sum(share * jnp.mean(scores, axis=(0, 1)))
    y = run.pin(_DISPATCH[o["dispatch"]](o, run, x, weight, expert, p), "batch")
    return y + ffn(run, x, p, "silu") if o["shared"] else y, balance


def build_experts(o: Options, run: Run) -> Model:
    """GShard's, Switch's, Mixtral's and DeepSeekMoE's kinds."""

    def attended(x: Any, p: Arrays) -> Any:
        y = rms_norm(x, p["in_scale"])
        q, k, v = (projected(run, y, p, name) for name in "qkv")
        out = attend(rotary(q, 1e4), rotary(k, 1e4), v, causal_mask(o["length"]))
        return x + attention_result(run, out, p)

    def sparse(held: Any, p: Arrays) -> Any:
        x, total = held
        x = attended(x, p)
        y, balance = _routed(o, run, run.pin(rms_norm(x, p["mid_scale"]), "batch"), p)
        return x + y, total + balance

    def block(held: Any, p: Arrays) -> Any:
        if o["sparse_every"] == 1:
            return sparse(held, p)
        x, total = held
        x = attended(x, p["dense"])
        x = x + ffn(run, rms_norm(x, p["dense"]["mid_scale"]), p["dense"], "silu")
        return sparse((x, total), p["sparse"])

    def both(params: Any, tokens: Any) -> tuple[Any, Any]:
        x = embedded(run, params["embed"], tokens)
        x, balance = run.layers(block, (x, jnp.zeros((), jnp.float32)), params["layers"])
        logits = rms_norm(x, params["out_scale"]) @ params["head"]
        return run.pin(logits, "batch", "length", "vocab"), balance

    def loss(params: Any, tokens: Any, targets: Any) -> Any:
        logits, balance = both(params, tokens)
        return cross_entropy(run, logits, targets) + 0.01 * balance

    words = Input((run.plan.batch, o["length"]), ("batch", "length"), "int32")
    forward = functools.partial(_first_of, both)
    return Model(forward, loss, _weights(o, run), (words,), (words,))


def _first_of(both: Any, params: Any, tokens: Any) -> Any:
    return both(params, tokens)[0]


def _mixtral_settings(rng: Random) -> dict[str, str]:
    return {
        "dispatch": rng.choice(("alltoall", "einsum")),
        "remat": rng.choice(("full", "none")),
        "seq": str(rng.choice(LENGTHS[3:14])),
        "capacity": rng.choice(("1.0", "1.25", "2.0")),
        "num_layers": str(rng.choice((4, 16, 32))),
    }


STYLES = ("ep", "ep", "fsdp+ep", "fsdp+ep", "ep+tp", "fsdp", "fsdp+tp")
FAMILIES = (
    Family(
        *("experts", draw_experts, build_experts, STYLES, 0.15),
        example=Example("examples/mixtral_jax.py", (2, 4, 8), _mixtral_settings),
    ),
)
