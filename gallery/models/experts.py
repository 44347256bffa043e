"""Mixtures of experts with the blocks of `examples/mixtral_jax.py`, by their published configurations.

Experts are spread over the axis "expert" and their tokens exchanged by all-to-all. Shared experts and
norms of queries and keys are left out. Configurations are the `config.json` files beside the weights.
"""

import functools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import jax
import jax.numpy as jnp
import mixtral_jax
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

import flint

NAMES = "dim num_layers num_heads num_kv_heads head_dim ffn_dim vocab num_experts experts_per_token"
SIZES = {
    "mixtral-8x7b": (4096, 32, 32, 8, 128, 14_336, 32_000, 8, 2),
    "mixtral-8x22b": (6144, 56, 48, 8, 128, 16_384, 32_000, 8, 2),
    "qwen3-30b-a3b": (2048, 48, 32, 4, 128, 768, 151_936, 128, 8),
    "qwen3-235b-a22b": (4096, 94, 64, 4, 128, 1536, 151_936, 128, 8),
    "olmoe-1b-7b": (2048, 16, 16, 16, 128, 1024, 50_304, 64, 8),
}


@flint.entry(axes=mixtral_jax.BATCH, default=True)
def train(
    mesh: AbstractMesh, *, model: str = "qwen3-30b-a3b", seq: int = 4096, remat: str = "full"
) -> flint.Step:
    """One training step; one sequence for each device."""
    c = mixtral_jax.Config(**dict(zip(NAMES.split(), SIZES[model], strict=True)))

    def array(shape, dtype, *spec):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))

    tokens = array((mesh.size, seq), jnp.int32, mixtral_jax.BATCH, None)
    params, *moments = (
        mixtral_jax.abstract_params(c, mesh, dtype)
        for dtype in (jnp.bfloat16, jnp.float32, jnp.float32)
    )
    args = (params, dict(zip("mv", moments, strict=True)), array((), jnp.int32), tokens, tokens)
    step = functools.partial(mixtral_jax.train_step, c=c, mesh=mesh, remat=remat)
    return flint.Step(step, args, donate_argnums=(0, 1, 2), name=model)


@flint.entry(axes=mixtral_jax.BATCH)
def prefill(
    mesh: AbstractMesh, *, model: str = "mixtral-8x7b", seq: int = 4096, prompts: int = 1
) -> flint.Step:
    """Logits of prompts, without what training adds."""
    c = mixtral_jax.Config(**dict(zip(NAMES.split(), SIZES[model], strict=True)))
    tokens = jax.ShapeDtypeStruct(
        (prompts * mesh.size, seq), jnp.int32, sharding=NamedSharding(mesh, P(mixtral_jax.BATCH))
    )

    def forward(params, tokens):
        block = functools.partial(mixtral_jax.layer, c=c, mesh=mesh)
        x, _ = jax.lax.scan(block, params["embed"][tokens], params["layers"])
        x = mixtral_jax.rms_norm(x[:, -1], params["norm"], c.norm_eps)
        return jnp.argmax(jnp.einsum("bd,dv->bv", x, params["head"]), axis=-1)

    params = mixtral_jax.abstract_params(c, mesh, jnp.bfloat16)
    return flint.Step(forward, (params, tokens), name=f"{model}-prefill")
