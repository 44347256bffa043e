"""In which order a rank's dependencies put what takes its slot for communication.

ASTRA-sim gives a rank one slot for collectives and sends. A collective holds it until all members have
come, a send until it has arrived, which depends on nobody. So what matters is the order of
collectives, and which of them may have the slot while a send waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from flint.backends.chakra.schema import NodeType
from flint.ir.program import Int64s


@dataclass(frozen=True, eq=False)
class SlotOrder:
    """All by position among the nodes by id.

    `depth[p]` is how many collectives are on the longest way of dependencies that ends with p,
    itself included. `unordered` are two collectives of which neither waits for the other; None if
    there are none, and then `depth` numbers them. `held_up` gives, for each send that may find
    the slot taken by collectives that do not wait for it, the last of those.
    """

    depth: list[int]
    unordered: tuple[int, int] | None
    held_up: dict[int, int]


def find_slot_order(
    order: list[int], adjacency: tuple[list[int], list[int]], types: dict[int, NodeType]
) -> SlotOrder:
    """`order` are positions, each after what it waits for; `types` those that communicate."""
    depth = path_counts(order, adjacency, {p for p, t in types.items() if t is NodeType.COMM_COLL})
    at: dict[int, int] = {}
    for p, node_type in types.items():
        if node_type is NodeType.COMM_COLL and at.setdefault(depth[p], p) != p:
            return SlotOrder(depth, (at[depth[p]], p), {})
    return SlotOrder(depth, None, _held_up(order, adjacency, types, depth, at))


def path_counts(
    order: list[int], adjacency: tuple[list[int], list[int]], counted: set[int]
) -> list[int]:
    """For each position the most of `counted` on a way of dependencies that ends with it.

    Two of `counted` with equal numbers do not wait for each other; if all differ they are in one
    order.
    """
    start, children = adjacency
    found = [0] * (len(start) - 1)
    for p in counted:
        found[p] = 1
    for p in order:
        here = found[p]
        for child in children[start[p] : start[p + 1]]:
            through = here + (child in counted)
            found[child] = max(found[child], through)
    return found


def _held_up(
    order: list[int],
    adjacency: tuple[list[int], list[int]],
    types: dict[int, NodeType],
    depth: list[int],
    at: dict[int, int],
) -> dict[int, int]:
    """Of sends, the last collective that does not wait for them, unless they wait for it."""
    sends = [p for p, t in types.items() if t is NodeType.COMM_SEND]
    if not sends or not at:
        return {}
    start, children = adjacency
    after = [len(at) + 1] * len(depth)  # depth of the first collective that waits for it
    for p in reversed(order):
        first = len(at) + 1
        for child in children[start[p] : start[p + 1]]:
            own = depth[child] if types.get(child) is NodeType.COMM_COLL else after[child]
            first = min(first, own)
        after[p] = first
    return {p: at[after[p] - 1] for p in sends if after[p] - 1 > depth[p]}


def by_turn(lines: Int64s, at: int, order: SlotOrder) -> Int64s:
    """Lines of collectives (column `at` is the position) as dependencies order them, else by id."""
    if order.unordered is not None or len(lines) < 2:
        return lines
    turns = [order.depth[p] for p in lines[:, at].tolist()]
    return lines[sorted(range(len(turns)), key=turns.__getitem__)]
