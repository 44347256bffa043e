"""Programs of one family with a planted difference, for tests of comparisons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Model:
    """A stack of gated layers in a scan, trained with gradient descent."""

    mesh: str = "4x2"
    layers: int = 4
    hidden: int = 256
    inner: int = 512
    batch: int = 32
    dtype: str = "bfloat16"
    remat: str = "full"  # full, dots or none
    up: tuple[str | None, ...] = (None, None, "model")
    down: tuple[str | None, ...] = (None, "model", None)
    gathers: str = ""  # the axis over which the loss gathers its input by hand
    scope: str = "mlp"
    norm: bool = False


def traced(m: Model) -> Any:
    """The trace of a training step of the model."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import AbstractMesh, AxisType, NamedSharding
    from jax.sharding import PartitionSpec as P

    import flint

    sizes, types = tuple(map(int, m.mesh.split("x"))), (AxisType.Auto, AxisType.Auto)
    mesh = AbstractMesh(sizes, ("data", "model"), types)

    def layer(x: Any, w: Any) -> Any:
        with jax.named_scope(m.scope):
            if m.norm:
                x = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1)
            h = jax.nn.silu(x @ w["gate"]) * (x @ w["up"])
            return x + h @ w["down"]

    def loss(params: Any, x: Any) -> Any:
        policy = {"full": None, "dots": jax.checkpoint_policies.dots_saveable}.get(m.remat)
        block = layer if m.remat == "none" else jax.checkpoint(layer, policy=policy)
        x, _ = jax.lax.scan(lambda x, w: (block(x, w), None), x, params)
        if m.gathers:
            spec = P("data", *[None] * (x.ndim - 1))
            x = jax.shard_map(
                lambda part: jax.lax.all_gather(part, m.gathers, axis=0, tiled=True),
                mesh=mesh,
                in_specs=spec,
                out_specs=P(*[None] * x.ndim),
                check_vma=False,
            )(x)
        return jnp.mean(x.astype(jnp.float32) ** 2)

    def step(params: Any, x: Any) -> Any:
        grads = jax.grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    def array(shape: tuple[int, ...], spec: tuple[str | None, ...]) -> Any:
        sharding = NamedSharding(mesh, P(*spec))
        return jax.ShapeDtypeStruct(shape, jnp.dtype(m.dtype), sharding=sharding)

    wide, narrow = (m.layers, m.hidden, m.inner), (m.layers, m.inner, m.hidden)
    params = {"gate": array(wide, m.up), "up": array(wide, m.up), "down": array(narrow, m.down)}
    x = array((m.batch, 64, m.hidden), ("data", None, None))
    return flint.trace(step, mesh, params, x)
