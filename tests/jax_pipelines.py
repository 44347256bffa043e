"""A small decoder in stages, for tests of JAX pipelines."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import flint
from flint.frontends.jax_step.meshes import abstract_mesh
from flint.ir.mesh import Mesh

MESH = Mesh(("pipe", "data", "model"), (2, 2, 2))
LAYERS, BATCH, LENGTH, WIDTH, HIDDEN, VOCABULARY = 4, 8, 16, 32, 64, 128


def shaped(shape: tuple[int, ...], *spec: Any, dtype: Any = jnp.float32, mesh: Mesh = MESH) -> Any:
    """An abstract array with a sharding."""
    sharding = jax.sharding.NamedSharding(abstract_mesh(mesh), P(*spec))
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def constrain(x: Any, *spec: Any, mesh: Mesh | None = MESH) -> Any:
    """A sharding constraint, none without a mesh."""
    if mesh is None:
        return x
    return jax.lax.with_sharding_constraint(
        x, jax.sharding.NamedSharding(abstract_mesh(mesh), P(*spec))
    )


def embed(params: Any, tokens: Any, mesh: Mesh | None = MESH) -> Any:
    """Look tokens up."""
    return constrain(params["table"][tokens], "data", None, None, mesh=mesh)


def layer(params: Any, x: Any, mesh: Mesh | None = MESH) -> Any:
    """Normalise, up, gelu, down, residual; tensor parallel."""
    norm = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * params["scale"]
    up = constrain(norm @ params["up"], "data", None, "model", mesh=mesh)
    return constrain(x + jax.nn.gelu(up) @ params["down"], "data", None, None, mesh=mesh)


def head(params: Any, x: Any, mesh: Mesh | None = MESH) -> Any:
    """Logits, sharded over the vocabulary."""
    return constrain(x @ params["table"].T, "data", None, "model", mesh=mesh)


def loss(logits: Any, targets: Any) -> Any:
    """Cross entropy."""
    wide = logits.astype(jnp.float32)
    picked = jnp.arange(wide.shape[-1]) == targets[..., None]
    chosen = jnp.sum(jnp.where(picked, wide, 0.0), axis=-1)
    return jnp.mean(jax.nn.logsumexp(wide, axis=-1) - chosen)


TABLE = ((VOCABULARY, WIDTH), ("model", None))
LAYER = {
    "scale": ((WIDTH,), (None,)),
    "up": ((WIDTH, HIDDEN), (None, "model")),
    "down": ((HIDDEN, WIDTH), ("model", None)),
}


def abstract(weights: Any, mesh: Mesh = MESH) -> Any:
    """Shapes and shardings as abstract arrays."""
    return {n: shaped(shape, *spec, mesh=mesh) for n, (shape, spec) in weights.items()}


def parts(mesh: Mesh = MESH, plain: bool = False, **layers: Any) -> list[Any]:
    """Embedding, layers and head; `plain` leaves out all constraints, to run on one device."""
    chosen = None if plain else mesh
    return [
        flint.Stage(partial(embed, mesh=chosen), abstract({"table": TABLE}, mesh), name="embed"),
        flint.Layers(
            jax.checkpoint(partial(layer, mesh=chosen)),
            abstract(LAYER, mesh),
            **({"count": LAYERS} | layers),
        ),
        flint.Stage(partial(head, mesh=chosen), abstract({"table": TABLE}, mesh), name="head"),
    ]


def pipeline(
    mesh: Mesh = MESH, plain: bool = False, split: Any = "uniform", **options: Any
) -> flint.Pipeline:
    """The whole decoder as a pipeline."""
    tokens = shaped((BATCH, LENGTH), "data", None, dtype=jnp.int32, mesh=mesh)
    given: dict[str, Any] = {
        "stages": parts(mesh, plain, split=split),
        "inputs": (tokens,),
        "targets": (tokens,),
        "loss": loss,
        "microbatches": 4,
        "boundary": P("data", None, None),
    }
    return flint.Pipeline(**(given | options))
