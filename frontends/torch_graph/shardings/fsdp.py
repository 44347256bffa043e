"""Fully sharded parameters (FSDP, ZeRO-3): the additional axes that they are sharded over at rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flint.errors import FlintError
from flint.frontends.torch_graph.shardings.placements import entry_axes, spec_axes
from flint.ir.mesh import Mesh

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec


def fsdp_axes(given: str | Sequence[str], mesh: Mesh) -> tuple[str, ...]:
    """The axes of a step's `fsdp` that have more than one device.

    Raises FlintError: FL102 (an axis that the mesh lacks), FL106 (an axis twice).
    """
    axes = (given,) if isinstance(given, str) else tuple(given)
    if len(set(axes)) != len(axes):
        raise FlintError("FL106", f"fsdp names a mesh axis twice: {', '.join(axes)}")
    return tuple(a for a in axes if mesh.axis_size(a) > 1)


def fully_sharded(
    spec: PartitionSpec, shape: tuple[int, ...], axes: Sequence[str], mesh: Mesh
) -> PartitionSpec | None:
    """`spec` with `axes` added to the first dimension that they divide, or None if there is none.

    Dimension 0 comes first, as in FSDP2. On a dimension that is sharded already the added axes
    are minor, which is FSDP2's order over tensor parallelism. Axes that `spec` uses are left out:
    what the user placed over them (experts, say) stays as placed, and is not gathered.

    >>> mesh = Mesh.parse("data=2,model=4")
    >>> fully_sharded(PartitionSpec("model"), (8, 8), ("data",), mesh)
    P(('model', 'data'),)
    """
    from jax.sharding import PartitionSpec

    used = spec_axes(spec)
    free = tuple(a for a in axes if a not in used)
    if not free:
        return spec
    entries = [*spec, *[None] * (len(shape) - len(spec))]
    for dimension, size in enumerate(shape):
        combined = entry_axes(entries[dimension]) + free
        if size and size % math.prod(mesh.axis_size(a) for a in combined) == 0:
            entries[dimension] = combined if len(combined) > 1 else combined[0]
            while entries[-1] is None:
                entries.pop()
            return PartitionSpec(*entries)
    return None
