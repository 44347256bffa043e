"""Vision transformers and diffusion transformers: training, and the pass that a sampler repeats.

ViT: "An Image is Worth 16x16 Words" (arXiv 2010.11929), table 1. DiT: "Scalable Diffusion Models with
Transformers" (arXiv 2212.09748), table 1; its blocks scale and shift by the condition (adaLN-Zero), and it
sees latents of 32x32 or 64x64 with 4 channels in patches of 2. Weights are sharded over "data" and gathered
where they are used (FSDP), heads and hidden layers over "model".
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
    num_heads: int
    patch: int
    image: int
    channels: int = 3
    outputs: int = 1000
    is_conditional: bool = False

    @property
    def tokens(self) -> int:
        return (self.image // self.patch) ** 2

    @property
    def inputs(self) -> int:
        return self.patch**2 * self.channels


CONFIGS = {
    "vit-l/16": Config(1024, 24, 16, 16, 224),
    "vit-h/14": Config(1280, 32, 16, 14, 224),
    "vit-g/14": Config(1408, 40, 16, 14, 224),
    "dit-l/2": Config(1024, 24, 16, 2, 32, 4, 32, True),
    "dit-xl/2": Config(1152, 28, 16, 2, 32, 4, 32, True),
    "dit-xl/2-512": Config(1152, 28, 16, 2, 64, 4, 32, True),
}


def norm(x):
    x32 = x.astype(jnp.float32)
    centered = x32 - jnp.mean(x32, axis=-1, keepdims=True)
    scale = jax.lax.rsqrt(jnp.mean(jnp.square(centered), axis=-1, keepdims=True) + 1e-6)
    return (centered * scale).astype(x.dtype)


def block(x, p, condition, c: Config, at):
    """A layer; `condition` (batch, dim) shifts, scales and gates both halves of a DiT's."""
    shift = [0.0] * 6
    if condition is not None:
        made = jnp.einsum("bd,dnk->nbk", jax.nn.silu(condition), p["modulation"])
        shift = [m[:, None] for m in made]
    y = norm(x) * (1 + shift[0]) + shift[1]
    q, k, v = jnp.einsum("bsd,dnhk->nbshk", y, p["qkv"])
    scores = jnp.einsum("bshk,bthk->bhst", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5
    y = jnp.einsum("bhst,bthk->bshk", jax.nn.softmax(scores, axis=-1).astype(x.dtype), v)
    x = x + at(jnp.einsum("bshk,hkd->bsd", y, p["out"]) * (shift[2] if c.is_conditional else 1))
    y = jax.nn.gelu(jnp.einsum("bsd,df->bsf", norm(x) * (1 + shift[3]) + shift[4], p["up"]))
    return x + at(jnp.einsum("bsf,fd->bsd", y, p["down"]) * (shift[5] if c.is_conditional else 1))


def forward(params, patches, condition, *, c: Config, at):
    x = at(jnp.einsum("bsi,id->bsd", patches, params["embed"]) + params["positions"])
    step = jax.checkpoint(lambda x, p: (block(x, p, condition, c, at), None))
    x, _ = jax.lax.scan(step, x, params["layers"])
    if not c.is_conditional:
        x = jnp.mean(x, axis=1)
    return jnp.einsum("...d,do->...o", norm(x), params["head"])


def loss_fn(params, patches, condition, targets, *, c: Config, at):
    out = forward(params, patches, condition, c=c, at=at).astype(jnp.float32)
    if c.is_conditional:
        return jnp.mean(jnp.square(out[..., : c.inputs] - targets))
    return jnp.mean(
        jax.nn.logsumexp(out, -1) - jnp.take_along_axis(out, targets[:, None], -1)[:, 0]
    )


def train_step(params, moments, patches, condition, targets, *, c: Config, at):
    loss, grads = jax.value_and_grad(loss_fn)(params, patches, condition, targets, c=c, at=at)
    return *updated(params, grads, moments, 0.999), loss


def arguments(mesh: AbstractMesh, model: str, batch: int):
    """Configuration, abstract weights by type, patches, condition, and how activations lie."""
    c = CONFIGS[model]

    def array(shape, *spec, dtype=jnp.bfloat16):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))

    def weights(dtype):
        def stacked(shape, *spec):
            return array((c.num_layers, *shape), None, *spec, dtype=dtype)

        layers = {
            "qkv": stacked((c.dim, 3, c.num_heads, c.dim // c.num_heads), "data", None, "model"),
            "out": stacked((c.num_heads, c.dim // c.num_heads, c.dim), "model", None, "data"),
            "up": stacked((c.dim, 4 * c.dim), "data", "model"),
            "down": stacked((4 * c.dim, c.dim), "model", "data"),
        }
        if c.is_conditional:
            layers["modulation"] = stacked((c.dim, 6, c.dim), "data", None, None)
        return {
            "embed": array((c.inputs, c.dim), dtype=dtype),
            "positions": array((c.tokens, c.dim), dtype=dtype),
            "layers": layers,
            "head": array((c.dim, c.outputs), dtype=dtype),
        }

    batch = batch * mesh.shape["data"]
    patches = array((batch, c.tokens, c.inputs), "data")
    condition = array((batch, c.dim), "data") if c.is_conditional else None

    def at(x):
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("data", None, None)))

    return c, weights, patches, condition, array, at


@flint.entry(axes=("data", "model"), default=True)
def train(mesh: AbstractMesh, *, model: str = "vit-l/16", batch: int = 32) -> flint.Step:
    """One step of Adam; `batch` images for each rank of "data"."""
    c, weights, patches, condition, array, at = arguments(mesh, model, batch)
    targets = (
        array(patches.shape, "data", dtype=jnp.float32)
        if c.is_conditional
        else array(patches.shape[:1], "data", dtype=jnp.int32)
    )
    moments = weights(jnp.float32), weights(jnp.float32)
    step = functools.partial(train_step, c=c, at=at)
    args = (weights(jnp.bfloat16), moments, patches, condition, targets)
    return flint.Step(step, args, donate_argnums=(0, 1), name=model)


@flint.entry(axes=("data", "model"))
def infer(mesh: AbstractMesh, *, model: str = "dit-xl/2", batch: int = 8) -> flint.Step:
    """One forward pass: of a classifier all of it, of a sampler one of its steps."""
    c, weights, patches, condition, _, at = arguments(mesh, model, batch)
    step = functools.partial(forward, c=c, at=at)
    return flint.Step(step, (weights(jnp.bfloat16), patches, condition), name=f"{model}-forward")
