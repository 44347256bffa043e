"""Point-to-point messages, and permutations, which are one message per member."""

from __future__ import annotations

from flint.backends.cost.collectives.algorithm import (
    MESSAGES,
    NEIGHBOURS,
    Algorithm,
    LinkUse,
    Task,
    of_message,
)
from flint.cluster.models import NetworkKind


def message(comm_bytes: float, *, hops: int = 1, links: float = 1.0) -> LinkUse:
    """One message over `hops` links one after the other; the bytes are not stored on the way."""
    return LinkUse("message", hops, comm_bytes, links=links)


def _schedule(task: Task) -> LinkUse:
    if task.network.kind in NEIGHBOURS:
        return message(task.comm_bytes, hops=task.span.stride)
    links = max(task.members - 1, 1) if task.network.kind is NetworkKind.MESH else 1
    return message(task.comm_bytes, links=1 / links)


ALGORITHMS = (
    Algorithm(
        name="message",
        collectives=MESSAGES,
        networks=frozenset(NetworkKind),
        schedule=_schedule,
        protocols=of_message,
    ),
)
