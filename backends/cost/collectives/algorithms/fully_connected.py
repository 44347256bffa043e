"""Members that have a link to each other member."""

from __future__ import annotations

from flint.backends.cost.collectives.algorithm import GROUP_COLLECTIVES, Algorithm, LinkUse, Task
from flint.backends.cost.collectives.algorithms.ring import total_bytes
from flint.cluster.models import NetworkKind
from flint.ir.op_class import Collective


def fully_connected(collective: Collective, comm_bytes: float, size: int, domain: int) -> LinkUse:
    """All at once over the links between the `size` members, of the `domain` that they are in.

    A member has `domain` - 1 links and uses those to the group.
    """
    total = total_bytes(collective, comm_bytes, size)
    links = (size - 1) / (max(domain, size) - 1)
    if collective is Collective.BROADCAST:  # each member passes a part on to all others
        return LinkUse("direct", 2, total, links=links)
    rounds = 2 if collective is Collective.ALL_REDUCE else 1
    part = total / size
    return LinkUse("direct", rounds, rounds * part * (size - 1), part, links)


def _schedule(task: Task) -> LinkUse:
    return fully_connected(task.collective, task.comm_bytes, task.span.size, task.members)


ALGORITHMS = (
    Algorithm(
        name="fully connected",
        collectives=GROUP_COLLECTIVES,
        networks=frozenset({NetworkKind.MESH}),
        schedule=_schedule,
    ),
)
