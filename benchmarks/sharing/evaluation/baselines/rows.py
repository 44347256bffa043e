"""Rows of training programs in the form in which baselines put them into new ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flint.ir.mesh import AxisRef, Group, Mesh, Route
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Flag, Kind, Row

#: Flags that say where a result lies: they are not of a row by itself.
_OF_STORAGE = Flag.VIEW | Flag.IN_PLACE | Flag.DONATED


def columns_of(row: Row) -> dict[str, Any]:
    """What `ProgramBuilder.add` takes of a row, without its edges, names and communication."""
    return {
        "op": row.op,
        "dtype": row.dtype,
        "shape": row.shape,
        "result_bytes": row.result_bytes,
        "operand_bytes": row.operand_bytes,
        "flops": row.flops,
        "dims": row.dims,
        "product": row.product,
        "mask": row.mask,
        "phase": row.phase,
        "flags": row.flags & ~_OF_STORAGE,
    }


def long_axes(mesh: Mesh) -> list[str]:
    """Axes of a mesh with more than one device."""
    return [name for name, size in mesh.shape.items() if size > 1]


def communication(
    row: Row, mesh: Mesh, axes: Sequence[str], rng: np.random.Generator
) -> dict[str, Any]:
    """Columns of a collective on another mesh: along an axis of the same name, or any long one."""
    over = row.group or row.route
    named = [a.name for a in over.axes if a.name in axes] if over else []
    axis = AxisRef(named[0] if named else str(rng.choice(np.array(axes))))
    if row.op is OpClass.ALL_SLICE:
        return {"group": Group((axis,))}
    found: dict[str, Any] = {"collective": row.collective, "comm_bytes": max(row.comm_bytes, 1)}
    if row.collective is Collective.PERMUTE:
        return {**found, "route": Route((axis,), offset=1)}
    return {**found, "group": Group((axis,))}


def communicates(row: Row) -> bool:
    """Whether a row is of a group of devices: a collective, or a part that each keeps of a value."""
    return row.kind is Kind.COLLECTIVE or row.op is OpClass.ALL_SLICE
