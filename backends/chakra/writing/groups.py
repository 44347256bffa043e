"""Communicator groups: dense numbers for comm_group.json, or flags of network dimensions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from flint.ir.mesh import Group, Mesh
from flint.ir.program import Int64s


def network_dimensions(mesh: Mesh) -> tuple[tuple[str, int], ...]:
    """Name and size of each network dimension: mesh axes of size > 1, the minor axis first.

    ASTRA-sim numbers ranks with dimension 0 varying fastest; a mesh with its last axis.
    """
    axes = zip(reversed(mesh.names), reversed(mesh.sizes), strict=True)
    return tuple((name, size) for name, size in axes if size > 1)


def involved_dimensions(group: Group, mesh: Mesh) -> tuple[bool, ...] | None:
    """For each network dimension whether `group` spans it; None unless it spans whole axes."""
    axes = mesh.canonical(group.axes)
    if group.is_listed or any(a.size is not None for a in axes):
        return None
    names = {a.name for a in axes}
    return tuple(name in names for name, _ in network_dimensions(mesh))


@dataclass
class GroupNumbers:
    """Gives every set of ranks that communicates one number, dense from 1 in order of first use.

    The world has a number too: ASTRA-sim's paper branch knows no other way to name it.
    """

    mesh: Mesh
    members: dict[tuple[int, ...], int] = field(default_factory=dict)

    def of_ranks(self, group: Group) -> Int64s:
        """For each rank, the number of the set in which it takes part, or -1.

        Ranks that are alone in their set have none: a collective of one never ends in ASTRA-sim.
        """
        numbers = np.full(self.mesh.size, -1, dtype=np.int64)
        for ranks in group.members(self.mesh):
            if len(ranks) > 1:
                key = tuple(ranks.tolist())
                numbers[ranks] = self.members.setdefault(key, len(self.members) + 1)
        return numbers

    def to_json(self) -> bytes:
        """comm_group.json: decimal number -> ranks in mesh order, which is the ring's order."""
        return comm_group_json({n: ranks for ranks, n in self.members.items()})


def comm_group_json(groups: Mapping[int, Sequence[int]]) -> bytes:
    """The text of a communicator group file, numbers ascending."""
    ordered = {str(n): list(groups[n]) for n in sorted(groups)}
    return (json.dumps(ordered, separators=(",", ":")) + "\n").encode()
