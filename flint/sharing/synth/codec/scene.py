"""What a program is written into: its mesh, its depth, and sizes that nothing else gives."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from flint.ir.mesh import Mesh


@dataclass
class Symbols:
    """Sizes that no earlier dimension gives, in the order in which they are needed.

    `given` are taken first. `more` draws others by their octave (floor of log2); None refuses.
    """

    given: Sequence[int] = ()
    more: Iterator[int] | None = None
    taken: list[int] = field(default_factory=list)

    def at(self, number: int) -> int | None:
        """The size of a number, None if there is none."""
        if number < len(self.taken):
            return self.taken[number]
        return self.given[number] if number < len(self.given) else None


@dataclass(frozen=True)
class Scene:
    """`depth` is how often the body with most work repeats; `mesh` says sizes of groups."""

    mesh: Mesh
    depth: int

    def group_size(self, axes: Sequence[int]) -> int:
        """Devices of a group over axes by their numbers; 1 for axes that the mesh lacks."""
        sizes = self.mesh.sizes
        return math.prod(sizes[a] for a in axes if a < len(sizes))
