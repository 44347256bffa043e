"""Optimizers of pipelines: one update of the parameters of a stage, and the norm of gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from flint.errors import FlintError, nearest
from flint.frontends.jax_program import definition


class Optimizer(NamedTuple):
    """`init(params) -> state` and `update(params, gradients, state) -> (params, state)`."""

    init: Callable[[Any], Any]
    update: Callable[[Any, Any, Any], tuple[Any, Any]]

    @property
    def place(self) -> str | None:
        """Where the update is defined, if the user did so."""
        return None if self in BUILT_IN.values() else definition(self.update)


def find_optimizer(given: Any) -> Optimizer | None:
    """The optimizer that a pipeline names. Raises FlintError FL240 for what is none."""
    if given is None:
        return None
    if isinstance(given, str):
        if given in BUILT_IN:
            return BUILT_IN[given]
        raise FlintError(
            "FL240",
            f"there is no optimizer '{given}'{nearest(given, list(BUILT_IN))}",
            help=f"choose {' or '.join(BUILT_IN)}, or give a pair (init, update)",
        )
    if isinstance(given, tuple | list) and len(given) == 2 and all(map(callable, given)):
        return Optimizer(*given)
    raise FlintError(
        "FL240",
        f"the optimizer is {type(given).__name__}, not a name or a pair of functions",
        help="give (init(params) -> state, update(params, gradients, state) -> (params, state))",
    )


def clipped(gradients: Any, squared_norm: Any, limit: float) -> Any:
    """Gradients scaled so that their norm, the root of `squared_norm`, is at most `limit`."""
    import jax
    import jax.numpy as jnp

    factor = jnp.minimum(1.0, limit / (jnp.sqrt(squared_norm) + 1e-6))
    return jax.tree.map(lambda g: (g.astype(jnp.float32) * factor).astype(g.dtype), gradients)


def _adamw_init(params: Any) -> Any:
    """First and second moments in float32, and the number of updates so far."""
    import jax
    import jax.numpy as jnp

    moments = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
    return {"m": moments, "v": moments, "count": jnp.zeros((), jnp.int32)}


def _adamw_update(params: Any, gradients: Any, state: Any) -> tuple[Any, Any]:
    """Decoupled weight decay (arXiv 1711.05101, algorithm 2), in float32."""
    import jax
    import jax.numpy as jnp

    rate, b1, b2, epsilon, decay = 3e-4, 0.9, 0.95, 1e-8, 0.1
    count = state["count"] + 1
    steps = count.astype(jnp.float32)
    first, second = 1 - b1**steps, 1 - b2**steps

    def one(p: Any, g: Any, m: Any, v: Any) -> tuple[Any, Any, Any]:
        g = g.astype(jnp.float32)
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        wide = p.astype(jnp.float32)
        change = (m / first) / (jnp.sqrt(v / second) + epsilon) + decay * wide
        return (wide - rate * change).astype(p.dtype), m, v

    new = jax.tree.map(one, params, gradients, state["m"], state["v"])
    params, m, v = jax.tree.transpose(jax.tree.structure(params), None, new)
    return params, {"m": m, "v": v, "count": count}


def _sgd_init(params: Any) -> Any:
    """Plain gradient descent has no state."""
    return {}


def _sgd_update(params: Any, gradients: Any, state: Any) -> tuple[Any, Any]:
    """Gradient descent without momentum."""
    import jax

    def one(p: Any, g: Any) -> Any:
        return p - (1e-2 * g).astype(p.dtype)

    return jax.tree.map(one, params, gradients), state


#: Optimizers that have a name.
BUILT_IN = {
    "adamw": Optimizer(_adamw_init, _adamw_update),
    "sgd": Optimizer(_sgd_init, _sgd_update),
}
