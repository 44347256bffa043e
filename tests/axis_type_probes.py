"""Steps that say how they are sharded in every way that JAX has, for a mesh of data=8, model=4.

Each probe is a function without arguments that returns a Trace. Those of REAL_MESHES need 32 devices
that JAX pretends to have; `python -m tests.axis_type_probes` runs them and prints their totals.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=32"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import flint

SIZES, NAMES = (8, 4), ("data", "model")
AUTO = AbstractMesh(SIZES, NAMES, (AxisType.Auto, AxisType.Auto))
EXPLICIT = AbstractMesh(SIZES, NAMES, (AxisType.Explicit, AxisType.Explicit))
MIXED = AbstractMesh(SIZES, NAMES, (AxisType.Auto, AxisType.Explicit))


def array(mesh: Any, shape: tuple[int, ...], *spec: Any, dtype: Any = jnp.float32) -> Any:
    """An abstract array sharded over `mesh`; not sharded without a mesh."""
    sharding = NamedSharding(mesh, P(*spec)) if mesh is not None else None
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def operands(mesh: Any) -> tuple[Any, Any, Any]:
    """A batch, and the weights of two layers as Megatron splits them."""
    return (
        array(mesh, (64, 32), "data"),
        array(mesh, (32, 128), None, "model"),
        array(mesh, (128, 32), "model", None),
    )


def mlp(x: Any, up: Any, down: Any) -> Any:
    return jax.nn.relu(x @ up) @ down


def explicit_mlp(x: Any, up: Any, down: Any) -> Any:
    hidden = jax.nn.relu(x @ up)
    return jnp.matmul(hidden, down, out_sharding=P("data", None))


def squares(x: Any, up: Any, down: Any) -> Any:
    return jnp.mean(jnp.square(mlp(x, up, down)))


def bare(function: Callable[..., Any]) -> flint.Trace:
    """Arguments without shardings: whatever the function says itself."""
    return flint.trace(function, "8x4", *operands(None))


# axes of type Auto --------------------------------------------------------------------------


def auto() -> flint.Trace:
    return flint.trace(mlp, "8x4", *operands(AUTO))


def auto_mesh_given() -> flint.Trace:
    return flint.trace(mlp, AUTO, *operands(AUTO))


def auto_in_shardings_of_trace() -> flint.Trace:
    specs = (P("data"), P(None, "model"), P("model", None))
    return flint.trace(mlp, {"data": 8, "model": 4}, *operands(None), in_shardings=specs)


def auto_out_shardings() -> flint.Trace:
    return flint.trace(mlp, "8x4", *operands(AUTO), out_shardings=P(None, "model"))


def jit_in_shardings(mesh: Any = AUTO) -> flint.Trace:
    specs = tuple(NamedSharding(mesh, P(*s)) for s in (("data",), (None, "model"), ("model",)))
    return bare(jax.jit(mlp, in_shardings=specs))


def jit_out_shardings(mesh: Any = AUTO) -> flint.Trace:
    jitted = jax.jit(mlp, out_shardings=NamedSharding(mesh, P("data")))
    return flint.trace(jitted, "8x4", *operands(AUTO))


def constraint_by_spec() -> flint.Trace:
    def step(x: Any, up: Any, down: Any) -> Any:
        x = jax.lax.with_sharding_constraint(x, P("data", None))
        hidden = jax.lax.with_sharding_constraint(x @ up, P("data", "model"))
        return jax.lax.with_sharding_constraint(hidden @ down, P("data", None))

    return bare(step)


def constraint_by_sharding(mesh: Any = AUTO) -> flint.Trace:
    def step(x: Any, up: Any, down: Any) -> Any:
        x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("data", None)))
        hidden = jax.lax.with_sharding_constraint(x @ up, NamedSharding(mesh, P("data", "model")))
        return hidden @ down

    return bare(step)


def gradient() -> flint.Trace:
    return flint.trace(jax.grad(squares, argnums=(1, 2)), "8x4", *operands(AUTO))


def rematerialised() -> flint.Trace:
    function = jax.grad(lambda *a: jnp.mean(jax.checkpoint(mlp)(*a)), argnums=(1, 2))
    return flint.trace(function, "8x4", *operands(AUTO))


def scanned(mesh: Any = AUTO) -> flint.Trace:
    x, up, down = operands(mesh)
    stack = [array(mesh, (6, *w.shape), None, *w.sharding.spec) for w in (up, down)]
    function = explicit_mlp if mesh is EXPLICIT else mlp

    def step(x: Any, up: Any, down: Any) -> Any:
        return jax.lax.scan(lambda c, w: (function(c, *w), None), x, (up, down))[0]

    return flint.trace(step, "8x4", x, *stack)


def mapped() -> flint.Trace:
    x, up, down = operands(AUTO)
    several = array(AUTO, (16, *x.shape), "data")
    return flint.trace(jax.vmap(mlp, in_axes=(0, None, None)), "8x4", several, up, down)


def donated() -> flint.Trace:
    def step(x: Any, up: Any, down: Any) -> Any:
        gradients = jax.grad(squares, argnums=(1, 2))(x, up, down)
        return up - gradients[0], down - gradients[1]

    return flint.trace(step, "8x4", *operands(AUTO), donate_argnums=(1, 2))


# shard_map ------------------------------------------------------------------------------------


def _local(x: Any, up: Any, down: Any) -> Any:
    return jax.lax.psum(jax.nn.relu(x @ up) @ down, "model")


_SPECS = {
    "in_specs": (P("data"), P(None, "model"), P("model", None)),
    "out_specs": P("data"),
}


def shard_map_full(mesh: Any = AUTO) -> flint.Trace:
    return flint.trace(jax.shard_map(_local, mesh=mesh, **_SPECS), "8x4", *operands(AUTO))


def shard_map_of_the_context() -> flint.Trace:
    return flint.trace(jax.shard_map(_local, **_SPECS), "8x4", *operands(AUTO))


def shard_map_partial(mesh: Any = AUTO) -> flint.Trace:
    mapped = jax.shard_map(
        _local,
        mesh=mesh,
        in_specs=(P(), P(None, "model"), P("model", None)),
        out_specs=P(),
        axis_names={"model"},
    )
    return flint.trace(mapped, "8x4", *operands(AUTO))


def shard_map_gradient() -> flint.Trace:
    mapped = jax.shard_map(_local, mesh=AUTO, **_SPECS)
    return flint.trace(jax.grad(lambda *a: jnp.sum(mapped(*a)), 1), "8x4", *operands(AUTO))


def shard_map_in_scan() -> flint.Trace:
    mapped = jax.shard_map(_local, mesh=AUTO, **_SPECS)

    def step(x: Any, up: Any, down: Any) -> Any:
        return jax.lax.scan(lambda c, _: (mapped(c, up, down), None), x, length=5)[0]

    return flint.trace(step, "8x4", *operands(AUTO))


# axes of type Explicit ----------------------------------------------------------------------


def explicit() -> flint.Trace:
    return flint.trace(explicit_mlp, EXPLICIT, *operands(EXPLICIT))


def explicit_by_arguments() -> flint.Trace:
    return flint.trace(explicit_mlp, "8x4", *operands(EXPLICIT))


def explicit_written_for_auto() -> flint.Trace:
    return flint.trace(mlp, "8x4", *operands(EXPLICIT))


def explicit_gradient() -> flint.Trace:
    def loss(*values: Any) -> Any:
        return jnp.mean(jnp.square(explicit_mlp(*values)))

    return flint.trace(jax.grad(loss, argnums=(1, 2)), "8x4", *operands(EXPLICIT))


def explicit_reshard() -> flint.Trace:
    def step(x: Any, up: Any, down: Any) -> Any:
        hidden = jax.sharding.reshard(x @ up, P("data", None))
        return hidden @ jax.sharding.reshard(down, P(None, "model"))

    return flint.trace(step, "8x4", *operands(EXPLICIT))


def explicit_in_shardings(mesh: Any = EXPLICIT) -> flint.Trace:
    specs = tuple(NamedSharding(mesh, P(*s)) for s in (("data",), (None, "model"), ("model",)))
    return bare(jax.jit(explicit_mlp, in_shardings=specs))


def explicit_shard_map() -> flint.Trace:
    mapped = jax.shard_map(_local, mesh=EXPLICIT, **_SPECS)
    return flint.trace(mapped, EXPLICIT, *operands(EXPLICIT))


def explicit_with_auto_inside() -> flint.Trace:
    inside = jax.sharding.auto_axes(mlp, out_sharding=P("data", None))
    return flint.trace(inside, "8x4", *operands(EXPLICIT))


def auto_with_explicit_inside() -> flint.Trace:
    inside = jax.sharding.explicit_axes(
        explicit_mlp, in_sharding=(P("data"), P(None, "model"), P("model"))
    )
    return flint.trace(inside, "8x4", *operands(AUTO))


def mixed() -> flint.Trace:
    x, up, down = array(MIXED, (64, 32)), *operands(MIXED)[1:]

    def step(x: Any, up: Any, down: Any) -> Any:
        return jnp.matmul(jax.nn.relu(x @ up), down, out_sharding=P())

    return flint.trace(step, MIXED, x, up, down, in_shardings=(P("data"), None, None))


def explicit_scanned() -> flint.Trace:
    return scanned(EXPLICIT)


def explicit_use_abstract_mesh() -> flint.Trace:
    def step(x: Any, up: Any, down: Any) -> Any:
        with jax.sharding.use_abstract_mesh(EXPLICIT):
            return explicit_mlp(x, up, down)

    return flint.trace(step, "8x4", *operands(EXPLICIT))


# meshes of real devices ---------------------------------------------------------------------


def _one_device() -> Mesh:
    return Mesh(np.array(jax.devices()[:1]).reshape(1, 1), NAMES)


def arguments_on_one_device() -> flint.Trace:
    return flint.trace(mlp, "8x4", *operands(_one_device()))


def jit_on_one_device() -> flint.Trace:
    return jit_in_shardings(_one_device())


def constraint_on_one_device() -> flint.Trace:
    return constraint_by_sharding(_one_device())


def mesh_set_around() -> flint.Trace:
    with jax.set_mesh(_one_device()):
        return constraint_by_spec()


def mesh_entered_around() -> flint.Trace:
    with _one_device():
        return constraint_by_spec()


def _real(*types: AxisType) -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(SIZES), NAMES, types or None)


def real_set_explicit() -> flint.Trace:
    specs = (P("data"), P(None, "model"), P("model", None))
    with jax.set_mesh(_real(AxisType.Explicit, AxisType.Explicit)):
        return flint.trace(explicit_mlp, "8x4", *operands(None), in_shardings=specs)


def real_given() -> flint.Trace:
    return flint.trace(mlp, _real(), *operands(_real()))


def real_make_mesh() -> flint.Trace:
    return flint.trace(explicit_mlp, "8x4", *operands(jax.make_mesh(SIZES, NAMES)))


def real_arrays() -> flint.Trace:
    arrays = [jax.device_put(np.zeros(s.shape, s.dtype), s.sharding) for s in operands(_real())]
    return flint.trace(mlp, "8x4", *arrays)


def real_closed_over() -> flint.Trace:
    x, up, down = operands(_real())
    held = jax.device_put(np.zeros(up.shape, up.dtype), up.sharding)
    return flint.trace(lambda x, down: mlp(x, held, down), "8x4", x, down)


#: Probes by name.
PROBES: dict[str, Callable[[], flint.Trace]] = {
    f.__name__: f
    for f in (
        *(auto, auto_mesh_given, auto_in_shardings_of_trace, auto_out_shardings),
        *(jit_in_shardings, jit_out_shardings, constraint_by_spec, constraint_by_sharding),
        *(gradient, rematerialised, scanned, mapped, donated),
        *(shard_map_full, shard_map_of_the_context, shard_map_partial, shard_map_gradient),
        *(shard_map_in_scan, explicit, explicit_by_arguments, explicit_written_for_auto),
        *(explicit_gradient, explicit_reshard, explicit_in_shardings, explicit_shard_map),
        *(explicit_with_auto_inside, auto_with_explicit_inside, mixed, explicit_scanned),
        *(explicit_use_abstract_mesh, arguments_on_one_device, jit_on_one_device),
        *(constraint_on_one_device, mesh_set_around, mesh_entered_around),
    )
}
#: Probes that need 32 devices.
REAL_MESHES: dict[str, Callable[[], flint.Trace]] = {
    **{
        f.__name__: f
        for f in (real_set_explicit, real_given, real_make_mesh, real_arrays, real_closed_over)
    },
    **{
        f"real_{f.__name__}": lambda f=f: f(_real())
        for f in (
            *(jit_in_shardings, jit_out_shardings, constraint_by_sharding),
            *(shard_map_full, shard_map_partial),
        )
    },
    "real_explicit_in_shardings": lambda: explicit_in_shardings(
        _real(AxisType.Explicit, AxisType.Explicit)
    ),
}


def totals(trace: flint.Trace) -> str:
    """FLOPs and parameter bytes of a device, and its collectives, in one line."""
    (found,) = trace.summary().classes
    facts = [f"{found.flops:,} FLOP", f"{found.parameter_bytes:,} B"]
    facts += [
        f"{c.collective} {c.over} {c.count} x {c.comm_bytes // c.count:,} B"
        for c in found.collectives
    ]
    return "; ".join(facts)


if __name__ == "__main__":
    print(json.dumps({name: totals(probe()) for name, probe in REAL_MESHES.items()}))
