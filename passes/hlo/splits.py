"""How XLA's propagation divides a program: for each instruction the mesh axes that divide something."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flint.ir.mesh import AxisRef, Mesh
from flint.passes.hlo.collectives import collective_kind
from flint.passes.hlo.module import Computation, HloModule, Instruction, OpSharding

#: Numbers of OpSharding.Type: of a sharding, and of the last dimensions of its tiles.
_TILED, _MANUAL = 3, 4
_PLACE = frozenset({"partition-id", "replica-id"})


class DividedBy(NamedTuple):
    """Axes that divide an instruction, and in how many parts its own types are divided by hand."""

    axes: frozenset[str]
    ways: int


def splits_of(module: HloModule, mesh: Mesh) -> dict[int, DividedBy]:
    """By number, for each instruction of a module from before it is partitioned.

    Its types are of the whole, but in bodies of `shard_map`, where they are of a part: by the axes that
    divide what goes in or comes out of any, or by all where the program communicates or asks for its place.
    """
    by_hand = frozenset(mesh.names)
    seen: dict[bytes, DividedBy] = {}

    def of_sharding(sharding: OpSharding) -> Iterator[DividedBy]:
        for part in (sharding, *sharding.tuple_shardings):
            key = part.SerializeToString(deterministic=True)
            if key not in seen:
                seen[key] = _split(part, mesh, by_hand)
            yield seen[key]

    def of(i: Instruction, computation: Computation) -> DividedBy:
        values = (i, *module.operands(computation, i))
        found = [split for v in values for split in of_sharding(v.sharding)]
        return DividedBy(
            frozenset[str]().union(*(s.axes for s in found)), max(s.ways for s in found)
        )

    every = [(i, c) for c in module.proto.computations for i in c.instructions]
    if any(collective_kind(i.opcode) or i.opcode in _PLACE for i, _ in every):
        return {i.id: of(i, c) for i, c in every}
    edges = [v for i, c in every for v in _edges(i, c, module)]
    by_hand = frozenset[str]().union(*(s.axes for v in edges for s in of_sharding(v.sharding)))
    seen.clear()
    return {i.id: of(i, c) for i, c in every}


def _edges(i: Instruction, computation: Computation, module: HloModule) -> list[Instruction]:
    """What an instruction takes into a body of `shard_map`, or out of it."""
    if i.custom_call_target == "SPMDFullToShardShape":
        return module.operands(computation, i)
    return [i] if i.custom_call_target == "SPMDShardToFullShape" else []


def _split(sharding: OpSharding, mesh: Mesh, by_hand: frozenset[str]) -> DividedBy:
    if sharding.HasField("named_sharding"):
        return _split_by_names(sharding, mesh, by_hand)
    if sharding.type == _MANUAL:
        return DividedBy(by_hand, mesh.group_size(map(AxisRef, by_hand)))
    if sharding.type != _TILED:
        return DividedBy(frozenset(), 1)
    kinds = list(sharding.last_tile_dims)
    sizes = list(sharding.tile_assignment_dimensions)[-len(kinds) :] if kinds else []
    ways = math.prod(n for n, k in zip(sizes, kinds, strict=True) if k == _MANUAL)
    tiles = _tiles(sharding, mesh.size)
    if tiles is None:
        return DividedBy(frozenset(mesh.names), ways)
    at = tiles.reshape(mesh.sizes)
    return DividedBy(
        frozenset(
            name
            for number, name in enumerate(mesh.names)
            if (at != np.take(at, [0], axis=number)).any()
        ),
        ways,
    )


def _split_by_names(sharding: OpSharding, mesh: Mesh, by_hand: frozenset[str]) -> DividedBy:
    named = sharding.named_sharding
    names = [axis.name for axis in named.mesh.axes]
    manual = frozenset(names[a.mesh_axis_index] for a in named.manual_axes)
    used = manual | {names[a.mesh_axis_index] for d in named.dim_shardings for a in d.axes}
    if not used <= set(mesh.names):
        return DividedBy(frozenset(mesh.names), 1)
    if manual and manual >= {name for name, size in mesh.shape.items() if size > 1}:
        manual = used = by_hand
    return DividedBy(used, mesh.group_size(map(AxisRef, manual)))


def _tiles(sharding: OpSharding, num_devices: int) -> NDArray[np.int64] | None:
    """The tile that each device holds, by its number; None for a sharding that is not understood.

    Devices that hold the same tile are neighbors along the last dimensions of the assignment; those of
    manual axes are told apart.
    """
    dimensions = tuple(sharding.tile_assignment_dimensions)
    if sharding.iota_reshape_dims:
        numbers = np.arange(num_devices).reshape(tuple(sharding.iota_reshape_dims))
        devices = numbers.transpose(tuple(sharding.iota_transpose_perm)).reshape(-1)
    else:
        devices = np.array(sharding.tile_assignment_devices, dtype=np.int64)
    if len(devices) != num_devices or int(np.prod(dimensions)) != num_devices:
        return None
    kinds = list(sharding.last_tile_dims) or [0] * bool(sharding.replicate_on_last_tile_dim)
    shape = [*dimensions[: len(dimensions) - len(kinds)]]
    shape += [
        n if k == _MANUAL else 1 for n, k in zip(dimensions[len(shape) :], kinds, strict=True)
    ]
    tiles = np.arange(int(np.prod(shape))).reshape(shape)
    found = np.empty(num_devices, dtype=np.int64)
    found[devices] = np.broadcast_to(tiles, dimensions).reshape(-1)
    return found
