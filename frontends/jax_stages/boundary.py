"""Values that go from one stage to the next: how many, and how they are sharded."""

from __future__ import annotations

from typing import Any

from flint.errors import FlintError
from flint.frontends.jax_stages.leaves import refuse_axis
from flint.frontends.jax_stages.microbatch import Microbatch
from flint.frontends.jax_step.program import abstract_mesh
from flint.frontends.jax_step.specs import check_spec
from flint.frontends.stages.pipeline import boundary_specs
from flint.ir.mesh import Mesh
from flint.steps.pipeline import Pipeline


def on_boundary(
    values: tuple[Any, ...], pipeline: Pipeline, mesh: Mesh, microbatch: Microbatch, after: str
) -> tuple[Any, ...]:
    """The values that leave the stage labelled `after`, with the sharding of the boundary.

    `values` are abstract arrays. Raises FlintError: FL244 (not as many as `crossing` says), FL240
    (`boundary` does not fit, or names the pipeline's axis), FL102, FL103, FL106 (it cannot shard
    them).
    """
    import jax

    if len(values) != pipeline.crossing:
        shown = ", ".join(_show(v) for v in values)
        raise FlintError(
            "FL244",
            f"{len(values)} values ({shown}) leave {after}, crossing is {pipeline.crossing}",
            help="return exactly as many arrays as `crossing` says: one array, or a flat tuple",
        )
    specs = boundary_specs(pipeline)
    found = []
    for number, value in enumerate(values):
        name = f"value {number} after {after}" if len(values) > 1 else f"the value after {after}"
        spec = specs[number] if specs else _default_spec(value, mesh, microbatch)
        check_spec(spec, tuple(value.shape), value.dtype, name, mesh, "boundary")
        sharding = jax.sharding.NamedSharding(abstract_mesh(mesh), spec)
        struct = jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding)
        refuse_axis(struct, pipeline.axis, name, "boundary")
        found.append(struct)
    return tuple(found)


def _default_spec(value: Any, mesh: Mesh, microbatch: Microbatch) -> Any:
    """The sharding of the inputs' dimension 0, on dimension 0 where it divides that."""
    import jax

    first = next(iter(microbatch.inputs.values()), None)
    spec = tuple(first.sharding.spec) if first is not None else ()
    axes: Any = spec[0] if spec else None
    names = (axes,) if isinstance(axes, str) else tuple(axes or ())
    size = 1
    for name in names:
        size *= mesh.axis_size(name)
    if not value.shape or value.shape[0] % size:
        return jax.sharding.PartitionSpec()
    return jax.sharding.PartitionSpec(axes)


def _show(value: Any) -> str:
    return f"{value.dtype}[{','.join(map(str, value.shape))}]"
