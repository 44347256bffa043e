"""Placements as PyTorch and JAX users write them, as PartitionSpecs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flint.errors import FlintError
from flint.frontends.jax_step.specs import check_spec
from flint.ir.mesh import Mesh

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec
    from torch.distributed.tensor.placement_types import Placement

#: Entry of an activation's placement that leaves the dimension to the partitioner.
OPEN = "?"


def partition_spec(
    placement: object,
    shape: tuple[int, ...],
    dtype: str,
    name: str,
    mesh: Mesh,
    where: str,
    *,
    may_be_open: bool = False,
) -> PartitionSpec:
    """The jax PartitionSpec of a placement of the tensor called `name`.

    A placement is None (replicated), the name of an axis (for dimension 0), one entry per
    dimension (None, an axis or a tuple of axes, major to minor; missing ones are None), a jax
    PartitionSpec, or DTensor placements, one per mesh axis:

    >>> mesh = Mesh.parse("data=2,model=4")
    >>> partition_spec(("model", None), (8, 8), "f32", "w", mesh, "shardings")
    P('model', None)

    Raises FlintError: FL102, FL103, FL106 as for JAX, and FL222 for what is not a placement. `where`
    is where the user wrote it. With `may_be_open`, the entry "?" (or UNCONSTRAINED) leaves a
    dimension to the partitioner.
    """
    from jax.sharding import PartitionSpec

    if _is_dtensor(placement):
        entries = _from_dtensor(_as_tuple(placement), shape, name, mesh, where)
    else:
        entries = tuple(
            _entry(e, name, where, may_be_open=may_be_open) for e in _entries(placement, where)
        )
    spec = PartitionSpec(*entries)
    check_spec(spec, shape, dtype, name, mesh, where)
    return spec


def entry_axes(entry: object) -> tuple[str, ...]:
    if isinstance(entry, str):
        return (entry,)
    return tuple(entry) if isinstance(entry, tuple) else ()


def spec_axes(spec: PartitionSpec) -> set[str]:
    return {axis for entry in spec for axis in entry_axes(entry)}


def _entries(placement: object, where: str) -> tuple[Any, ...]:
    from jax.sharding import NamedSharding, PartitionSpec

    if placement is None:
        return ()
    if isinstance(placement, str):
        return (placement,)
    if isinstance(placement, NamedSharding):
        placement = placement.spec
    if isinstance(placement, tuple | list | PartitionSpec):
        return tuple(placement)
    raise _no_placement(f"{placement!r} is not a placement", where)


def _entry(entry: object, name: str, where: str, *, may_be_open: bool) -> Any:
    from jax.sharding import PartitionSpec

    if entry is None or isinstance(entry, str) and entry != OPEN:
        return entry
    if entry == OPEN or entry is PartitionSpec.UNCONSTRAINED:
        if may_be_open:
            return PartitionSpec.UNCONSTRAINED
        raise _no_placement(
            f"the placement of {name} leaves a dimension open, which is only allowed for activations",
            where,
        )
    if isinstance(entry, tuple | list) and all(isinstance(a, str) for a in entry):
        return tuple(entry) if len(entry) != 1 else entry[0]
    raise _no_placement(f"{entry!r} in the placement of {name} is not a mesh axis", where)


def _no_placement(message: str, where: str) -> FlintError:
    return FlintError(
        "FL222",
        message,
        place=where,
        help='give one entry per dimension: an axis, a tuple of axes or None, such as ("model", '
        "None); or DTensor placements, one per mesh axis",
    )


# DTensor --------------------------------------------------------------------------------------


def _as_tuple(placement: object) -> tuple[Any, ...]:
    return tuple(placement) if isinstance(placement, tuple | list) else (placement,)


def _is_dtensor(placement: object) -> bool:
    """Whether it is a DTensor placement, or a sequence of them alone."""
    found = _as_tuple(placement)
    return bool(found) and all(_is_one_dtensor(p) for p in found)


def _is_one_dtensor(value: object) -> bool:
    # By name: whoever holds a placement has imported DTensor, and nobody else should pay for it.
    return any(
        c.__name__ == "Placement" and c.__module__.startswith("torch") for c in type(value).__mro__
    )


def _from_dtensor(
    placements: tuple[Any, ...], shape: tuple[int, ...], name: str, mesh: Mesh, where: str
) -> tuple[Any, ...]:
    """Entries per dimension of placements per mesh axis.

    Axes that shard one dimension come in mesh order, major first; a strided shard comes after the
    `split_factor` shards that later mesh axes make, as fully sharded data parallelism over tensor
    parallelism does.
    """
    if len(placements) != len(mesh.names):
        raise FlintError(
            "FL222",
            f"{name} has {len(placements)} DTensor placements, but the mesh has {len(mesh.names)} axes",
            place=where,
            help=f"give one placement per mesh axis, in this order: {', '.join(mesh.names)}",
        )
    order: dict[int, list[str]] = {}
    for axis, placement in reversed(list(zip(mesh.names, placements, strict=True))):
        dimension = _shard_dimension(placement, axis, shape, name, where)
        if dimension is None:
            continue
        axes = order.setdefault(dimension, [])
        axes.insert(_position(placement, axes, mesh, name, where), axis)
    rank = max(order, default=-1) + 1
    entries = (tuple(order.get(d, ())) for d in range(rank))
    return tuple((e[0] if len(e) == 1 else e) if e else None for e in entries)


def _shard_dimension(
    placement: Placement, axis: str, shape: tuple[int, ...], name: str, where: str
) -> int | None:
    """The dimension that a placement shards, None if it replicates."""
    kind = type(placement).__name__
    if kind == "Replicate":
        return None
    if kind not in ("Shard", "_StridedShard"):
        raise FlintError(
            "FL222",
            f"{name} is {placement} over mesh axis '{axis}', which is impossible for a stored tensor",
            place=where,
            help="use Shard(dimension) or Replicate()",
        )
    dimension = int(placement.dim)
    if not -len(shape) <= dimension < len(shape):
        raise FlintError(
            "FL103",
            f"{placement} shards dimension {dimension} of {name}, which has {len(shape)}",
            place=f"{where}  [{','.join(map(str, shape))}]",
        )
    return dimension % len(shape)


def _position(placement: Placement, inner: Sequence[str], mesh: Mesh, name: str, where: str) -> int:
    """How many of the axes already on a dimension, all later in the mesh, are major to this one."""
    factor = int(getattr(placement, "split_factor", 1))
    sizes = [mesh.axis_size(a) for a in inner]
    for count in range(len(inner) + 1):
        if math.prod(sizes[:count]) == factor:
            return count
    raise FlintError(
        "FL222",
        f"{placement} of {name} is interleaved with {factor} shards that no other mesh axis makes",
        place=where,
        help="use Shard(dimension), or the split factor of the axes that shard the dimension first",
    )


# Fully sharded parameters (FSDP, ZeRO-3): the additional axes that they are sharded over at rest.


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
    are minor, which is FSDP2's order over tensor parallelism. Axes that `spec` uses are omitted:
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
