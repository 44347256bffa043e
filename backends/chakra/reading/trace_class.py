"""Ranks whose traces differ in nothing but which groups and ranks stand in them.

Such a class is examined once. What differs is kept as *slots*: places that held the same value in
each file so far are one slot, so a rank of thousands of collectives over three groups is a row of
three numbers.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from flint.backends.chakra.checking.findings import Collected
from flint.backends.chakra.checking.structure import Structure
from flint.backends.chakra.reading.records import Remark
from flint.backends.chakra.schema import NodeType
from flint.ir.program import Int64s

#: Columns of communication: position among the nodes by id, then what `kinds` says of it.
(AT, COMM_TYPE, COMM_KIND, COMM_SIZE, COMM_TAG, COMM_NAME) = range(6)


@dataclass(frozen=True, eq=False)
class TraceNodes:
    """What all ranks of a class share.

    `comm` has a line for each node that communicates, by id. `remarks` are counted by nodes, with
    the least id and the label that stand for them.
    """

    structure: Structure
    comm: Int64s
    problems: Collected
    remarks: Counter[Remark]
    first_of: dict[Remark, tuple[int, str]]

    @cached_property
    def collectives(self) -> Int64s:
        """The lines of `comm` that are collectives."""
        return np.compress(self.comm[:, COMM_TYPE] == NodeType.COMM_COLL, self.comm, axis=0)

    @cached_property
    def messages(self) -> Int64s:
        """The lines of `comm` that are sends and receives."""
        return np.compress(self.comm[:, COMM_TYPE] != NodeType.COMM_COLL, self.comm, axis=0)

    def id_at(self, position: int) -> int:
        """Id of the node at a position."""
        return int(self.structure.ids[position])

    def digest(self) -> bytes:
        """Equal for classes that are one."""
        s = self.structure
        hashed = hashlib.sha256(repr((self.problems.key(), sorted(self.first_of.items()))).encode())
        hashed.update(repr(sorted(self.remarks.items())).encode())
        for column in (s.ids, s.child_start, s.children, self.comm):
            hashed.update(len(column).to_bytes(8, "little"))
            hashed.update(np.ascontiguousarray(column).data)
        return hashed.digest()


class TraceClass:
    """Ranks of one class, and what stands in the slots of each.

    The values of a file are the group codes of its collectives, then the own end of each message
    (-1 where it is not said), then the other end.
    """

    def __init__(self, nodes: TraceNodes) -> None:
        self.nodes = nodes
        self.ranks: list[int] = []
        self._rows: list[Int64s] = []
        is_send = nodes.messages[:, COMM_TYPE] == NodeType.COMM_SEND
        start = np.concatenate(
            (np.zeros(len(nodes.collectives), np.int64), np.where(is_send, 1, 2), is_send + 3)
        )
        #: Slot of each value, and a place that holds the value of each slot.
        self.slot, self._place = _numbered(start[:, None])

    def add(self, rank: int, values: Int64s) -> int:
        """Note a rank with the values of its file; the number of its row, for `repeat`."""
        row = values[self._place]
        if not np.array_equal(row[self.slot], values):
            self._split(values)
            row = values[self._place]
        self.ranks.append(rank)
        self._rows.append(row)
        return len(self._rows) - 1

    def repeat(self, rank: int, row: int) -> None:
        """Note a rank whose file is that of another."""
        self.ranks.append(rank)
        self._rows.append(self._rows[row])

    def table(self) -> Int64s:
        """The value of each slot (across) for each of `ranks` (down)."""
        return np.array(self._rows, dtype=np.int64).reshape(len(self._rows), len(self._place))

    @property
    def group_slots(self) -> Int64s:
        """The slot of the group of each collective."""
        return self.slot[: len(self.nodes.collectives)]

    @property
    def end_slots(self) -> Int64s:
        """(slot of the own end, slot of the other end) of each message."""
        return self.slot[len(self.nodes.collectives) :].reshape(2, -1).T

    def _split(self, values: Int64s) -> None:
        """Tell places apart that `values` tells apart."""
        old = self.slot
        self.slot, self._place = _numbered(np.stack((old, values), axis=1))
        again = old[self._place]
        kept: dict[int, Int64s] = {}
        self._rows = [kept.setdefault(id(row), row[again]) for row in self._rows]


def _numbered(lines: Int64s) -> tuple[Int64s, Int64s]:
    """A number for each line, equal for equal ones, and the first line of each number."""
    if not len(lines):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    _, first, number = np.unique(lines, axis=0, return_index=True, return_inverse=True)
    return number.reshape(-1).astype(np.int64), first.astype(np.int64)
