"""The captures of this folder: `flint capture model.py:NAME --mesh MESH` (README.md)."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import flint


def _array(mesh, shape, *spec):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, P(*spec)))


def _layer(params, x):
    with jax.named_scope("mlp"):
        return x + jax.nn.relu(x @ params["up"]) @ params["down"]


def _params(mesh, *leading):
    lead = (None,) * len(leading)
    return {
        "up": _array(mesh, (*leading, 256, 1024), *lead, "data", "model"),
        "down": _array(mesh, (*leading, 1024, 256), *lead, "model", "data"),
    }


@flint.entry(axes=("data", "model"))
def scanned(mesh):
    def loss(params, x):
        body = jax.checkpoint(lambda x, p: (_layer(p, x), None))
        return jnp.mean(jnp.square(jax.lax.scan(body, x, params)[0]))

    def step(params, x):
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, x))

    x = _array(mesh, (64, 256), "data", None)
    return flint.Step(step, (_params(mesh, 4), x), donate_argnums=0)


@flint.entry(axes=("pipe", "data", "model"))
def pipeline(mesh):
    return flint.Pipeline(
        stages=[flint.Layers(_layer, _params(mesh), count=4)],
        loss=lambda x: jnp.mean(jnp.square(x)),
        inputs=(_array(mesh, (64, 256), "data", None),),
        microbatches=4,
        schedule="1f1b",
        optimizer="sgd",
    )
