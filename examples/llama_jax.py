"""Llama 3: one training step (forward, backward, AdamW) of the 8B, 70B and 405B models.

    flint capture examples/llama_jax.py --mesh 64x8 -o trace
    flint capture examples/llama_jax.py --mesh 64x8 --set model=70b --set parallel=fsdp+tp+sp

`pipelined` cuts the same model into pipeline stages; `loss_fn` knows nothing of them:

    flint capture examples/llama_jax.py:pipelined --mesh pipe=4,data=8,model=8 \\
        --schedule 1f1b --microbatches 16
    flint capture examples/llama_jax.py:pipelined --mesh pipe=4,data=2,model=8 --set model=70b
    flint capture examples/llama_jax.py:pipelined --mesh pipe=16,data=128,model=8 \\
        --set model=405b --set parallel=fsdp+tp+sp --set reshard=false --microbatches 16

Configurations: "The Llama 3 Herd of Models" (arXiv 2407.21783), table 3, and the `params.json` of
the released weights. (The 405B model also scales its rotary frequencies; that changes constants,
not the program.) Weights are bfloat16, AdamW's moments are float32.

    model     8b, 70b, 405b
    parallel  fsdp+tp, fsdp+tp+sp, tp, tp+sp: tensor parallel over the axis "model"; sp also shards
              the activations between blocks over the sequence. fsdp shards weights over "data".
              fsdp, dp: without tp, both axes carry batch.
    remat     full recomputes each layer in the backward pass (as large runs do; MaxText's default),
              none keeps every activation
    attention written (products and a softmax) or cudnn (the fused kernel that GPUs run)
    layers    scan (one loop over stacked weights) or unrolled (a list of layers, each jitted)
    batch     sequences over the whole mesh; 0 is one for each data-parallel rank
    optimizer "" is sharded as the weights are. sharded: gradients and moments are sharded over "data"
              although the weights are whole there (Megatron's distributed optimizer, ZeRO-1):
              gradients are reduced and scattered, each rank updates its part, which is gathered

Options of `pipelined` beside model, parallel, remat, layers and optimizer:

    microbatches, schedule   as `--microbatches` and `--schedule`
    chunks       stages that each rank holds; with 2 or more the schedule is interleaved-1f1b
    micro_batch  sequences of one microbatch for each data-parallel rank
    cut          where stages begin; empty: equal numbers of layers, and where it comes out even one
                 less in the first and the last stage, which also hold the vocabulary (as in the
                 paper's section 3.3.2)
    reshard      with fsdp: gather weights for each microbatch and pass, else once in a step
"""

import dataclasses
import functools
import math
import re
from typing import Annotated, Literal

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
    vocab: int = 128_256
    rope_theta: float = 500_000.0
    norm_eps: float = 1e-5
    attention: str = "written"

    @property
    def head_dim(self) -> int:
        return self.dim // self.num_heads


CONFIGS = {
    "8b": Config(dim=4096, num_layers=32, num_heads=32, ffn_dim=14_336),
    "70b": Config(dim=8192, num_layers=80, num_heads=64, ffn_dim=28_672),
    "405b": Config(dim=16_384, num_layers=126, num_heads=128, ffn_dim=53_248),
}


class Layout:
    """Which mesh axes shard what."""

    def __init__(self, mesh: AbstractMesh, parallel: str):
        words = set(parallel.split("+"))
        if words - {"dp", "fsdp", "tp", "sp"} or ("sp" in words and "tp" not in words):
            raise ValueError(f"parallel={parallel}: join fsdp (or dp), tp and, with tp, sp by '+'")
        self.mesh = mesh
        self.tensor = "model" if "tp" in words else None
        self.batch = ("data",) if "tp" in words else ("data", "model")
        self.weight = self.batch if "fsdp" in words else None
        self.sequence = "model" if "sp" in words else None
        self.words = words

    def state(self, optimizer: str) -> "Layout":
        """How gradients are reduced, and what AdamW holds."""
        if optimizer not in ("", "sharded"):
            raise ValueError("optimizer is sharded, or empty")
        return Layout(self.mesh, "+".join({*self.words, "fsdp"})) if optimizer else self

    @property
    def data_ranks(self) -> int:
        return math.prod(self.mesh.shape[axis] for axis in self.batch)

    def abstract(self, shape: tuple[int, ...], dtype, spec: P) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(self.mesh, spec))

    def constrain(self, x: jax.Array, *spec) -> jax.Array:
        """Pin a (batch, ...) activation; `spec` is for the dimensions after batch."""
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, P(self.batch, *spec)))

    def residual(self, x: jax.Array) -> jax.Array:
        """Between blocks: sharded over the sequence with `sp`, else whole on each model rank."""
        return self.constrain(x, self.sequence, None)

    def gathered(self, x: jax.Array) -> jax.Array:
        """Inside blocks the sequence is whole; without `sp` it already was."""
        return self.constrain(self.residual(x), None, None)


def layer_weights(c: Config, at: Layout) -> dict[str, tuple[tuple[int, ...], P]]:
    """Shape and sharding of each weight of one layer."""
    w, t = at.weight, at.tensor
    return {
        "attention_norm": ((c.dim,), P()),
        "wq": ((c.dim, c.num_heads, c.head_dim), P(w, t, None)),
        "wk": ((c.dim, c.num_kv_heads, c.head_dim), P(w, t, None)),
        "wv": ((c.dim, c.num_kv_heads, c.head_dim), P(w, t, None)),
        "wo": ((c.num_heads, c.head_dim, c.dim), P(t, None, w)),
        "mlp_norm": ((c.dim,), P()),
        "gate": ((c.dim, c.ffn_dim), P(w, t)),
        "up": ((c.dim, c.ffn_dim), P(w, t)),
        "down": ((c.ffn_dim, c.dim), P(t, w)),
    }


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


def attention(x, p, c: Config, at: Layout):
    batch, seq, _ = x.shape
    y = at.gathered(rms_norm(x, p["attention_norm"], c.norm_eps))
    q, k, v = (
        at.constrain(jnp.einsum("bsd,dhk->bshk", y, p[name]), None, at.tensor, None)
        for name in ("wq", "wk", "wv")
    )
    q, k = rotary(q, c.rope_theta), rotary(k, c.rope_theta)
    if c.attention == "cudnn":
        out = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")
    else:
        out = written_attention(q, k, v, c)
    out = at.constrain(out.reshape(batch, seq, c.num_heads, c.head_dim), None, at.tensor, None)
    return at.residual(jnp.einsum("bshk,hkd->bsd", out, p["wo"]))


def written_attention(q, k, v, c: Config):
    batch, seq, *_ = q.shape
    q = q.reshape(batch, seq, c.num_kv_heads, -1, c.head_dim)  # query heads by the head they read
    scores = jnp.einsum("bsngk,btnk->bngst", q, k).astype(jnp.float32) * c.head_dim**-0.5
    causal = jnp.arange(seq)[:, None] >= jnp.arange(seq)
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e30), axis=-1).astype(q.dtype)
    return jnp.einsum("bngst,btnk->bsngk", weights, v)


def mlp(x, p, c: Config, at: Layout):
    y = at.gathered(rms_norm(x, p["mlp_norm"], c.norm_eps))
    gate = at.constrain(jnp.einsum("bsd,df->bsf", y, p["gate"]), None, at.tensor)
    up = at.constrain(jnp.einsum("bsd,df->bsf", y, p["up"]), None, at.tensor)
    return at.residual(jnp.einsum("bsf,fd->bsd", jax.nn.silu(gate) * up, p["down"]))


def layer(x, p, c: Config, at: Layout):
    with jax.named_scope("attention"):
        x = x + attention(x, p, c, at)
    with jax.named_scope("mlp"):
        return x + mlp(x, p, c, at)


#: What the backward pass keeps. Shardings are set again on what was kept, so that the layout of the
#: stacked activations of a scan does not hang on how the partitioner propagates.
SAVED = {
    "full": jax.checkpoint_policies.nothing_saveable,
    "none": lambda primitive, *_, **__: primitive.name != "sharding_constraint",
}


def loss_fn(params, tokens, targets, c: Config, at: Layout, remat: str):
    block = jax.checkpoint(functools.partial(layer, c=c, at=at), policy=SAVED[remat])
    with jax.named_scope("embed"):
        table = jax.lax.with_sharding_constraint(
            params["embed"], NamedSharding(at.mesh, P(at.tensor, None))
        )
        x = at.residual(at.constrain(table[tokens], None, None))
    with jax.named_scope("layers"):
        if isinstance(params["layers"], list):
            block = jax.jit(block)  # traced and lowered once for all layers
            for p in params["layers"]:
                x = block(x, p)
        else:
            x, _ = jax.lax.scan(lambda x, p: (block(x, p), None), x, params["layers"])
    with jax.named_scope("head"):
        x = at.gathered(rms_norm(x, params["norm"], c.norm_eps))
        logits = at.constrain(jnp.einsum("bsd,dv->bsv", x, params["head"]), None, at.tensor)
    with jax.named_scope("loss"):
        logits = logits.astype(jnp.float32)
        # A comparison and a sum leave the logits sharded over the vocabulary; indexing might not.
        picked = jnp.arange(c.vocab) == targets[..., None]
        target_logit = jnp.sum(jnp.where(picked, logits, 0.0), axis=-1)
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - target_logit)


@jax.jit
def adamw(p, g, m, v, count, lr=3e-4, b1=0.9, b2=0.95, eps=1e-8, decay=0.1):
    g = g.astype(jnp.float32)
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * jnp.square(g)
    update = (m / (1 - b1**count)) / (jnp.sqrt(v / (1 - b2**count)) + eps)
    return (p - lr * (update + decay * p.astype(jnp.float32))).astype(p.dtype), m, v


def pinned(tree, c: Config, at: Layout):
    """Arrays of the form of the weights, sharded as `at` shards weights."""
    specs = {name: spec for name, (_, spec) in layer_weights(c, at).items()}
    specs |= {"embed": P(at.tensor, at.weight), "norm": P(), "head": P(at.weight, at.tensor)}

    def pin(path, x):
        name = re.findall(r"\w+", path[-1].key)[-1]  # of a stage: "params['layers']['wq']"
        spec = specs[name]
        stacked = (None,) * (x.ndim - len(spec)) if spec else ()
        sharding = NamedSharding(at.mesh, P(*stacked, *spec))
        if isinstance(x, jax.ShapeDtypeStruct):
            return x.update(sharding=sharding)
        return jax.lax.with_sharding_constraint(x, sharding)

    return jax.tree_util.tree_map_with_path(pin, tree)


def update(params, grads, m, v, count, c: Config, at: Layout, state: Layout):
    """AdamW; where `state` shards more than the weights, on a part of each weight."""
    apart = state is not at
    if apart:
        params, grads = (pinned(tree, c, state) for tree in (params, grads))
    new = jax.tree.map(lambda p, g, m, v: adamw(p, g, m, v, count), params, grads, m, v)
    params, m, v = jax.tree.transpose(jax.tree.structure(params), None, new)
    if apart:
        m, v, params = pinned(m, c, state), pinned(v, c, state), pinned(params, c, at)
    return params, m, v


def train_step(
    params, moments, count, tokens, targets, *, c: Config, at: Layout, remat: str, state=None
):
    loss, grads = jax.value_and_grad(loss_fn)(params, tokens, targets, c, at, remat)
    with jax.named_scope("optimizer"):
        count = count + 1
        params, m, v = update(
            params, grads, moments["m"], moments["v"], count.astype(jnp.float32), c, at, state or at
        )
    return params, {"m": m, "v": v}, count, loss


def abstract_params(c: Config, at: Layout, layers: str, dtype):
    """The weights as shapes with shardings: stacked for a scan, else one dictionary per layer."""
    one = {n: at.abstract(shape, dtype, spec) for n, (shape, spec) in layer_weights(c, at).items()}
    stacked = {
        n: at.abstract((c.num_layers, *shape), dtype, P(None, *spec))
        for n, (shape, spec) in layer_weights(c, at).items()
    }
    return {
        "embed": at.abstract((c.vocab, c.dim), dtype, P(at.tensor, at.weight)),
        "layers": stacked if layers == "scan" else [one] * c.num_layers,
        "norm": at.abstract((c.dim,), dtype, P()),
        "head": at.abstract((c.dim, c.vocab), dtype, P(at.weight, at.tensor)),
    }


def config(model: str, remat: str, layers: str, num_layers: int) -> Config:
    if model not in CONFIGS or remat not in SAVED or layers not in ("scan", "unrolled"):
        raise ValueError("model is 8b, 70b or 405b; remat full or none; layers scan or unrolled")
    c = CONFIGS[model]
    return dataclasses.replace(c, num_layers=num_layers or c.num_layers)


# What `flint explore` looks through: all that there is where it says Literal, else what is worth a look.
Parallel = Annotated[str, ("fsdp+tp", "fsdp+tp+sp", "tp", "tp+sp")]
Remat = Literal["full", "none"]
Optimizer = Literal["", "sharded"]


@flint.entry(axes=("data", "model"), default=True)
def train(
    mesh: AbstractMesh,
    *,
    model: str = "8b",
    parallel: Parallel = "fsdp+tp",
    remat: Remat = "full",
    layers: str = "scan",
    seq: int = 8192,
    batch: int = 0,
    num_layers: int = 0,
    optimizer: Optimizer = "",
    attention: str = "written",
) -> flint.Step:
    """One training step. `num_layers` cuts the model short; 0 is the published depth."""
    if attention not in ("written", "cudnn"):
        raise ValueError(f"attention={attention}: written or cudnn")
    c = dataclasses.replace(config(model, remat, layers, num_layers), attention=attention)
    at = Layout(mesh, parallel)
    tokens = at.abstract((batch or at.data_ranks, seq), jnp.int32, P(at.batch, None))
    state = at.state(optimizer)
    moments = {name: abstract_params(c, state, layers, jnp.float32) for name in ("m", "v")}
    args = (
        abstract_params(c, at, layers, jnp.bfloat16),
        moments,
        at.abstract((), jnp.int32, P()),
        tokens,
        tokens,
    )
    step = functools.partial(train_step, c=c, at=at, remat=remat, state=state)
    return flint.Step(step, args, donate_argnums=(0, 1, 2), name=f"llama3-{model}")


def even_cut(num_layers: int, stages: int) -> str:
    """Equal stages; where that leaves out two layers, the first and the last stage lack them."""
    each, left = divmod(num_layers + 2, stages)
    if left or stages < 2 or each < 2:
        return "layers"
    return "layers:" + ",".join(str(each * s - 1) for s in range(1, stages))


def stage_optimizer(c: Config, at: Layout, state: Layout):
    """AdamW for the parameters of one stage: what it begins with, and an update."""

    def init(params):
        moment = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, jnp.float32), params)
        moment = moment if state is at else pinned(moment, c, state)
        return {"m": moment, "v": moment, "count": jnp.zeros((), jnp.int32)}

    def step(params, grads, held):
        count = held["count"] + 1
        params, m, v = update(
            params, grads, held["m"], held["v"], count.astype(jnp.float32), c, at, state
        )
        return params, {"m": m, "v": v, "count": count}

    return init, step


@flint.entry(axes=("pipe", "data", "model"))
def pipelined(
    mesh: AbstractMesh,
    *,
    microbatches: int = 8,
    schedule: Annotated[str, ("", "zb-h1")] = "",
    chunks: Annotated[int, (1, 2)] = 1,
    model: str = "8b",
    parallel: Annotated[str, ("tp+sp", "fsdp+tp+sp")] = "tp+sp",
    remat: Remat = "none",
    layers: str = "scan",
    cut: str = "",
    reshard: Literal[True, False] = True,
    seq: int = 8192,
    micro_batch: int = 1,
    num_layers: int = 0,
    optimizer: Optimizer = "",
) -> flint.Pipeline:
    """One training step in stages along the axis "pipe"."""
    c = config(model, remat, layers, num_layers)
    at = Layout(mesh, parallel)
    batch = microbatches * micro_batch * at.data_ranks
    tokens = at.abstract((batch, seq), jnp.int32, P(at.batch, None))
    return flint.Pipeline(
        model=functools.partial(loss_fn, c=c, at=at, remat=remat),
        params=abstract_params(c, at, layers, jnp.bfloat16),
        inputs=(tokens, tokens),
        backward=True,
        cut=cut or even_cut(c.num_layers, mesh.shape["pipe"] * chunks),
        microbatches=microbatches,
        schedule=schedule or ("interleaved-1f1b" if chunks > 1 else "1f1b"),
        chunks=chunks,
        boundary=P(at.batch, at.sequence, None),
        optimizer=stage_optimizer(c, at, at.state(optimizer)),
        reshard_after_forward=reshard,
        name=f"llama3-{model}",
    )
