"""GPT-3: one training step of the 175B model as Megatron-LM splits it, in pipeline stages.

    flint capture examples/gpt3_jax.py --mesh pipe=8,data=1,model=8 --microbatches 8 -o trace
    flint capture examples/gpt3_jax.py --mesh pipe=8,data=8,model=8 --microbatches 64
    flint capture examples/gpt3_jax.py --mesh pipe=8,data=8,model=8 --set chunks=2

Configurations: "Language Models are Few-Shot Learners" (arXiv 2005.14165), table 2.1; the vocabulary
is padded to 51,200 so that 8 ranks share it, as in "Reducing Activation Recomputation in Large
Transformer Models" (arXiv 2205.05198), whose tensor and sequence parallelism this is: weights are
sharded over "model"; between the blocks, and so between the stages, activations are sharded over
the sequence. What enters a block is gathered for the forward pass, and once more for the gradients
of its weights; it is kept sharded. The embedding is also the head: its two copies, in the first and
the last stage, add up their gradients. Weights are bfloat16, AdamW's moments are float32. All layers
attend to the whole sequence, and there is no dropout.

    microbatches, schedule   as `--microbatches` and `--schedule`
    chunks          stages that each rank holds; with 2 or more the schedule is interleaved-1f1b
    model           175b, 13b, 6.7b
    micro_batch     sequences of one microbatch for each data-parallel rank
    remat           none keeps every activation, selective recomputes the attention between the
                    projections, full each layer
    gradient_dtype  what gradients are accumulated and reduced in: empty for their own, or float32 as
                    Megatron-LM does by default
    clip            largest global norm of the gradients, 0 for any
    num_layers      cuts the model short; 0 is the published depth
"""

import dataclasses
import functools
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
    seq: int = 2048
    vocab: int = 51_200
    norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.dim // self.num_heads


CONFIGS = {
    "6.7b": Config(dim=4096, num_layers=32, num_heads=32),
    "13b": Config(dim=5120, num_layers=40, num_heads=40),  # the table's 5140 is not 40 heads of 128
    "175b": Config(dim=12_288, num_layers=96, num_heads=96),
}
REMAT = ("none", "selective", "full")


@dataclasses.dataclass(frozen=True)
class Layout:
    """Batch over "data"; the parts of a layer, and activations between layers, over "model"."""

    mesh: AbstractMesh

    def abstract(self, shape: tuple[int, ...], *spec, dtype=jnp.bfloat16) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(self.mesh, P(*spec)))

    def constrain(self, x: jax.Array, *spec) -> jax.Array:
        """Pin a (batch, ...) activation; `spec` is for the dimensions after batch."""
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, P("data", *spec)))

    def residual(self, x: jax.Array) -> jax.Array:
        """Between blocks: sharded over the sequence."""
        return self.constrain(x, "model", None)

    def gathered(self, x: jax.Array) -> jax.Array:
        """Inside blocks the sequence is whole."""
        return self.constrain(self.residual(x), None, None)


def embed_params(c: Config, at: Layout):
    return {
        "table": at.abstract((c.vocab, c.dim), "model", None),
        "positions": at.abstract((c.seq, c.dim)),
    }


def layer_params(c: Config, at: Layout):
    def norm():
        return {"scale": at.abstract((c.dim,)), "bias": at.abstract((c.dim,))}

    heads = (c.num_heads, c.head_dim)
    return {
        "norm1": norm(),
        "qkv": at.abstract((c.dim, 3, *heads), None, None, "model", None),
        "qkv_bias": at.abstract((3, *heads), None, "model", None),
        "out": at.abstract((*heads, c.dim), "model", None, None),
        "out_bias": at.abstract((c.dim,)),
        "norm2": norm(),
        "up": at.abstract((c.dim, 4 * c.dim), None, "model"),
        "up_bias": at.abstract((4 * c.dim,), "model"),
        "down": at.abstract((4 * c.dim, c.dim), "model", None),
        "down_bias": at.abstract((c.dim,)),
    }


def head_params(c: Config, at: Layout):
    return {
        "scale": at.abstract((c.dim,)),
        "bias": at.abstract((c.dim,)),
        "table": at.abstract((c.vocab, c.dim), "model", None),
    }


def layer_norm(x, p, eps):
    x32 = x.astype(jnp.float32)
    x32 -= jnp.mean(x32, axis=-1, keepdims=True)
    x32 *= jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + eps)
    return x32.astype(x.dtype) * p["scale"] + p["bias"]


def embed(p, tokens, *, c: Config, at: Layout):
    with jax.named_scope("embed"):
        x = at.residual(at.constrain(p["table"][tokens], None, None))
        return at.residual(x + p["positions"])


def project_in(x, p, c: Config, at: Layout):
    y = at.gathered(layer_norm(x, p["norm1"], c.norm_eps))
    qkv = jnp.einsum("bsd,dchk->cbshk", y, p["qkv"]) + p["qkv_bias"][:, None, None]
    return tuple(at.constrain(part, None, "model", None) for part in qkv)


def attend(q, k, v, at: Layout):
    seq, head_dim = q.shape[1], q.shape[3]
    scores = jnp.einsum("bshk,bthk->bhst", q, k).astype(jnp.float32) * head_dim**-0.5
    causal = jnp.arange(seq)[:, None] >= jnp.arange(seq)
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e30), axis=-1).astype(q.dtype)
    out = jnp.einsum("bhst,bthk->bshk", weights, v)
    return at.constrain(out, None, "model", None)


def project_out(x, out, p, at: Layout):
    return x + (at.residual(jnp.einsum("bshk,hkd->bsd", out, p["out"])) + p["out_bias"])


def mlp(x, p, c: Config, at: Layout):
    y = at.gathered(layer_norm(x, p["norm2"], c.norm_eps))
    up = at.constrain(jnp.einsum("bsd,df->bsf", y, p["up"]) + p["up_bias"], None, "model")
    down = at.residual(jnp.einsum("bsf,fd->bsd", jax.nn.gelu(up), p["down"]))
    return x + (down + p["down_bias"])


def keeping(function, policy):
    return jax.checkpoint(function, policy=policy)


def all_but_gathered(primitive, *_, **__):
    """Keep everything except what a sharding was set on: inputs of blocks stay sharded."""
    return primitive.name != "sharding_constraint"


def layer(p, x, *, c: Config, at: Layout, remat: str):
    """One Transformer layer, in the parts of which each decides what the backward pass keeps."""
    core = jax.checkpoint_policies.nothing_saveable if remat == "selective" else all_but_gathered
    with jax.named_scope("attention"):
        q, k, v = keeping(functools.partial(project_in, c=c, at=at), all_but_gathered)(x, p)
        out = keeping(functools.partial(attend, at=at), core)(q, k, v)
        x = keeping(functools.partial(project_out, at=at), all_but_gathered)(x, out, p)
    with jax.named_scope("mlp"):
        return keeping(functools.partial(mlp, c=c, at=at), all_but_gathered)(x, p)


def head(p, x, *, c: Config, at: Layout):
    with jax.named_scope("head"):
        x = at.gathered(layer_norm(x, p, c.norm_eps))
        return at.constrain(jnp.einsum("bsd,vd->bsv", x, p["table"]), None, "model")


def cross_entropy(logits, targets):
    with jax.named_scope("loss"):
        logits = logits.astype(jnp.float32)
        # A comparison and a sum leave the logits sharded over the vocabulary; indexing might not.
        picked = jnp.arange(logits.shape[-1]) == targets[..., None]
        target_logit = jnp.sum(jnp.where(picked, logits, 0.0), axis=-1)
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - target_logit)


@flint.entry(axes=("pipe", "data", "model"))
def train(
    mesh: AbstractMesh,
    *,
    microbatches: int = 8,
    schedule: Annotated[str, ("", "zb-h1")] = "",
    chunks: Annotated[int, (1, 2)] = 1,
    model: str = "175b",
    micro_batch: int = 1,
    remat: Literal["none", "selective", "full"] = "none",
    gradient_dtype: str = "",
    clip: float = 1.0,
    num_layers: int = 0,
) -> flint.Pipeline:
    """One training step on microbatches * micro_batch sequences for each data-parallel rank."""
    if model not in CONFIGS or remat not in REMAT:
        raise ValueError("model is 175b, 13b or 6.7b; remat none, selective or full")
    c, at = CONFIGS[model], Layout(mesh)
    batch = microbatches * micro_batch * mesh.shape["data"]
    tokens = at.abstract((batch, c.seq), "data", None, dtype=jnp.int32)
    block = functools.partial(layer, c=c, at=at, remat=remat)
    if remat == "full":
        block = keeping(block, jax.checkpoint_policies.nothing_saveable)
    return flint.Pipeline(
        stages=[
            flint.Stage(functools.partial(embed, c=c, at=at), embed_params(c, at), "embed"),
            flint.Layers(block, layer_params(c, at), num_layers or c.num_layers),
            flint.Stage(functools.partial(head, c=c, at=at), head_params(c, at), "head"),
        ],
        inputs=(tokens,),
        targets=(tokens,),
        loss=cross_entropy,
        microbatches=microbatches,
        schedule=schedule or ("interleaved-1f1b" if chunks > 1 else "1f1b"),
        chunks=chunks,
        boundary=P("data", "model", None),
        tied=[("embed['table']", "head['table']")],
        optimizer="adamw",
        clip_norm=clip or None,
        gradient_dtype=gradient_dtype,
        name=f"gpt3-{model}",
    )
