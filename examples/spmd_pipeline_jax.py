"""A GPipe pipeline that is one SPMD program: stages along a mesh axis, a permute at each tick.

    flint capture examples/spmd_pipeline_jax.py --mesh 4x8 -o trace

Method: "GPipe" (arXiv 1811.06965), in the form that needs one program for all stages, as in "GSPMD"
(arXiv 2105.04663), section 3.3: every device holds the layers of its stage, applies them once a tick
to what it holds, and passes the result to the next stage. The loop has microbatches + stages - 1
ticks; a stage computes in all of them, in stages - 1 of them on values that nobody reads. The
backward pass is the loop the other way round, made by `jax.grad`. The sizes of a layer are those of
GPT-3 2.7B ("Language Models are Few-Shot Learners", arXiv 2005.14165, table 2.1).

    num_layers    of the whole model; "pipe" has to divide it
    seq           tokens of a sequence
    microbatches  of one step
    batch         sequences of a microbatch over the whole mesh; 0 is one for each rank of "data"
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
    dim: int = 2560
    num_heads: int = 32
    head_dim: int = 80
    hidden: int = 10_240


def normalized(x, scale):
    x = x.astype(jnp.float32)
    variance = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
    return (x * jax.lax.rsqrt(variance + 1e-5) * scale).astype(jnp.bfloat16)


def attention(x, w):
    q, k, v = jnp.einsum("bsd,dthk->tbhsk", x, w["qkv"])
    scores = jnp.einsum("bhsk,bhtk->bhst", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e30)
    weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
    return jnp.einsum("bhst,bhtk,hkd->bsd", weights, v, w["out"])


def layer(x, w):
    with jax.named_scope("attention"):
        x = x + attention(normalized(x, w["attention_norm"]), w)
    with jax.named_scope("mlp"):
        hidden = jax.nn.gelu(normalized(x, w["mlp_norm"]) @ w["up"])
        return x + hidden @ w["down"]


def pipeline(weights, x, target, *, stages: int):
    """What each device does; the loss of all.

    `weights` (layers, ...) are those of its stage, `x` and `target` (microbatches, b, s, d).
    """
    here = jax.lax.axis_index("pipe")
    to_next = [(i, i + 1) for i in range(stages - 1)]
    # Outside the loop, so that gradients are summed over "data" once a step, not once a tick.
    weights = jax.lax.pcast(weights, "data", to="varying")

    @jax.checkpoint
    def stage(x):
        return jax.lax.scan(lambda x, w: (layer(x, w), None), x, weights)[0]

    def tick(held, i):
        # The first stage takes the next microbatch; when none is left, any.
        fresh = jax.lax.dynamic_index_in_dim(x, i % x.shape[0], keepdims=False)
        done = stage(jnp.where(here == 0, fresh, held))
        return jax.lax.ppermute(done, "pipe", to_next), done

    held = jax.lax.pcast(jnp.zeros(x.shape[1:], x.dtype), ("pipe", "data"), to="varying")
    with jax.named_scope("ticks"):
        _, done = jax.lax.scan(tick, held, jnp.arange(x.shape[0] + stages - 1))
    with jax.named_scope("loss"):
        error = done[stages - 1 :].astype(jnp.float32) - target.astype(jnp.float32)
        last = jnp.where(here == stages - 1, jnp.mean(jnp.square(error)), 0.0)
        return jax.lax.psum(last, ("pipe", "data")) / jax.lax.axis_size("data")


def train_step(weights, x, target, *, mesh: AbstractMesh):
    """The loss, and weights after a step of gradient descent."""
    batch = P(None, "data")
    loss = jax.shard_map(
        functools.partial(pipeline, stages=mesh.shape["pipe"]),
        mesh=mesh,
        in_specs=(P("pipe"), batch, batch),
        out_specs=P(),
    )
    value, gradients = jax.value_and_grad(loss)(weights, x, target)
    with jax.named_scope("update"):
        return value, jax.tree.map(lambda w, g: w - 1e-3 * g, weights, gradients)


@flint.entry(axes=("pipe", "data"))
def train(
    mesh: AbstractMesh,
    *,
    num_layers: int = 32,
    seq: int = 2048,
    microbatches: int = 8,
    batch: int = 0,
) -> flint.Step:
    """One step; the layers are spread over "pipe", sequences over "data"."""
    c = Config()

    def array(shape, *spec):
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, P(*spec)))

    def stacked(*shape):
        return array((num_layers, *shape), "pipe")

    weights = {
        "attention_norm": stacked(c.dim),
        "qkv": stacked(c.dim, 3, c.num_heads, c.head_dim),
        "out": stacked(c.num_heads, c.head_dim, c.dim),
        "mlp_norm": stacked(c.dim),
        "up": stacked(c.dim, c.hidden),
        "down": stacked(c.hidden, c.dim),
    }
    x = array((microbatches, batch or mesh.shape["data"], seq, c.dim), None, "data")
    step = functools.partial(train_step, mesh=mesh)
    return flint.Step(step, (weights, x, x), name="spmd-pipeline")
