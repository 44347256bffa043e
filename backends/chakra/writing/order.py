"""One order for all that takes a rank's only slot for communication, written as dependencies.

ASTRA-sim gives a rank one slot for collectives and sends and issues what is ready first. Two that are
ready in either order take it in the order that durations say, so that one slow rank is enough: it
takes its slot for one collective while the others wait for it in another, for ever. So each
collective and send waits for the one before it, in one order that all ranks share. Then the
least that has not ended is ready on all its members, whatever anything lasts.

The order is that of a run in which no rank is late (`undisturbed`), so that it costs nothing there:
what had the slot before still has it before. Where one rank of each program cannot stand for all, it
is the order of the programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from flint.backends.chakra.schema import NodeType
from flint.backends.chakra.writing.lower import LoweredNodes, Names, with_pairs
from flint.backends.chakra.writing.simulator_files import SimulatedHardware
from flint.backends.chakra.writing.undisturbed import Order, undisturbed_orders
from flint.ir.program import Int64s, Program

#: Nodes of several programs (one rank of each) above which their run takes too long.
_MOST_NODES = 400_000


def in_one_order(
    programs: Sequence[Program],
    lowered: Sequence[LoweredNodes],
    names: Names,
    hardware: SimulatedHardware,
) -> list[LoweredNodes]:
    """The nodes of all programs, with the dependencies that put communication in one order.

    None is added where others say the order already.
    """
    orders = [_of_program(nodes) for nodes in lowered]
    missing = [_missing(n, o) for n, o in zip(lowered, orders, strict=True)]
    if not any(len(owners) for owners, _ in missing):
        return list(lowered)
    if len(lowered) == 1 or sum(map(len, lowered)) <= _MOST_NODES:
        found = undisturbed_orders(programs, lowered, names, hardware)
        if found is not None:
            missing = [_missing(n, o) for n, o in zip(lowered, found, strict=True)]
    return [_with(n, *pairs) for n, pairs in zip(lowered, missing, strict=True)]


def _with(nodes: LoweredNodes, owners: Int64s, targets: Int64s) -> LoweredNodes:
    if not len(owners):
        return nodes
    dep_start, deps = with_pairs(nodes.dep_start, nodes.deps, owners, targets)
    return replace(nodes, dep_start=dep_start, deps=deps)


def _of_program(nodes: LoweredNodes) -> Order:
    """Program order, which is that of ids."""
    slotted = (nodes.type == NodeType.COMM_COLL) | (nodes.type == NodeType.COMM_SEND)
    return Order(np.flatnonzero(slotted).tolist(), list(range(len(nodes))))


def _missing(nodes: LoweredNodes, order: Order) -> tuple[Int64s, Int64s]:
    """(who waits, for whom) of each that does not wait for the one before it already."""
    turn = np.full(len(nodes), -1, dtype=np.int64)
    turn[order.issued] = np.arange(len(order.issued))
    turns, issued = turn.tolist(), order.issued
    start, deps, after = nodes.dep_start.tolist(), nodes.deps.tolist(), nodes.after.tolist()
    reached = [-1] * len(turns)  # the last of `issued` that a node is or waits for
    owners = []
    for node in order.ended:
        last = reached[after[node]] if after[node] >= 0 else -1
        for dep in deps[start[node] : start[node + 1]]:
            last = max(last, reached[dep])
        own = turns[node]
        if own >= 0:
            if last != own - 1:
                owners.append(node)
            last = own
        reached[node] = last
    owning = np.array(owners, dtype=np.int64)
    return owning, np.array(issued, dtype=np.int64)[turn[owning] - 1]
