"""RankClass: which ranks of a mesh run the same program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flint.ir.mesh import Mesh
from flint.ir.verify import hold


@dataclass(frozen=True)
class RankClass:
    """Ranks that run the same program.

    `where` restricts axes to coordinates (`{"pipe": (2,)}`); an axis that is not named is free.
    `{}` is the whole mesh. `ranks` lists ranks explicitly where coordinates cannot say it.
    """

    name: str
    program: int
    where: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ranks: tuple[int, ...] = ()

    def mask(self, mesh: Mesh) -> NDArray[np.bool_]:
        """For each rank of the mesh, whether it is in this class."""
        if self.ranks:
            inside = np.zeros(mesh.size, dtype=np.bool_)
            inside[list(self.ranks)] = True
            return inside
        grid = np.ones(mesh.sizes, dtype=np.bool_)
        for axis, coordinates in self.where.items():
            keep = np.zeros(mesh.axis_size(axis), dtype=np.bool_)
            keep[list(coordinates)] = True
            shape = [1] * len(mesh.sizes)
            shape[mesh.names.index(axis)] = -1
            grid = grid & keep.reshape(shape)
        return grid.reshape(-1)

    def verify(self, mesh: Mesh) -> None:
        """Raise AssertionError unless ranks and coordinates are those of the mesh."""
        hold(
            max(self.ranks, default=0) < mesh.size, f"class {self.name} has a rank beyond the mesh"
        )
        for axis, coordinates in self.where.items():
            inside = max(coordinates, default=0) < mesh.axis_size(axis)
            hold(inside, f"class {self.name} has a coordinate beyond axis {axis}")
