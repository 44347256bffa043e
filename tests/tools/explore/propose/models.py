"""Small programs without a sharding."""

import jax
import jax.numpy as jnp

import flint


def loss(layers, x, y):
    for up, down in layers:
        x = x + jax.nn.relu(x @ up) @ down
    return jnp.mean(jnp.square(x - y))


def step(layers, moments, x, y):
    value, grads = jax.value_and_grad(loss)(layers, x, y)
    moments = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments, grads)
    return jax.tree.map(lambda p, m: p - 1e-3 * m, layers, moments), moments, value


def args(batch=64, width=512, inner=2048):
    up, down = (
        jax.ShapeDtypeStruct((width, inner), "float32"),
        jax.ShapeDtypeStruct((inner, width), "float32"),
    )
    x = jax.ShapeDtypeStruct((batch, width), "float32")
    return [(up, down), (up, down)], [(up, down), (up, down)], x, x


def scanned(weights, x):
    def layer(x, w):
        return jnp.tanh(x @ w["up"]) @ w["down"], None

    return jax.lax.scan(layer, x, weights)[0]


@flint.entry(axes=("data", "model"))
def entry(mesh, *, batch: int = 64):
    return flint.Step(step, args(batch), donate_argnums=(0, 1))
