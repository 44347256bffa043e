"""Pytrees of abstract arrays as dictionaries by name, checked against the mesh of a pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flint.errors import FlintError
from flint.frontends.jax_step.meshes import abstract_mesh
from flint.frontends.jax_step.program import abstract_tree
from flint.frontends.jax_step.specs import show_array, show_spec
from flint.ir.mesh import Mesh

if TYPE_CHECKING:
    from jax import ShapeDtypeStruct


def named_leaves(
    tree: object, prefix: str, mesh: Mesh, axis: str, place: str | None = None
) -> dict[str, Any]:
    """The leaves of a pytree by name (`prefix` and JAX's key path: `layers['wq']`), in its order.

    Each is a `jax.ShapeDtypeStruct` with a `NamedSharding` on the abstract mesh, replicated where
    the user gave none. Raises FlintError: FL102, FL103, FL104, FL106 as `capture_jax` does, FL240
    for what is sharded over the pipeline's axis `axis`.
    """
    import jax

    checked = abstract_tree(tree, prefix, None, abstract_mesh(mesh), mesh, place)
    leaves, _ = jax.tree_util.tree_flatten_with_path(checked)
    found = {}
    for path, leaf in leaves:
        name = prefix + jax.tree_util.keystr(path)
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            raise FlintError(
                "FL104",
                f"argument {name} is {type(leaf).__name__}, not an array",
                place=place,
                help="pass jax.ShapeDtypeStruct(shape, dtype), or bind the number to the function",
            )
        found[name] = sharded(leaf, mesh)
        refuse_axis(found[name], axis, name, place)
    return found


def sharded(leaf: ShapeDtypeStruct, mesh: Mesh) -> ShapeDtypeStruct:
    """An abstract array with a sharding: replicated where it has none."""
    import jax

    if leaf.sharding is not None:
        return leaf
    spec = jax.sharding.NamedSharding(abstract_mesh(mesh), jax.sharding.PartitionSpec())
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=spec)


def refuse_axis(leaf: ShapeDtypeStruct, axis: str, name: str, place: str | None = None) -> None:
    """Raise FlintError FL240 if an abstract array is sharded over `axis`, the pipeline's."""
    spec = leaf.sharding.spec
    for entry in spec:
        if axis in ((entry,) if isinstance(entry, str) else entry or ()):
            shape = show_array(leaf.dtype, leaf.shape)
            raise FlintError(
                "FL240",
                f"{name} is sharded over mesh axis '{axis}', which is the axis of the stages",
                place=f"{place or name}  {shape}, sharding {show_spec(spec)}",
                help=f"each position of '{axis}' holds the parameters of its own stages: remove '{axis}' from shardings",
            )
