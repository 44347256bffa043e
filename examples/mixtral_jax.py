"""Mixtral 8x7B: one training step of a mixture of experts with expert parallelism.

    flint capture examples/mixtral_jax.py --mesh 64x8 -o trace
    flint capture examples/mixtral_jax.py --mesh 64x8 --set dispatch=einsum

Configuration: "Mixtral of Experts" (arXiv 2401.04088), table 1, and the released `params.json`:
8 experts, 2 for each token. Batch is sharded over both axes, dense weights are sharded over both
(FSDP), experts over "expert" and, within an expert, over "data".

    dispatch  alltoall: shard_map scatters tokens into slots and calls all_to_all twice a layer;
              einsum: GShard's one-hot products (arXiv 2006.16668), the compiler finds the exchange
    capacity  slots of an expert, relative to an even split of the tokens; the rest is dropped.
              alltoall counts them for each device, einsum for each sequence
    remat     full recomputes each layer in the backward pass, none keeps every activation
    batch     sequences over the whole mesh; 0 is one for each device
"""

import dataclasses
import functools
import math
from typing import Literal

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

import flint


@dataclasses.dataclass(frozen=True)
class Config:
    dim: int = 4096
    num_layers: int = 32
    num_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128
    ffn_dim: int = 14_336
    vocab: int = 32_000
    num_experts: int = 8
    experts_per_token: int = 2
    rope_theta: float = 1e6
    norm_eps: float = 1e-5
    capacity: float = 1.25
    balance_weight: float = 0.02
    dispatch: str = "alltoall"

    def slots(self, tokens: int) -> int:
        """Slots of one expert for a group of tokens."""
        return math.ceil(tokens * self.experts_per_token * self.capacity / self.num_experts)


BATCH = ("data", "expert")


def rms_norm(x, scale, eps):
    x32 = x.astype(jnp.float32)
    x32 *= jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + eps)
    return x32.astype(x.dtype) * scale


def rotary(x, theta):
    seq, head_dim = x.shape[1], x.shape[3]
    frequency = theta ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    angle = jnp.arange(seq, dtype=jnp.float32)[:, None] * frequency
    cos, sin = jnp.cos(angle)[None, :, None, :], jnp.sin(angle)[None, :, None, :]
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def attention(x, p, c: Config):
    q, k, v = (jnp.einsum("bsd,dhk->bshk", x, p[name]) for name in ("wq", "wk", "wv"))
    q, k = rotary(q, c.rope_theta), rotary(k, c.rope_theta)
    q = q.reshape(*q.shape[:2], c.num_kv_heads, -1, c.head_dim)
    scores = jnp.einsum("bsngk,btnk->bngst", q, k).astype(jnp.float32) * c.head_dim**-0.5
    causal = jnp.arange(x.shape[1])[:, None] >= jnp.arange(x.shape[1])
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e30), axis=-1).astype(x.dtype)
    out = jnp.einsum("bngst,btnk->bsngk", weights, v)
    return jnp.einsum("bshk,hkd->bsd", out.reshape(*x.shape[:2], c.num_heads, -1), p["wo"])


def experts(x, gate, up, down):
    """x (expert, ..., dim) through the expert that its first dimension names."""
    hidden = jax.nn.silu(jnp.einsum("e...d,edf->e...f", x, gate))
    return jnp.einsum("e...f,efd->e...d", hidden * jnp.einsum("e...d,edf->e...f", x, up), down)


def assign_slots(expert, c: Config, capacity: int):
    """expert (tokens, k) to slots 0..experts*capacity-1; one beyond the end means dropped."""
    chosen = jax.nn.one_hot(expert.T, c.num_experts, dtype=jnp.int32)  # first choices come first
    flat = chosen.reshape(-1, c.num_experts)
    position = jnp.sum((jnp.cumsum(flat, axis=0) - flat) * flat, axis=-1)
    position = position.reshape(expert.T.shape).T
    dropped = c.num_experts * capacity
    return jnp.where(position < capacity, expert * capacity + position, dropped)


def dispatch_einsum(x, weight, expert, p, c: Config, mesh: AbstractMesh):
    batch, seq, _ = x.shape
    capacity = c.slots(seq)
    slot = jax.vmap(lambda e: assign_slots(e, c, capacity))(expert)
    one_hot = jax.nn.one_hot(slot, c.num_experts * capacity, dtype=x.dtype)
    shape = (batch, seq, c.num_experts, capacity)
    send = jnp.sum(one_hot, axis=2).reshape(shape)
    combine = jnp.sum(one_hot * weight[..., None], axis=2).reshape(shape)

    by_batch = NamedSharding(mesh, P(None, BATCH))
    by_expert = NamedSharding(mesh, P("expert", "data"))
    constrain = jax.lax.with_sharding_constraint
    y = constrain(jnp.einsum("bsec,bsd->ebcd", send, x), by_batch)
    y = experts(constrain(y, by_expert), p["gate"], p["up"], p["down"])
    y = constrain(constrain(y, by_expert), by_batch)
    return jnp.einsum("bsec,ebcd->bsd", combine, y)


def dispatch_alltoall(x, weight, expert, p, c: Config, mesh: AbstractMesh):
    def on_device(x, weight, expert, gate, up, down):
        batch, seq, dim = x.shape
        capacity = c.slots(batch * seq)
        slot = assign_slots(expert.reshape(-1, c.experts_per_token), c, capacity)
        tokens = jnp.repeat(x.reshape(-1, dim), c.experts_per_token, axis=0)
        buffer = jnp.zeros((c.num_experts * capacity, dim), x.dtype)
        buffer = buffer.at[slot.reshape(-1)].add(tokens, mode="drop")
        buffer = buffer.reshape(c.num_experts, capacity, dim)
        y = jax.lax.all_to_all(buffer, "expert", split_axis=0, concat_axis=1, tiled=True)
        y = experts(y, *(jax.lax.all_gather(w, "data", axis=1, tiled=True) for w in (gate, up)),
                    jax.lax.all_gather(down, "data", axis=2, tiled=True))  # fmt: skip
        y = jax.lax.all_to_all(y, "expert", split_axis=1, concat_axis=0, tiled=True)
        y = y.reshape(-1, dim).at[slot].get(mode="fill", fill_value=0)
        y = y * weight.reshape(-1, c.experts_per_token, 1)
        return jnp.sum(y, axis=1).reshape(batch, seq, dim)

    tokens, weights = P(BATCH), EXPERT_SPECS
    in_specs = (tokens, tokens, tokens, weights["gate"], weights["up"], weights["down"])
    mapped = jax.shard_map(on_device, mesh=mesh, in_specs=in_specs, out_specs=tokens)
    return mapped(x, weight, expert, p["gate"], p["up"], p["down"])


DISPATCH = {"alltoall": dispatch_alltoall, "einsum": dispatch_einsum}


def moe(x, p, c: Config, mesh: AbstractMesh):
    with jax.named_scope("router"):
        logits = jnp.einsum("bsd,de->bse", x, p["router"]).astype(jnp.float32)
        top, expert = jax.lax.top_k(logits, c.experts_per_token)
        weight = jax.nn.softmax(top, axis=-1).astype(x.dtype)
        share = jnp.mean(jax.nn.one_hot(expert, c.num_experts), axis=(0, 1, 2))
        balance = c.num_experts * jnp.sum(share * jnp.mean(jax.nn.softmax(logits), axis=(0, 1)))
    return DISPATCH[c.dispatch](x, weight, expert, p, c, mesh), balance


def layer(x, p, c: Config, mesh: AbstractMesh):
    def whole(x):
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(BATCH, None, None)))

    with jax.named_scope("attention"):
        x = x + whole(attention(whole(rms_norm(x, p["attention_norm"], c.norm_eps)), p, c))
    with jax.named_scope("moe"):
        y, balance = moe(whole(rms_norm(x, p["moe_norm"], c.norm_eps)), p, c, mesh)
        return x + whole(y), balance


#: What the backward pass keeps. Shardings are set again on what was kept: without that, nothing
#: tells the partitioner how the stacked activations of the scan are laid out.
SAVED = {
    "full": jax.checkpoint_policies.nothing_saveable,
    "none": lambda primitive, *_, **__: primitive.name != "sharding_constraint",
}


def loss_fn(params, tokens, targets, c: Config, mesh: AbstractMesh, remat: str):
    block = jax.checkpoint(functools.partial(layer, c=c, mesh=mesh), policy=SAVED[remat])
    constrain = jax.lax.with_sharding_constraint
    by_batch = NamedSharding(mesh, P(BATCH, None, None))
    with jax.named_scope("embed"):
        table = constrain(params["embed"], NamedSharding(mesh, P(None, None)))
        x = constrain(table[tokens], by_batch)
    with jax.named_scope("layers"):
        x, balance = jax.lax.scan(block, x, params["layers"])
    with jax.named_scope("head"):
        x = constrain(rms_norm(x, params["norm"], c.norm_eps), by_batch)
        logits = jnp.einsum("bsd,dv->bsv", x, params["head"]).astype(jnp.float32)
    with jax.named_scope("loss"):
        picked = jnp.arange(c.vocab) == targets[..., None]
        target_logit = jnp.sum(jnp.where(picked, logits, 0.0), axis=-1)
        loss = jnp.mean(jax.nn.logsumexp(logits, axis=-1) - target_logit)
        return loss + c.balance_weight * jnp.mean(balance)


def adamw(p, g, m, v, count, lr=3e-4, b1=0.9, b2=0.95, eps=1e-8, decay=0.1):
    g = g.astype(jnp.float32)
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * jnp.square(g)
    update = (m / (1 - b1**count)) / (jnp.sqrt(v / (1 - b2**count)) + eps)
    return (p - lr * (update + decay * p.astype(jnp.float32))).astype(p.dtype), m, v


def train_step(params, moments, count, tokens, targets, *, c: Config, mesh, remat: str):
    loss, grads = jax.value_and_grad(loss_fn)(params, tokens, targets, c, mesh, remat)
    with jax.named_scope("optimizer"):
        count = count + 1
        update = functools.partial(adamw, count=count.astype(jnp.float32))
        new = jax.tree.map(update, params, grads, moments["m"], moments["v"])
        params, m, v = jax.tree.transpose(jax.tree.structure(params), None, new)
    return params, {"m": m, "v": v}, count, loss


EXPERT_SPECS = {
    "gate": P("expert", "data", None),
    "up": P("expert", "data", None),
    "down": P("expert", None, "data"),
}


def abstract_params(c: Config, mesh: AbstractMesh, dtype):
    """The weights as shapes with shardings; those of the layers are stacked for the scan."""

    def array(shape, *spec):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))

    def stacked(shape, *spec):
        return array((c.num_layers, *shape), None, *spec)

    layers = {
        "attention_norm": stacked((c.dim,)),
        "wq": stacked((c.dim, c.num_heads, c.head_dim), BATCH),
        "wk": stacked((c.dim, c.num_kv_heads, c.head_dim), BATCH),
        "wv": stacked((c.dim, c.num_kv_heads, c.head_dim), BATCH),
        "wo": stacked((c.num_heads, c.head_dim, c.dim), None, None, BATCH),
        "moe_norm": stacked((c.dim,)),
        "router": stacked((c.dim, c.num_experts)),
        "gate": stacked((c.num_experts, c.dim, c.ffn_dim), *EXPERT_SPECS["gate"]),
        "up": stacked((c.num_experts, c.dim, c.ffn_dim), *EXPERT_SPECS["up"]),
        "down": stacked((c.num_experts, c.ffn_dim, c.dim), *EXPERT_SPECS["down"]),
    }
    return {
        "embed": array((c.vocab, c.dim), None, BATCH),
        "layers": layers,
        "norm": array((c.dim,)),
        "head": array((c.dim, c.vocab), BATCH),
    }


@flint.entry(axes=BATCH)
def train(
    mesh: AbstractMesh,
    *,
    dispatch: Literal["alltoall", "einsum"] = "alltoall",
    remat: Literal["full", "none"] = "full",
    seq: int = 4096,
    batch: int = 0,
    capacity: float = 1.25,
    num_layers: int = 32,
) -> flint.Step:
    """One training step."""
    if dispatch not in DISPATCH or remat not in SAVED:
        raise ValueError("dispatch is alltoall or einsum; remat full or none")
    c = Config(num_layers=num_layers, capacity=capacity, dispatch=dispatch)
    devices = mesh.shape["data"] * mesh.shape["expert"]

    def array(shape, dtype, *spec):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))

    tokens = array((batch or devices, seq), jnp.int32, BATCH, None)
    moments = {name: abstract_params(c, mesh, jnp.float32) for name in ("m", "v")}
    params = abstract_params(c, mesh, jnp.bfloat16)
    args = (params, moments, array((), jnp.int32), tokens, tokens)
    step = functools.partial(train_step, c=c, mesh=mesh, remat=remat)
    return flint.Step(step, args, donate_argnums=(0, 1, 2), name="mixtral-8x7b")
