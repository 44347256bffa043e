"""The meshes of a JAX step: the types of their axes, and whether a lowered module is over the mesh
that it is captured for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flint.errors import FlintError
from flint.ir.axis_types import AxisType, axis_types_of
from flint.ir.mesh import Mesh
from flint.passes import jax_private
from flint.passes.mlir import missing_jax
from flint.steps.step import Step

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh
    from jax.sharding import Mesh as JaxMesh
    from jaxlib.mlir import ir


def with_types_of(mesh: Mesh, step: Step) -> Mesh:
    """`mesh` with a type for each axis: explicit where it, or a mesh that the step uses, says so.

    The step uses the meshes of the shardings of its arguments and results, those of its own
    `jax.jit`, and without any of them the mesh that `jax.set_mesh` has set.
    """
    said = [mesh.axis_types, *(_by_name(mesh, other) for other in _meshes_of(step))]
    if not any(said):
        said.append(_by_name(mesh, _current_mesh()))
    return replace(mesh, axis_types=_strongest(said, len(mesh.names)))


def as_auto(mesh: Mesh) -> Mesh:
    """`mesh` whose axes the partitioner is free to use."""
    return replace(mesh, axis_types=(AxisType.AUTO,) * len(mesh.names))


def _strongest(said: Iterable[Sequence[AxisType]], count: int) -> tuple[AxisType, ...]:
    order = (AxisType.AUTO, AxisType.PERHAPS_EXPLICIT, AxisType.EXPLICIT)
    found = [AxisType.AUTO] * count
    for types in said:
        found = [max(a, b, key=order.index) for a, b in zip(found, types or found, strict=True)]
    return tuple(found)


def _by_name(mesh: Mesh, other: object) -> tuple[AxisType, ...]:
    """What a JAX mesh says of the axes of `mesh`; nothing if it has other axes."""
    names = tuple(map(str, getattr(other, "axis_names", ())))
    if sorted(names) != sorted(mesh.names):
        return ()
    types = dict(zip(names, axis_types_of(other), strict=False))
    return tuple(types.get(n, AxisType.AUTO) for n in mesh.names)


def _meshes_of(step: Step) -> Iterator[JaxMesh | AbstractMesh]:
    import jax

    from flint.frontends.jax_step.meshes import own_sharding

    own = getattr(step.fn, "_jit_info", None)
    given = (
        *(step.args, step.kwargs, step.in_shardings, step.out_shardings),
        *(getattr(own, name, ()) for name in ("in_shardings_leaves", "out_shardings_leaves")),
    )

    def is_leaf(value: object) -> bool:
        return isinstance(value, jax.sharding.Sharding)

    for leaf in jax.tree.leaves(given, is_leaf=is_leaf):
        sharding = leaf if is_leaf(leaf) else own_sharding(leaf)
        if isinstance(sharding, jax.sharding.NamedSharding):
            yield sharding.mesh


def _current_mesh() -> AbstractMesh:
    import jax

    return jax.sharding.get_abstract_mesh()


def check_meshes(module: ir.Module, abstract: AbstractMesh, place: str | None) -> tuple[str, ...]:
    """Raise FlintError FL107 where shardings are over another mesh than `abstract`.

    The same axes in another order number devices otherwise. Meshes whose axes all have size 1 shard nothing: they are let through, with a sentence each.
    """
    from jaxlib.mlir.dialects import sdy

    said = []
    for op in module.body.operations:
        if op.operation.name != "sdy.mesh":
            continue
        axes = [sdy.MeshAxisAttr(a) for a in sdy.MeshAttr(op.attributes["mesh"]).axes]
        found = {a.name: int(a.size) for a in axes}
        if not found or list(found.items()) == list(abstract.shape.items()):  # devices by order
            continue
        if all(size == 1 for size in found.values()):
            said.append(
                f"some shardings are over a mesh of {_show(found)} instead of the capture's "
                f"mesh ({_show(abstract.shape)}): they shard nothing"
            )
        else:
            raise FlintError(
                "FL107",
                f"the program shards over a mesh of {_show(found)}, but the mesh is {_show(abstract.shape)}",
                place=place,
                help="make shardings from the capture's mesh (the entry's argument, or "
                "jax.sharding.get_abstract_mesh() during tracing)",
            )
    return tuple(said)


def with_mesh_help(error: FlintError, abstract: AbstractMesh) -> FlintError:
    """`error` with more help if JAX refused a mesh because it is not the one of the program."""
    if "context mesh" not in error.message.lower():
        return error
    kinds = ", ".join(
        f"{n}: {t.name}" for n, t in zip(abstract.axis_names, abstract.axis_types, strict=True)
    )
    return FlintError(
        error.code,
        error.message,
        place=error.place,
        help=f"the mesh is {_show(abstract.shape)} with axes of type {kinds}: give this call a "
        "mesh of the same names, sizes and types (jax.sharding.get_abstract_mesh() "
        "returns it), or none; its devices do not matter",
    )


def _show(axes: Mapping[str, int]) -> str:
    return ",".join(f"{name}={size}" for name, size in axes.items())


def abstract_mesh(mesh: Mesh) -> AbstractMesh:
    """The `jax.sharding.AbstractMesh` with the axes of `mesh`: Auto unless it says explicit."""
    jax = import_jax()
    kinds = jax.sharding.AxisType
    types = mesh.axis_types or (AxisType.AUTO,) * len(mesh.names)
    made: AbstractMesh = jax.sharding.AbstractMesh(
        mesh.sizes,
        mesh.names,
        tuple(kinds.Explicit if t is AxisType.EXPLICIT else kinds.Auto for t in types),
    )
    return made


def import_jax() -> Any:
    try:
        import jax
    except ImportError as error:
        raise missing_jax("jax") from error
    return jax


def own_sharding(leaf: object) -> object:
    """What an argument is sharded by. JAX resolves a bare PartitionSpec only inside a mesh."""
    jax = import_jax()
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax_private.own_sharding(leaf)
    return getattr(leaf, "sharding", None)


def axis_names_of(arguments: object) -> tuple[str, ...] | None:
    """Axis names of the mesh that some argument is sharded on, or None."""
    import jax

    leaves = jax.tree.leaves(arguments, is_leaf=lambda x: isinstance(x, jax.sharding.Sharding))
    for leaf in leaves:
        sharding = leaf if isinstance(leaf, jax.sharding.Sharding) else own_sharding(leaf)
        if isinstance(sharding, jax.sharding.NamedSharding):
            return tuple(map(str, sharding.mesh.axis_names))
    return None
