"""The types of mesh axes that a JAX step is captured with: what its own meshes say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from flint.axis_types import AxisType, axis_types_of
from flint.mesh import Mesh
from flint.step import Step


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


def _by_name(mesh: Mesh, other: Any) -> tuple[AxisType, ...]:
    """What a JAX mesh says of the axes of `mesh`; nothing if it has other axes."""
    names = tuple(map(str, getattr(other, "axis_names", ())))
    if sorted(names) != sorted(mesh.names):
        return ()
    types = dict(zip(names, axis_types_of(other), strict=False))
    return tuple(types.get(n, AxisType.AUTO) for n in mesh.names)


def _meshes_of(step: Step) -> Iterator[Any]:
    import jax

    from flint.frontends.jax_program import own_sharding

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


def _current_mesh() -> Any:
    import jax

    return jax.sharding.get_abstract_mesh()
