"""Ring attention: forward and backward of one attention block over a very long sequence.

    flint capture examples/ring_attention_jax.py --mesh 4x16 -o trace

Method: "Ring Attention with Blockwise Transformers" (arXiv 2310.01889). Each device of the axis
"seq" holds one block of the sequence; keys and values travel once round the ring while a running
softmax adds up their blocks, and once more in the backward pass, with their gradients.
Configuration: the attention of Llama 3 8B at the 131,072 tokens and the 16-way context parallelism
that "The Llama 3 Herd of Models" (arXiv 2407.21783), section 3.3.2, reports.

    seq     tokens of a sequence
    batch   sequences over the whole mesh; 0 is one for each rank of "data"
    causal  masks the future; every block is still computed, so later ranks do not wait less
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
    dim: int = 4096
    num_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128
    rope_theta: float = 500_000.0
    causal: bool = True


def rotary(x, theta):
    seq, head_dim = x.shape[1], x.shape[3]
    frequency = theta ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    angle = jnp.arange(seq, dtype=jnp.float32)[:, None] * frequency
    cos, sin = jnp.cos(angle)[None, :, None, :], jnp.sin(angle)[None, :, None, :]
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def add_block(state, q, k, v, mask):
    """Add one block of keys and values to the running softmax (numerator, denominator, maximum)."""
    total, norm, top = state
    scores = jnp.einsum("bsngk,btnk->bngst", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5
    scores = jnp.where(mask, scores, -1e30)
    new_top = jnp.maximum(top, jax.lax.stop_gradient(jnp.max(scores, axis=-1)))
    rescale = jnp.exp(top - new_top)
    weights = jnp.exp(scores - new_top[..., None])
    block = jnp.einsum("bngst,btnk->bngsk", weights.astype(v.dtype), v)
    total = total * rescale[..., None] + block.astype(jnp.float32)
    return total, norm * rescale + jnp.sum(weights, axis=-1), new_top


def ring(q, k, v, *, ring_size: int, c: Config):
    """What each device does with its own blocks (batch, block, heads, head_dim)."""
    batch, block, _, head_dim = q.shape
    q = q.reshape(batch, block, c.num_kv_heads, -1, head_dim)
    here = jax.lax.axis_index("seq")
    to_next = [(i, (i + 1) % ring_size) for i in range(ring_size)]

    def mask(source):
        if not c.causal:
            return True
        mine = here * block + jnp.arange(block)
        return mine[:, None] >= source * block + jnp.arange(block)

    @jax.checkpoint  # the backward pass computes the scores of a block again
    def step(carry, i):
        k, v, state = carry
        k, v = (jax.lax.ppermute(x, "seq", to_next) for x in (k, v))
        return (k, v, add_block(state, q, k, v, mask((here - i) % ring_size))), None

    shape = (batch, c.num_kv_heads, q.shape[3], block)
    zero = jnp.zeros((*shape, head_dim)), jnp.zeros(shape), jnp.full(shape, -1e30)
    zero = jax.lax.pcast(zero, ("data", "seq"), to="varying")
    state = jax.checkpoint(add_block)(zero, q, k, v, mask(here))
    (_, _, (total, norm, _)), _ = jax.lax.scan(step, (k, v, state), jnp.arange(1, ring_size))
    out = (total / norm[..., None]).astype(q.dtype)
    return jnp.moveaxis(out, 3, 1).reshape(batch, block, c.num_heads, head_dim)


def attention(params, x, *, c: Config, mesh: AbstractMesh):
    with jax.named_scope("project"):
        q, k, v = (jnp.einsum("bsd,dhk->bshk", x, params[name]) for name in ("wq", "wk", "wv"))
        q, k = rotary(q, c.rope_theta), rotary(k, c.rope_theta)
    with jax.named_scope("ring"):
        blocks = P("data", "seq")
        body = functools.partial(ring, ring_size=mesh.shape["seq"], c=c)
        mapped = jax.shard_map(body, mesh=mesh, in_specs=(blocks,) * 3, out_specs=blocks)
        out = mapped(q, k, v)
    with jax.named_scope("output"):
        return jnp.einsum("bshk,hkd->bsd", out, params["wo"])


def forward_backward(params, x, gradient, *, c: Config, mesh: AbstractMesh):
    """The output of the block, and what the backward pass makes of a gradient of it."""
    y, backward = jax.vjp(functools.partial(attention, c=c, mesh=mesh), params, x)
    return y, *backward(gradient)


@flint.entry(axes=("data", "seq"))
def train(
    mesh: AbstractMesh, *, seq: int = 131_072, batch: int = 0, causal: bool = True
) -> flint.Step:
    """Forward and backward of one attention block; the weights are on every device."""
    c = Config(causal=causal)

    def array(shape, *spec):
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, P(*spec)))

    params = {
        "wq": array((c.dim, c.num_heads, c.head_dim)),
        "wk": array((c.dim, c.num_kv_heads, c.head_dim)),
        "wv": array((c.dim, c.num_kv_heads, c.head_dim)),
        "wo": array((c.num_heads, c.head_dim, c.dim)),
    }
    x = array((batch or mesh.shape["data"], seq, c.dim), "data", "seq", None)
    step = functools.partial(forward_backward, c=c, mesh=mesh)
    return flint.Step(step, (params, x, x), name="ring-attention")
