"""Local shapes of sharded parameters on every rank, by arithmetic.

DTensor splits a dimension as `torch.chunk` does: parts of ceil(n / parts), the last ones smaller or
empty. So ranks of one program may hold shards of different sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from flint.frontends.torch_world.record.recording import DeviceMeshInfo, Placement, Recording
from flint.ir.mesh import AxisRef, Mesh
from flint.ir.program import Int64s
from flint.passes.axes import axes_of_members, positions_along

Shape = tuple[int, ...]


@dataclass
class Shards:
    """Local shapes of the placements of one recording."""

    recording: Recording
    mesh: Mesh

    def __post_init__(self) -> None:
        self._axes: dict[tuple[int, int], tuple[AxisRef, ...] | None] = {}

    def local_shape(self, placement: Placement, rank: int) -> Shape | None:
        """Shape of `rank`'s shard; None if the mesh of the placement matches no axes."""
        split = self._local(placement, np.array([rank]))
        if split is None:
            return None
        sizes = {d: int(s[0]) for d, s in split.items()}
        return tuple(sizes.get(d, n) for d, n in enumerate(placement.global_shape))

    def uneven_sizes(self) -> Iterator[Int64s]:
        """For each way in which a dimension is split unevenly, the local size on every rank."""
        placements = {i.placement: None for i in self.recording.storages.values() if i.placement}
        every = np.arange(self.mesh.size, dtype=np.int64)
        seen: set[object] = set()
        for placement in placements:
            for dim in sorted({d for d in placement.shards if d >= 0}):
                how = tuple(d == dim for d in placement.shards), placement.strided
                key = (placement.mesh, placement.global_shape[dim], how)
                if key in seen or self._is_even(placement, dim):
                    continue
                seen.add(key)
                split = self._local(placement, every)
                if split is not None:
                    yield split[dim]

    def _is_even(self, placement: Placement, dim: int) -> bool:
        sizes = self.recording.meshes[placement.mesh].sizes
        parts = math.prod(n for n, d in zip(sizes, placement.shards, strict=True) if d == dim)
        return placement.global_shape[dim] % parts == 0

    def _local(self, placement: Placement, ranks: Int64s) -> dict[int, Int64s] | None:
        """Size of each split dimension on each of `ranks`.

        Strided shards split what the mesh dimensions after them left (FSDP over tensor
        parallelism), so they come last.
        """
        info = self.recording.meshes[placement.mesh]
        order = sorted(range(len(placement.shards)), key=lambda d: placement.strided[d])
        sizes: dict[int, Int64s] = {}
        for mesh_dim in order:
            dim = placement.shards[mesh_dim]
            if dim < 0:
                continue
            axes = self._axes_of(placement.mesh, mesh_dim)
            if axes is None:
                return None
            whole = sizes.get(dim)
            if whole is None:
                whole = np.full(len(ranks), placement.global_shape[dim], dtype=np.int64)
            position = positions_along(ranks, axes, self.mesh)
            sizes[dim] = chunk_size(whole, info.sizes[mesh_dim], position)
        return sizes

    def _axes_of(self, mesh: int, mesh_dim: int) -> tuple[AxisRef, ...] | None:
        key = (mesh, mesh_dim)
        if key not in self._axes:
            line = _line(self.recording.meshes[mesh], mesh_dim, self.recording.rank)
            ascending = line is not None and bool((np.diff(line) > 0).all())
            axes = axes_of_members(line, self.mesh) if line is not None and ascending else None
            self._axes[key] = axes
        return self._axes[key]


def _line(info: DeviceMeshInfo, mesh_dim: int, rank: int) -> Int64s | None:
    """Ranks of a device mesh along one of its dimensions, through `rank`."""
    ranks = np.array(info.ranks, dtype=np.int64).reshape(info.sizes)
    found = np.argwhere(ranks == rank)
    if not len(found):
        return None
    at: list[int | slice] = [int(c) for c in found[0]]
    at[mesh_dim] = slice(None)
    return np.asarray(ranks[tuple(at)], dtype=np.int64)


def chunk_size(whole: Int64s, parts: int, position: Int64s) -> Int64s:
    """Size of part `position` when `torch.chunk` splits `whole` into `parts`, with empty ones."""
    full = -(-whole // parts)
    return np.clip(whole - full * position, 0, full)
