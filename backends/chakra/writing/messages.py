"""Collectives as the messages of their algorithm, for consumers that know only sends and receives.

A ring over the group's members in mesh order: at each step a rank sends to the next and receives from the
one before, and sends on what it has received. An all-to-all sends to each other member directly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flint.errors import FlintError
from flint.ir.mesh import Group, Mesh
from flint.ir.program import Collective, Int32s, Int64s, Program

#: Each message of these carries all that a rank puts in; of others one of as many parts as there are members.
_WHOLE = (Collective.ALL_GATHER, Collective.BROADCAST)


@dataclass(frozen=True, eq=False)
class RingMessages:
    """For each row of a program how many messages it is (0: none), the bytes of each, and whether each goes to
    another rank.

    Nodes are given by their row, and by which of the nodes of that row they are: sends and receives in turn.
    """

    program: Program
    steps: Int64s
    num_bytes: Int64s
    is_direct: NDArray[np.bool_]

    def waits(self, row: Int32s, within: Int64s) -> tuple[Int64s, Int64s]:
        """Who waits for whom: each message for what was received in the step before."""
        later = np.flatnonzero(within >= 2)
        receives = within[later] % 2 == 1
        kept = receives | ~self.is_direct[row[later]]
        return later[kept], later[kept] - np.where(receives[kept], 2, 1)

    def ends(
        self, row: Int32s, within: Int64s, parts: NDArray[np.bool_]
    ) -> Iterator[tuple[NDArray[np.bool_], Int64s]]:
        """Nodes of `parts` with the same other end, and for each rank who that is: the next or previous
        member of a ring, or each in turn."""
        away = np.where(self.is_direct[row], within // 2 + 1, 1) * np.where(within % 2, -1, 1)
        keys = np.stack((self.program.group[row], away), axis=1)
        for group, offset in dict.fromkeys(map(tuple, keys[parts].tolist())):
            where = parts & (keys == (group, offset)).all(axis=1)
            yield where, _peers(self.program.groups[group], self.program.mesh, offset)


def messages_of(program: Program) -> RingMessages:
    """What each collective is as messages. Raises FlintError FL504 for groups of unequal size."""
    kind = program.collective
    sizes = np.array([_size(g, program.mesh) for g in program.groups] or [0], dtype=np.int64)
    is_collective = (program.group >= 0) & (kind != Collective.NONE) & (kind != Collective.PERMUTE)
    members = np.where(is_collective, sizes[program.group], 1)
    rounds = np.where(kind == Collective.ALL_REDUCE, 2, 1)
    parts = np.where(np.isin(kind, _WHOLE), 1, np.maximum(members, 1))
    return RingMessages(
        program,
        rounds * (members - 1),
        -(-program.comm_bytes // parts),
        kind == Collective.ALL_TO_ALL,
    )


def _size(group: Group, mesh: Mesh) -> int:
    if group.ranks and len(set(map(len, group.ranks))) > 1:
        raise FlintError(
            "FL504",
            f"groups p2p: {group} are not equally large",
            help="write them with --groups names",
        )
    return group.size(mesh)


def _peers(group: Group, mesh: Mesh, offset: int) -> Int64s:
    """For each rank the member `offset` places after it in its group; -1 outside of groups."""
    found = np.full(mesh.size, -1, dtype=np.int64)
    for ranks in group.members(mesh):
        if len(ranks) > 1:
            found[ranks] = np.roll(ranks, -offset)
    return found
