"""A lowered module checked: its shardings are Shardy's, and over the mesh that it is captured for."""

from __future__ import annotations

from typing import Any

from flint.errors import FlintError


def check_meshes(module: Any, abstract: Any, place: str | None) -> tuple[str, ...]:
    """Raise FlintError FL107 where shardings are over another mesh than `abstract`.

    Meshes whose axes all have size 1 shard nothing: they are let through, with a sentence each.
    """
    from jaxlib.mlir.dialects import sdy

    said = []
    for op in module.body.operations:
        if op.operation.name != "sdy.mesh":
            continue
        axes = [sdy.MeshAxisAttr(a) for a in sdy.MeshAttr(op.attributes["mesh"]).axes]
        found = {a.name: int(a.size) for a in axes}
        if not found or found == dict(abstract.shape):
            continue
        if all(size == 1 for size in found.values()):
            said.append(
                f"some shardings are over a mesh of {_show(found)}, not over the one that the "
                f"program is captured for ({_show(abstract.shape)}): they shard nothing"
            )
        else:
            raise FlintError(
                "FL107",
                f"the program shards over a mesh of {_show(found)}, the mesh is "
                f"{_show(abstract.shape)}",
                place=place,
                help="make shardings from the mesh that the program is captured for (an entry is "
                "called with it; jax.sharding.get_abstract_mesh() while it is traced)",
            )
    return tuple(said)


def with_mesh_help(error: FlintError, abstract: Any) -> FlintError:
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
        help=f"the mesh is {_show(abstract.shape)} with axes of type {kinds}: give this call a mesh "
        "of the same names, sizes and types (jax.sharding.get_abstract_mesh() is it), or none; "
        "which devices it has does not matter",
    )


def _show(axes: Any) -> str:
    return ",".join(f"{name}={size}" for name, size in axes.items())
