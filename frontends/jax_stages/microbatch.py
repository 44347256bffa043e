"""What one microbatch of a step is: inputs and targets, and values that go between stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flint.errors import FlintError
from flint.frontends.jax_stages.leaves import named_leaves, refuse_axis
from flint.frontends.jax_step.meshes import abstract_mesh
from flint.frontends.jax_step.program import argument_names, definition
from flint.frontends.jax_step.specs import check_spec, show_array
from flint.frontends.stages.pipeline import boundary_specs, microbatch_size
from flint.ir.mesh import Mesh
from flint.steps.pipeline import Pipeline

if TYPE_CHECKING:
    from jax import ShapeDtypeStruct
    from jax.sharding import PartitionSpec
    from jax.tree_util import PyTreeDef


@dataclass(frozen=True)
class Microbatch:
    """Abstract inputs and targets of one microbatch: by name, and the pytrees they came from.

    `rebuild_inputs(batch)` and `rebuild_targets(batch)` turn a dictionary of arrays by name into
    the positional arguments that the user's functions take.
    """

    inputs: dict[str, Any]
    targets: dict[str, Any]
    input_tree: PyTreeDef
    target_tree: PyTreeDef

    def rebuild_inputs(self, batch: dict[str, Any]) -> tuple[Any, ...]:
        """The positional arguments of the model after its parameters."""
        return self._rebuild(self.input_tree, self.inputs, batch)

    def rebuild_targets(self, batch: dict[str, Any]) -> tuple[Any, ...]:
        """The positional arguments of the loss after the output."""
        return self._rebuild(self.target_tree, self.targets, batch)

    @staticmethod
    def _rebuild(tree: PyTreeDef, names: dict[str, Any], batch: dict[str, Any]) -> tuple[Any, ...]:
        import jax

        rebuilt: tuple[Any, ...] = jax.tree.unflatten(tree, [batch[n] for n in names])
        return rebuilt


def one_microbatch(pipeline: Pipeline, mesh: Mesh, first: Callable[..., Any]) -> Microbatch:
    """What one microbatch of `pipeline` is; `first(params, *inputs)` gives the inputs their names.

    Raises FlintError: FL243 (microbatches do not divide the batch), FL103 (a microbatch that its
    sharding does not divide), FL240 (sharded over the pipeline's axis), and what `capture_jax`
    raises for arguments.
    """
    inputs = tuple(pipeline.inputs)
    targets = tuple(pipeline.targets)
    place = definition(first)
    names = argument_names(first, 1 + len(inputs))[1:]
    found = _divided(inputs, names, pipeline, mesh, place)
    if pipeline.loss is None:
        others = [f"target{i}" for i in range(len(targets))]
    else:
        place = definition(pipeline.loss)
        others = argument_names(pipeline.loss, 1 + len(targets))[1:]
    others = [f"target_{n}" if n in names else n for n in others]
    goals = _divided(targets, others, pipeline, mesh, place)
    import jax

    return Microbatch(found, goals, jax.tree.structure(inputs), jax.tree.structure(targets))


def _divided(
    values: Sequence[Any], names: Sequence[str], pipeline: Pipeline, mesh: Mesh, place: str | None
) -> dict[str, Any]:
    import jax

    count, result = pipeline.microbatches, {}
    for value, name in zip(values, names, strict=True):
        whole = named_leaves(value, name, mesh, pipeline.axis, place)
        for leaf_name, leaf in whole.items():
            shape = _microbatch_shape(leaf, leaf_name, count, place)
            part = jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=leaf.sharding)
            named_leaves(part, f"a microbatch of {leaf_name}", mesh, pipeline.axis, place)
            result[leaf_name] = part
    return result


def _microbatch_shape(
    leaf: ShapeDtypeStruct, name: str, count: int, place: str | None
) -> tuple[int, ...]:
    shown = show_array(leaf.dtype, leaf.shape)
    if not leaf.shape:
        raise FlintError(
            "FL243",
            f"{name} is a scalar: it has no batch dimension for {count} microbatches",
            place=f"{place or name}  {shown}",
            help="dimension 0 of inputs and targets is the batch; bind constants to the function",
        )
    size = microbatch_size(leaf.shape[0], count, name, f"{place or name}  {shown}")
    return (size, *leaf.shape[1:])


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
        shown = ", ".join(show_array(v.dtype, v.shape) for v in values)
        raise FlintError(
            "FL244",
            f"{len(values)} values ({shown}) leave {after}, but crossing is {pipeline.crossing}",
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


def _default_spec(value: ShapeDtypeStruct, mesh: Mesh, microbatch: Microbatch) -> PartitionSpec:
    """The sharding of the inputs' dimension 0, on dimension 0 where it divides that."""
    import jax

    first = next(iter(microbatch.inputs.values()), None)
    spec = tuple(first.sharding.spec) if first is not None else ()
    axes: str | tuple[str, ...] | None = spec[0] if spec else None
    names = (axes,) if isinstance(axes, str) else tuple(axes or ())
    size = 1
    for name in names:
        size *= mesh.axis_size(name)
    if not value.shape or value.shape[0] % size:
        return jax.sharding.PartitionSpec()
    return jax.sharding.PartitionSpec(axes)
