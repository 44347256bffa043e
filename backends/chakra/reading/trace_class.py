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
from flint.backends.chakra.reading.kinds import Remark
from flint.backends.chakra.reading.slot_order import SlotOrder, find_slot_order
from flint.backends.chakra.schema import NodeType
from flint.ir.arrays import UInt64s
from flint.ir.program import Int32s, Int64s

# The dependency graph of one rank: unique ids, known dependencies, no cycle.
#
# Ranks of one class have one structure, so it is built and examined once.


@dataclass(frozen=True, eq=False)
class Structure:
    """Nodes by ascending id: the order in which the simulator issues what is ready.

    `order[p]` is the place in the file of the node at position p, `ids[p]` its id; `waits[p]`
    counts what it waits for, `children[child_start[p]:child_start[p + 1]]` are the positions that
    wait for it. `is_forward`: no node waits for a larger id.
    """

    order: Int64s
    ids: UInt64s
    waits: Int32s
    child_start: Int64s
    children: Int32s
    is_forward: bool

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def adjacency(self) -> tuple[list[int], list[int]]:
        """`child_start` and `children` as lists, which Python walks along faster."""
        return self.child_start.tolist(), self.children.tolist()


def build_structure(
    ids: UInt64s, owner: Int64s, dependency: UInt64s, problems: Collected
) -> Structure:
    """Examine the nodes of one file: `ids` in file order, and who (`owner`) waits for which id.

    A dependency may be named twice. Adds duplicate-id, unknown-dependency and dependency-cycle.
    """
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    twice = np.flatnonzero(ordered[1:] == ordered[:-1])
    problems.add_many(
        "duplicate-id", twice, lambda p: (int(ordered[p]), f"two nodes have id {ordered[p]}")
    )
    position = np.empty(len(ids), dtype=np.int64)
    position[order] = np.arange(len(ids))
    waiting, awaited = _unique_pairs(position[owner], dependency)
    source = np.searchsorted(ordered, awaited, side="right") - 1
    known = (source >= 0) & (ordered[np.maximum(source, 0)] == awaited)
    # In the order of ids, so that the first are those of the least.
    problems.add_many(
        "unknown-dependency",
        np.flatnonzero(~known),
        lambda at, waiting=waiting, awaited=awaited: (  # type: ignore[misc]
            int(ordered[waiting[at]]),
            f"it waits for node {awaited[at]}, which the file does not contain",
        ),
    )
    waiting, source = waiting[known], source[known]
    by_source = np.argsort(source, kind="stable")
    structure = Structure(
        order=order,
        ids=ordered,
        waits=np.bincount(waiting, minlength=len(ids)).astype(np.int32),
        child_start=np.concatenate(([0], np.cumsum(np.bincount(source, minlength=len(ids))))),
        children=waiting[by_source].astype(np.int32),
        is_forward=bool((source < waiting).all()),
    )
    if not structure.is_forward:
        _find_cycle(structure, problems)
    return structure


def topological_order(structure: Structure) -> list[int]:
    """Positions, each after what it waits for; those on cycles and behind them are omitted."""
    if structure.is_forward:
        return list(range(len(structure)))
    left = structure.waits.tolist()
    order = [p for p, count in enumerate(left) if not count]
    start, children = structure.adjacency
    for p in order:
        for child in children[start[p] : start[p + 1]]:
            left[child] -= 1
            if not left[child]:
                order.append(child)
    return order


def _unique_pairs(waiting: Int64s, awaited: UInt64s) -> tuple[Int64s, UInt64s]:
    order = np.lexsort((awaited, waiting))
    waiting, awaited = waiting[order], awaited[order]
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = (waiting[1:] != waiting[:-1]) | (awaited[1:] != awaited[:-1])
    return waiting[new], awaited[new]


def _find_cycle(structure: Structure, problems: Collected) -> None:
    """Note one cycle if there is any: what remains after taking out all that can run."""
    stuck = set(range(len(structure))).difference(topological_order(structure))
    if not stuck:
        return
    start, children = structure.adjacency
    parent = {c: p for p in sorted(stuck) for c in children[start[p] : start[p + 1]] if c in stuck}
    at, step = min(stuck), dict[int, int]()
    while at not in step:
        step[at] = len(step)
        at = parent[at]
    cycle = [p for p, number in step.items() if number >= step[at]]
    ids = [int(structure.ids[p]) for p in reversed(cycle)]
    text = " -> ".join(map(str, [*ids[:8], "..."] if len(ids) > 8 else [*ids, ids[0]]))
    problems.add("dependency-cycle", min(ids), f"nodes wait for each other: {text}")


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

    @cached_property
    def slot_order(self) -> SlotOrder:
        """In which order dependencies put what takes the slot for communication."""
        types = {p: NodeType(t) for p, t in self.comm[:, (AT, COMM_TYPE)].tolist()}
        return find_slot_order(topological_order(self.structure), self.structure.adjacency, types)

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
