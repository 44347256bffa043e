"""The dependency graph of one rank: unique ids, known dependencies, no cycle.

Ranks of one class have one structure, so it is built and examined once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from flint.backends.chakra.checking.findings import Collected
from flint.backends.chakra.reading.heads import UInt64s
from flint.ir.program import Int32s, Int64s


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
            f"it waits for node {awaited[at]}, which the file does not have",
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
    """Positions, each after what it waits for; those on cycles and behind them are left out."""
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
    """Pairs by who waits and then for what, without repetition."""
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
