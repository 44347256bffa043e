"""Mamba-2: training in chunks, and the decoding of one token with a state instead of a cache.

"Transformers are SSMs" (arXiv 2405.21060), section 6 (products within chunks, a scan between them) and the
configurations of the released weights: state of 128, heads of 64, expansion 2, chunks of 256 tokens. Weights
are sharded over "data" (FSDP), heads over "model".
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from adam import updated
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

import flint


@dataclasses.dataclass(frozen=True)
class Config:
    dim: int
    num_layers: int
    state: int = 128
    head_dim: int = 64
    chunk: int = 256
    window: int = 4
    vocab: int = 50_288

    @property
    def heads(self) -> int:
        return 2 * self.dim // self.head_dim


CONFIGS = {"mamba2-1.3b": Config(2048, 48), "mamba2-2.7b": Config(2560, 64)}


def norm(x, scale):
    x32 = x.astype(jnp.float32)
    x32 *= jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + 1e-5)
    return x32.astype(x.dtype) * scale


def projections(x, p):
    z, u = jnp.einsum("bsd,dnhk->nbshk", x, p["in"])
    b, c = jnp.einsum("bsd,dnk->nbsk", x, p["state"])
    step = jax.nn.softplus(jnp.einsum("bsd,dh->bsh", x, p["step"]).astype(jnp.float32))
    return z, u, b, c, step


def convolved(u, kernel):
    """A causal convolution of each channel over the last tokens."""
    padded = jnp.pad(u, ((0, 0), (len(kernel) - 1, 0), (0, 0), (0, 0)))
    parts = (padded[:, n : n + u.shape[1]] * kernel[n] for n in range(len(kernel)))
    return jax.nn.silu(sum(parts))


def scanned(u, b, c, decay, chunk):
    """What each token reads of those before it: within its chunk by products, of others by the state."""
    batch, seq, heads, width = u.shape
    u, b, c, decay = (t.reshape(batch, seq // chunk, chunk, *t.shape[2:]) for t in (u, b, c, decay))
    total = jnp.cumsum(decay, axis=2)
    span = total[:, :, :, None] - total[:, :, None]  # (batch, chunks, to, from, heads)
    causal = jnp.arange(chunk)[:, None] >= jnp.arange(chunk)
    weight = jnp.where(causal[None, None, :, :, None], jnp.exp(span), 0.0).astype(u.dtype)
    scores = jnp.einsum("bnsk,bntk->bnst", c, b)
    inside = jnp.einsum("bnst,bnsth,bnthp->bnshp", scores, weight, u)
    left = jnp.exp(total[:, :, -1:] - total).astype(u.dtype)
    states = jnp.einsum("bntk,bnth,bnthp->nbhpk", b, left, u)
    last = jnp.exp(total[:, :, -1]).astype(u.dtype).transpose(1, 0, 2)

    def pass_on(state, made):
        new, kept = made
        return state * kept[..., None, None] + new, state

    _, before = jax.lax.scan(pass_on, jnp.zeros_like(states[0]), (states, last))
    outside = jnp.einsum("bnsk,bnsh,nbhpk->bnshp", c, jnp.exp(total).astype(u.dtype), before)
    return (inside + outside).reshape(batch, seq, heads, width)


def layer(x, p, c: Config, whole):
    z, u, b, q, step = projections(norm(x, p["norm"]), p)
    u = convolved(u, p["kernel"])
    y = scanned(u * step[..., None].astype(u.dtype), b, q, -step * jnp.exp(p["rate"]), c.chunk)
    y = (y + u * p["skip"][:, None]) * jax.nn.silu(z)
    return x + whole(jnp.einsum("bshk,hkd->bsd", y, p["out"])), None


def loss_fn(params, tokens, targets, *, c: Config, whole):
    x = whole(params["embed"][tokens])
    step = jax.checkpoint(functools.partial(layer, c=c, whole=whole))
    x, _ = jax.lax.scan(step, x, params["layers"])
    logits = jnp.einsum("bsd,vd->bsv", norm(x, params["norm"]), params["embed"]).astype(jnp.float32)
    picked = jnp.sum(jnp.where(jnp.arange(c.vocab) == targets[..., None], logits, 0.0), axis=-1)
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)


def train_step(params, moments, tokens, targets, *, c: Config, whole):
    loss, grads = jax.value_and_grad(loss_fn)(params, tokens, targets, c=c, whole=whole)
    return *updated(params, grads, moments, 0.95), loss


def decode_step(params, states, windows, token, *, c: Config, whole):
    def one(x, given):
        p, state, window = given
        z, u, b, q, step = projections(norm(x, p["norm"]), p)
        window = jnp.concatenate([window[:, 1:], u], axis=1)
        u = jax.nn.silu(jnp.sum(window * p["kernel"], axis=1))
        kept = jnp.exp(-step[:, 0] * jnp.exp(p["rate"])).astype(state.dtype)
        added = jnp.einsum("bhp,bk->bhpk", u * step[:, 0, :, None].astype(u.dtype), b[:, 0])
        state = state * kept[..., None, None] + added
        y = jnp.einsum("bhpk,bk->bhp", state, q[:, 0]) + u * p["skip"][:, None]
        y = y[:, None] * jax.nn.silu(z)
        return x + whole(jnp.einsum("bshk,hkd->bsd", y, p["out"])), (state, window)

    x = whole(params["embed"][token][:, None])
    x, (states, windows) = jax.lax.scan(one, x, (params["layers"], states, windows))
    logits = jnp.einsum("bd,vd->bv", norm(x[:, 0], params["norm"]), params["embed"])
    return states, windows, jnp.argmax(logits, axis=-1).astype(jnp.int32)


def maker(mesh: AbstractMesh):
    def array(shape, *spec, dtype=jnp.bfloat16):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))

    return array


def weights(c: Config, mesh: AbstractMesh, dtype, fsdp):
    array = maker(mesh)

    def stacked(shape, *spec, dtype=dtype):
        return array((c.num_layers, *shape), None, *spec, dtype=dtype)

    layers = {
        "norm": stacked((c.dim,)),
        "in": stacked((c.dim, 2, c.heads, c.head_dim), fsdp, None, "model"),
        "state": stacked((c.dim, 2, c.state), fsdp),
        "step": stacked((c.dim, c.heads), fsdp, "model"),
        "kernel": stacked((c.window, c.heads, c.head_dim), None, "model"),
        "rate": stacked((c.heads,), "model", dtype=jnp.float32),
        "skip": stacked((c.heads,), "model"),
        "out": stacked((c.heads, c.head_dim, c.dim), "model", None, fsdp),
    }
    embed = array((c.vocab, c.dim), "model", fsdp, dtype=dtype)
    return {"embed": embed, "layers": layers, "norm": array((c.dim,), dtype=dtype)}


def whole(mesh: AbstractMesh):
    def at(x):
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("data", None, None)))

    return at


@flint.entry(axes=("data", "model"), default=True)
def train(mesh: AbstractMesh, *, model: str = "mamba2-2.7b", seq: int = 4096) -> flint.Step:
    """One step of Adam; one sequence for each rank of "data"."""
    c = CONFIGS[model]
    tokens = maker(mesh)((mesh.shape["data"], seq), "data", dtype=jnp.int32)
    moments = tuple(weights(c, mesh, jnp.float32, "data") for _ in range(2))
    args = (weights(c, mesh, jnp.bfloat16, "data"), moments, tokens, tokens)
    step = functools.partial(train_step, c=c, whole=whole(mesh))
    return flint.Step(step, args, donate_argnums=(0, 1), name=model)


@flint.entry(axes=("data", "model"))
def decode(mesh: AbstractMesh, *, model: str = "mamba2-2.7b", batch: int = 64) -> flint.Step:
    """One more token of `batch` sequences for each rank of "data"."""
    c, array = CONFIGS[model], maker(mesh)
    batch = batch * mesh.shape["data"]
    states = array((c.num_layers, batch, c.heads, c.head_dim, c.state), None, "data", "model")
    windows = array(
        (c.num_layers, batch, c.window, c.heads, c.head_dim), None, "data", None, "model"
    )
    token = array((batch,), "data", dtype=jnp.int32)
    step = functools.partial(decode_step, c=c, whole=whole(mesh))
    args = (weights(c, mesh, jnp.bfloat16, None), states, windows, token)
    return flint.Step(step, args, donate_argnums=(1, 2), name=f"{model}-decode")
