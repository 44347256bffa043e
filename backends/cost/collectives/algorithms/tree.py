"""Trees: fewer steps than a ring, where there are many members."""

from __future__ import annotations

import math

from flint.backends.cost.collectives.algorithm import Algorithm, LinkUse, Task, of_collective
from flint.cluster.models import NetworkKind
from flint.ir.op_class import Collective

#: Chips of one host, which a tree of NCCL passes as a chain before it branches between hosts.
CHIPS_PER_HOST = 8


def tree_all_reduce(comm_bytes: float, hosts: int) -> LinkUse:
    """All-reduce by two binary trees between `hosts`, each with half of the bytes.

    Up and down once. A host is inside one tree and a leaf of the other, and so sends as much as in
    a ring: twice the bytes, less what the roots have nobody to send to.
    """
    return LinkUse("tree", 2 * math.log2(hosts), 2 * comm_bytes * (hosts - 1) / hosts)


def tree_in_domain(comm_bytes: float, size: int) -> LinkUse:
    """A tree over one switch: between hosts, after a chain through the chips of each host.

    All bytes go along the chain and back.
    """
    inside = min(size, CHIPS_PER_HOST)
    hosts = math.ceil(size / inside)
    steps = 2 * (inside - 1) + 2 * math.log2(hosts)
    return LinkUse("tree", steps, 2 * comm_bytes)


def _schedule(task: Task) -> LinkUse:
    """Between hosts there is one member per host, as far as the tier knows."""
    over = tree_all_reduce if task.span.tier > 0 else tree_in_domain
    return over(task.comm_bytes, task.span.size)


ALGORITHMS = (
    Algorithm(
        name="tree",
        collectives=frozenset({Collective.ALL_REDUCE}),
        networks=frozenset({NetworkKind.SWITCH}),
        schedule=_schedule,
        where=lambda task: task.span.tier > 0 or task.span.size > CHIPS_PER_HOST,
        protocols=of_collective,
    ),
)
