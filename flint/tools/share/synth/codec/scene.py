"""What a program is written into: its mesh, its depth, and sizes that nothing else gives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from flint.ir.mesh import Mesh


@dataclass
class Symbols:
    """Sizes that no earlier dimension gives, in the order in which they are needed."""

    taken: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Scene:
    """`depth` is how often the body with most work repeats; `mesh` says sizes of groups."""

    mesh: Mesh
    depth: int

    def group_size(self, axes: Sequence[int]) -> int:
        """Devices of a group over axes by their numbers; 1 for axes that the mesh lacks."""
        sizes = self.mesh.sizes
        return math.prod(sizes[a] for a in axes if a < len(sizes))
