"""Who decides how arrays are sharded over an axis of the mesh: the partitioner or the program."""

from __future__ import annotations

from enum import Enum
from typing import Any

from flint.errors import FlintError


class AxisType(Enum):
    """Who says how arrays are sharded over an axis, in JAX's words.

    AUTO: the partitioner, from some shardings that the program gives. EXPLICIT: the types of the
    program, everywhere. PERHAPS_EXPLICIT: a mesh of explicit axes alone, which JAX also makes where
    nothing is said (`jax.make_mesh`, `AbstractMesh` since 0.11).
    """

    AUTO = "auto"
    EXPLICIT = "explicit"
    PERHAPS_EXPLICIT = "perhaps explicit"


def axis_types_of(jax_mesh: Any) -> tuple[AxisType, ...]:
    """What a `jax.sharding.Mesh` or `AbstractMesh` says of its axes.

    Raises FlintError FL101 for manual axes, which only bodies of `shard_map` have.
    """
    names = [t.name for t in getattr(jax_mesh, "axis_types", None) or ()]
    if "Manual" in names:
        raise FlintError(
            "FL101",
            f"axis '{jax_mesh.axis_names[names.index('Manual')]}' of the mesh is manual",
            help="only the body of a shard_map has manual axes: give the mesh around it",
        )
    if names and all(n == "Explicit" for n in names):
        return (AxisType.PERHAPS_EXPLICIT,) * len(names)
    return tuple(AxisType(n.lower()) for n in names)


def axis_types_from(given: object, axes: tuple[str, ...]) -> tuple[AxisType, ...]:
    """Types of `axes` as a user writes them: a name or JAX's `AxisType`, or one for each axis.

    Raises FlintError FL101 for what is neither "auto" nor "explicit", and for another number.
    """
    several = list(given) if isinstance(given, list | tuple) else [given] * max(len(axes), 1)
    names = [str(getattr(t, "name", t)).lower() for t in several]
    known = (AxisType.AUTO.value, AxisType.EXPLICIT.value)
    if not set(names) <= set(known) or (names and len(names) != len(axes)):
        raise FlintError(
            "FL101",
            f"axis_types {given!r} do not fit the axes ({', '.join(axes) or 'none'})",
            help='give "auto" or "explicit", one for each of axes=(...), or one for all',
        )
    return tuple(map(AxisType, names))
