"""PartitionSpecs that a user gives, checked against the array and the mesh that they are for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from flint.errors import FlintError, nearest
from flint.io.fields import shown
from flint.ir.mesh import AxisRef, Mesh

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec


def check_spec(
    spec: PartitionSpec | None,
    shape: tuple[int, ...],
    dtype: object,
    name: str,
    mesh: Mesh,
    place: str | None,
) -> None:
    """Raise unless `spec` (a PartitionSpec or None) can shard the array called `name` over `mesh`.

    `place` is where the user wrote it. Entries that are neither an axis nor a tuple of axes say
    nothing and are passed over. Raises FlintError: FL102 (an axis that the mesh lacks), FL103 (too
    many entries, or a dimension that does not divide), FL106 (an axis twice).
    """
    if spec is None:
        return
    where = f"{place or name}  {show_array(dtype, shape)}, sharding {show_spec(spec)}"
    if len(spec) > len(shape):
        raise FlintError(
            "FL103",
            f"sharding of {name} has {len(spec)} dimensions, but the array has {len(shape)}",
            place=where,
        )
    check_axes(spec, name, mesh, where)
    for number, (size, entry) in enumerate(zip(shape, spec, strict=False)):
        if isinstance(entry, str | tuple):
            axes = entry if isinstance(entry, tuple) else (entry,)
            _check_divides(size, axes, number, name, mesh, where)


def check_axes(spec: PartitionSpec, name: str, mesh: Mesh, where: str) -> None:
    """Raise FlintError FL102 or FL106 for an entry of `spec` that is no axis, or one used before."""
    used: set[str] = set()
    for entry in spec:
        if not isinstance(entry, str | tuple | int | float | bytes):
            continue  # None, or UNCONSTRAINED
        for axis in entry if isinstance(entry, tuple) else (entry,):
            _check_axis(axis, used, name, mesh, where)
            used.add(axis)


def show_array(dtype: object, shape: Iterable[object]) -> str:
    """`float32[8,16]`."""
    return f"{dtype}[{','.join(map(str, shape))}]"


def show_spec(spec: PartitionSpec) -> str:
    """`P('data', None)`."""
    return "P(" + ", ".join(repr(e) for e in spec) + ")"


def _check_axis(axis: object, used: set[str], name: str, mesh: Mesh, where: str) -> None:
    if not isinstance(axis, str):
        raise FlintError(
            "FL102", f"sharding of {name} has {shown(axis)} instead of an axis", place=where
        )
    if axis in used:
        raise FlintError(
            "FL106",
            f"sharding of {name} uses mesh axis '{axis}' twice",
            place=where,
            help="an axis can shard only one dimension",
        )
    if axis not in mesh.names:
        raise FlintError(
            "FL102",
            f"mesh has no axis '{axis}'{nearest(axis, mesh.names)}",
            place=where,
            help=f"the mesh is {mesh}",
        )


def _check_divides(
    size: int, axes: tuple[str, ...], number: int, name: str, mesh: Mesh, where: str
) -> None:
    factor = mesh.group_size(AxisRef(a) for a in axes)
    if size % factor == 0:
        return
    shown = " and ".join(f"'{a}' ({mesh.axis_size(a)})" for a in axes)
    plural = "mesh axes" if len(axes) > 1 else "mesh axis"
    verb = "do not divide" if len(axes) > 1 else "does not divide"
    raise FlintError(
        "FL103",
        f"{plural} {shown} {verb} dimension {number} ({size}) of {name}",
        place=where,
        help=f"pad the dimension to {-(-size // factor) * factor}, or leave it unsharded",
    )
