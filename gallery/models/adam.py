"""Adam, as the models that are written here take it."""

import jax
import jax.numpy as jnp


def updated(params, grads, moments, decay: float):
    """Parameters and both moments after a step; `decay` is that of the second moment."""

    def update(p, g, m, v):
        g = g.astype(jnp.float32)
        m, v = 0.9 * m + 0.1 * g, decay * v + (1 - decay) * jnp.square(g)
        return (p - 1e-4 * m / (jnp.sqrt(v) + 1e-8)).astype(p.dtype), m, v

    with jax.named_scope("optimizer"):
        new = jax.tree.map(update, params, grads, *moments)
    params, *moments = jax.tree.transpose(jax.tree.structure(params), None, new)
    return params, tuple(moments)
