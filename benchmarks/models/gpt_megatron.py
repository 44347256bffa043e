"""GPT as Megatron-LM and Megatron-DeepSpeed trained it in 2022, for any size and parallelism.

    flint capture benchmarks/models/gpt_megatron.py --mesh pipe=8,data=1,model=8 \\
        --set microbatches=64 --set chunks=3 --set recompute=selective

"Reducing Activation Recomputation in Large Transformer Models" (arXiv 2205.05198) says what is
where: attention is written out (scores, softmax, dropout, sum of values), weights are sharded over
"model", and with `sequence_parallel` what lies between the blocks is sharded over the sequence;
without it each rank of "model" has all of it, and blocks end in an all-reduce. Between stages each
rank sends its part, and who receives it gathers all (Megatron-LM: arXiv 2104.04473, section 4.1;
DeepSpeed: `PartitionedTensor` in its pipeline engine). Linear layers have
biases; dropout follows the embedding, the softmax and each block, and keeps its mask, one byte an
element. Weights are 16 bits, the optimizer has a copy of them in 32 (FusedAdam).

    recompute       none; selective: attention between the projections; full: whole layers. As
                    torch.utils.checkpoint does it, all of the forward pass is done again, also
                    what the gradients do not need.
    microbatches    in a step and data-parallel rank, of `micro_batch` sequences each
    chunks          stages of each pipeline rank; 2 or more: interleaved 1F1B
    vocab           padded so that each rank has a multiple of 128 rows
    gradient_dtype  what gradients are accumulated and reduced in ("": 16 bits, as DeepSpeed)

Each `kernel(...)` is one that Megatron-LM of May 2022 launches: apex's layer norm, its own causal
softmax, PyTorch's dropout (which draws its numbers itself), bias + GELU and bias + dropout + add by
TorchScript. A bias's gradient is summed by a kernel of its own. In the backward pass of a column of
linear layers, the gradient of the input is reduced while that of the weights is computed.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

import flint

KEEP = 0.9
EPSILON = 1e-5
RECOMPUTE = ("none", "selective", "full")


@dataclasses.dataclass(frozen=True)
class Gpt:
    """A model, and how a step of it is run; see the module for each."""

    hidden: int
    layers: int
    heads: int
    seq: int = 2048
    vocab: int = 50_257
    micro_batch: int = 1
    microbatches: int = 1
    chunks: int = 1
    recompute: str = "none"
    sequence_parallel: bool = True
    dropout: bool = True
    gradient_dtype: str = ""
    clip: float = 1.0

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


@dataclasses.dataclass(frozen=True)
class Layout:
    """Batch over "data"; the parts of a layer over "model", and with `sequence` what is between."""

    mesh: AbstractMesh
    sequence: str | None

    def abstract(self, shape: tuple[int, ...], *spec, dtype=jnp.bfloat16) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(self.mesh, P(*spec)))

    def constrain(self, x: jax.Array, *spec) -> jax.Array:
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, P("data", *spec)))

    def residual(self, x: jax.Array) -> jax.Array:
        """Between blocks."""
        return self.constrain(x, self.sequence, None)

    def gathered(self, x: jax.Array) -> jax.Array:
        """Inside blocks the sequence is whole."""
        return self.constrain(self.residual(x), None, None) if self.sequence else x


def padded_vocab(c: Gpt, mesh: AbstractMesh) -> int:
    multiple = 128 * mesh.shape["model"]
    return math.ceil(c.vocab / multiple) * multiple


def layer_params(c: Gpt, at: Layout):
    def norm():
        return {"scale": at.abstract((c.hidden,)), "bias": at.abstract((c.hidden,))}

    heads = (c.heads, c.head_dim)
    return {
        "norm1": norm(),
        "qkv": at.abstract((c.hidden, 3, *heads), None, None, "model", None),
        "qkv_bias": at.abstract((3, *heads), None, "model", None),
        "out": at.abstract((*heads, c.hidden), "model", None, None),
        "out_bias": at.abstract((c.hidden,)),
        "norm2": norm(),
        "up": at.abstract((c.hidden, 4 * c.hidden), None, "model"),
        "up_bias": at.abstract((4 * c.hidden,), "model"),
        "down": at.abstract((4 * c.hidden, c.hidden), "model", None),
        "down_bias": at.abstract((c.hidden,)),
    }


@jax.custom_vjp
def needed_again(x: jax.Array) -> jax.Array:
    """x; where it is recomputed, all of what leads to it is, although no gradient needs it."""
    return x


def _needed_forward(x: jax.Array):
    return x, x


def _needed_backward(x: jax.Array, gradient: jax.Array):
    # A barrier would do in XLA, but JAX drops operands of it that nothing reads.
    return (gradient + 0 * x[..., :1],)


needed_again.defvjp(_needed_forward, _needed_backward)


#: What the backward pass finds of a layer, beside its input: 34 bytes for each element of the
#: input, and 5 for each of the scores (equation 1 of the paper), over "model" where it is sharded.
KEPT = ("norm", "qkv", "context", "mask", "middle", "up", "gelu")
KEPT_SCORES = ("softmax", "weights", "score mask")


def kernel(name: str):
    """A kernel that somebody wrote, or had compiled, as one: profiles leave it as it is."""
    return jax.named_scope(f"kernel.{name}")


def dropout(x: jax.Array, c: Gpt, constrain, mask: str = "mask") -> jax.Array:
    """Drop a tenth of x. Its own bits stand for Philox's: numbers that never leave the kernel."""
    if not c.dropout:
        return x
    bits = jax.lax.bitcast_convert_type(x, jnp.uint16) * jnp.uint16(40_503)
    kept = checkpoint_name(constrain(bits < jnp.uint16(KEEP * 2**16)), mask)
    return jnp.where(kept, x * jnp.bfloat16(1 / KEEP), jnp.bfloat16(0))


@jax.custom_vjp
def layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    """A kernel forward and one backward, which finds the input and what its rows are like."""
    return _norm_forward(x, scale, bias)[0]


def _norm_forward(x: jax.Array, scale: jax.Array, bias: jax.Array):
    with kernel("norm"):
        x32 = x.astype(jnp.float32)
        mean = jnp.mean(x32, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(x32 - mean), axis=-1, keepdims=True)
        mean = checkpoint_name(mean, "norm")
        inverse = checkpoint_name(jax.lax.rsqrt(variance + EPSILON), "norm")
        y = ((x32 - mean) * inverse).astype(x.dtype) * scale + bias
    return y, (x, scale, mean, inverse)


def _norm_backward(kept, gradient: jax.Array):
    x, scale, mean, inverse = kept
    with kernel("norm_backward"):
        y = x.astype(jnp.float32) * inverse - mean * inverse
        g = gradient.astype(jnp.float32)
        rows = tuple(range(x.ndim - 1))
        d_scale, d_bias = jnp.sum(g * y, axis=rows), jnp.sum(g, axis=rows)
        g *= scale
        inner = jnp.mean(g * y, axis=-1, keepdims=True)
        d_x = (g - jnp.mean(g, axis=-1, keepdims=True) - y * inner) * inverse
        return d_x.astype(x.dtype), d_scale.astype(scale.dtype), d_bias.astype(scale.dtype)


layer_norm.defvjp(_norm_forward, _norm_backward)


@jax.custom_vjp
def bias_gelu(x: jax.Array, bias: jax.Array) -> jax.Array:
    """The approximation by tanh; its backward pass has the input alone."""
    with kernel("bias_gelu"):
        return jax.nn.gelu(x + bias)


def _gelu_forward(x: jax.Array, bias: jax.Array):
    return bias_gelu(x, bias), (x, bias)


def _gelu_backward(kept, gradient: jax.Array):
    with kernel("bias_gelu_backward"):
        x = kept[0].astype(jnp.float32) + kept[1]
        inner = jnp.tanh(0.79788456 * x * (1 + 0.044715 * x * x))
        slope = 0.5 * x * ((1 - inner * inner) * (0.79788456 + 0.1070322243 * x * x))
        d_x = ((slope + 0.5 * (1 + inner)) * gradient).astype(gradient.dtype)
    return d_x, jnp.sum(d_x, axis=tuple(range(d_x.ndim - 1)))


bias_gelu.defvjp(_gelu_forward, _gelu_backward)


def bias_dropout_add(
    x: jax.Array, bias: jax.Array, residual: jax.Array, c: Gpt, at: Layout, last=False
):
    """How a block ends; the second one also ends what is recomputed."""
    bias = jnp.broadcast_to(bias, x.shape)  # outside: its gradient is another kernel's
    with kernel("bias_dropout_add"):
        x = residual + dropout(x + bias, c, at.residual)
        return needed_again(x) if last and c.recompute == "full" else x


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def causal_softmax(scores: jax.Array, scale: float) -> jax.Array:
    """Scale, mask and softmax in one kernel, of which the backward pass has the result."""
    seq = scores.shape[-1]
    with kernel("softmax"):
        causal = jnp.arange(seq)[:, None] >= jnp.arange(seq)
        scaled = jnp.where(causal, scores.astype(jnp.float32) * scale, -1e4)
        return jax.nn.softmax(scaled, axis=-1).astype(scores.dtype)


def _softmax_forward(scores: jax.Array, scale: float):
    weights = checkpoint_name(causal_softmax(scores, scale), "softmax")
    return weights, weights


def _softmax_backward(scale: float, weights: jax.Array, gradient: jax.Array):
    with kernel("softmax_backward"):
        y, g = weights.astype(jnp.float32), gradient.astype(jnp.float32)
        inner = jnp.sum(y * g, axis=-1, keepdims=True)
        return ((y * (g - inner) * scale).astype(weights.dtype),)


causal_softmax.defvjp(_softmax_forward, _softmax_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def column_linear(x: jax.Array, w: jax.Array, pattern: str, at: Layout) -> jax.Array:
    """A linear layer whose outputs are over "model", of all of the sequence.

    Backward, the sequence is gathered again, and the sum of the gradients of x over "model" is
    under way while that of w is computed.
    """
    return jnp.einsum(pattern, at.gathered(x), w)


def _column_forward(x: jax.Array, w: jax.Array, pattern: str, at: Layout):
    return column_linear(x, w, pattern, at), (x, w)


def _column_backward(pattern: str, at: Layout, kept, gradient: jax.Array):
    x, w = kept
    operands, out = pattern.split("->")
    of_x, of_w = operands.split(",")
    x = at.gathered(x)
    d_x = at.residual(jnp.einsum(f"{out},{of_w}->{of_x}", gradient, w))
    return d_x, jnp.einsum(f"{of_x},{out}->{of_w}", x, gradient)


column_linear.defvjp(_column_forward, _column_backward)


def attention(x, p, c: Gpt, at: Layout):
    def over_heads(x):
        return at.constrain(x, "model", None, None)

    y = checkpoint_name(layer_norm(x, p["norm1"]["scale"], p["norm1"]["bias"]), "norm")
    qkv = column_linear(y, p["qkv"], "bsd,dchk->bschk", at)
    bias = jnp.broadcast_to(p["qkv_bias"], qkv.shape)
    with kernel("qkv_bias"):
        qkv = at.constrain(qkv + bias, None, None, "model", None)
    qkv = checkpoint_name(qkv, "qkv")
    q, k, v = (at.constrain(qkv[:, :, i], None, "model", None) for i in range(3))
    scores = over_heads(jnp.einsum("bshk,bthk->bhst", q, k))
    weights = causal_softmax(scores, c.head_dim**-0.5)
    with kernel("dropout"):
        weights = dropout(weights, c, over_heads, "score mask")
    weights = checkpoint_name(weights, "weights")
    out = at.constrain(jnp.einsum("bhst,bthk->bshk", weights, v), None, "model", None)
    if c.recompute == "selective":
        out = needed_again(out)
    out = checkpoint_name(out, "context")
    return at.residual(jnp.einsum("bshk,hkd->bsd", out, p["out"]))


def mlp(x, p, at: Layout):
    y = checkpoint_name(layer_norm(x, p["norm2"]["scale"], p["norm2"]["bias"]), "norm")
    up = at.constrain(column_linear(y, p["up"], "bsd,df->bsf", at), None, "model")
    up = bias_gelu(checkpoint_name(up, "up"), p["up_bias"])
    return at.residual(jnp.einsum("bsf,fd->bsd", checkpoint_name(up, "gelu"), p["down"]))


def layer(p, x, *, c: Gpt, at: Layout):
    """One Transformer layer."""
    with jax.named_scope("attention"):
        x = bias_dropout_add(attention(x, p, c, at), p["out_bias"], x, c, at)
        x = checkpoint_name(x, "middle")
    with jax.named_scope("mlp"):
        x = bias_dropout_add(mlp(x, p, at), p["down_bias"], x, c, at, last=True)
    return x


def kept_by(c: Gpt):
    """What is kept of a layer."""
    names = {"none": KEPT + KEPT_SCORES, "selective": KEPT, "full": ()}[c.recompute]
    return jax.checkpoint_policies.save_only_these_names(*names)


def embed(p, tokens, *, c: Gpt, at: Layout):
    with jax.named_scope("embed"):
        x = at.residual(at.constrain(p["table"][tokens], None, None))
        x = at.residual(x + p["positions"])
        with kernel("dropout"):
            return dropout(x, c, at.residual)


def head(p, x, *, at: Layout):
    with jax.named_scope("head"):
        x = layer_norm(at.residual(x), p["scale"], p["bias"])
        return at.constrain(column_linear(x, p["table"], "bsd,vd->bsv", at), None, "model")


def cross_entropy(logits, targets):
    with jax.named_scope("loss"):
        logits = logits.astype(jnp.float32)
        # A comparison and a sum leave the logits sharded over the vocabulary; indexing might not.
        picked = jnp.arange(logits.shape[-1]) == targets[..., None]
        target_logit = jnp.sum(jnp.where(picked, logits, 0.0), axis=-1)
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - target_logit)


def adam_init(params):
    def state():
        return jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)

    return {"master": state(), "m": state(), "v": state(), "count": jnp.zeros((), jnp.int32)}


@jax.jit
def adam(p, g, master, m, v, count, rate=1e-4, b1=0.9, b2=0.95, epsilon=1e-8, decay=0.1):
    """Megatron's optimizer for 16 bits; what scaled the loss is divided out of the gradients."""
    with kernel("unscale"):
        g = g.astype(jnp.float32) * 2.0**-16
    with kernel("adam"):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * jnp.square(g)
        update = (m / (1 - b1**count)) / (jnp.sqrt(v / (1 - b2**count)) + epsilon)
        master -= rate * (update + decay * master)
    with kernel("copy"):
        return master.astype(p.dtype), master, m, v


def adam_update(params, gradients, state):
    """FusedAdam on copies of the weights in 32 bits."""
    count = state["count"] + 1
    step = functools.partial(adam, count=count.astype(jnp.float32))
    new = jax.tree.map(step, params, gradients, state["master"], state["m"], state["v"])
    params, master, m, v = jax.tree.transpose(jax.tree.structure(params), None, new)
    return params, {"master": master, "m": m, "v": v, "count": count}


def step(mesh: AbstractMesh, c: Gpt) -> flint.Pipeline:
    """One training step of `c` on microbatches * micro_batch sequences for each data rank."""
    at = Layout(mesh, "model" if c.sequence_parallel else None)
    batch = c.microbatches * c.micro_batch * mesh.shape["data"]
    tokens = at.abstract((batch, c.seq), "data", None, dtype=jnp.int32)
    table = at.abstract((padded_vocab(c, mesh), c.hidden), "model", None)
    embedding = {"table": table, "positions": at.abstract((c.seq, c.hidden))}
    norm = {"scale": at.abstract((c.hidden,)), "bias": at.abstract((c.hidden,))}
    block = jax.checkpoint(functools.partial(layer, c=c, at=at), policy=kept_by(c))
    return flint.Pipeline(
        stages=[
            flint.Stage(functools.partial(embed, c=c, at=at), embedding, "embed"),
            flint.Layers(block, layer_params(c, at), c.layers, ends=at.residual),
            flint.Stage(functools.partial(head, at=at), norm | {"table": table}, "head"),
        ],
        inputs=(tokens,),
        targets=(tokens,),
        loss=cross_entropy,
        microbatches=c.microbatches,
        schedule="interleaved-1f1b" if c.chunks > 1 else "1f1b",
        chunks=c.chunks,
        boundary=P("data", "model", None),
        tied=[("embed['table']", "head['table']")],
        optimizer=(adam_init, adam_update),
        clip_norm=c.clip or None,
        gradient_dtype=c.gradient_dtype,
        name=f"gpt-{c.hidden}x{c.layers}",
    )


@flint.entry(axes=("pipe", "data", "model"))
def train(
    mesh: AbstractMesh,
    *,
    hidden: int = 12_288,
    num_layers: int = 96,
    heads: int = 96,
    seq: int = 2048,
    micro_batch: int = 1,
    microbatches: int = 8,
    chunks: int = 1,
    recompute: str = "none",
    sequence_parallel: bool = True,
    dropout: bool = True,
    gradient_dtype: str = "",
) -> flint.Pipeline:
    """The step of a model of the given size, by default of 175 billion parameters."""
    if recompute not in RECOMPUTE:
        raise ValueError(f"recompute is one of {', '.join(RECOMPUTE)}")
    config = Gpt(
        hidden=hidden, layers=num_layers, heads=heads, seq=seq, micro_batch=micro_batch,
        microbatches=microbatches, chunks=chunks, recompute=recompute,
        sequence_parallel=sequence_parallel, dropout=dropout, gradient_dtype=gradient_dtype,
    )  # fmt: skip
    return step(mesh, config)
