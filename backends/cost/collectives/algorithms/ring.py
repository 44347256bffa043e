"""Rings through the members of a group, each of which sends to the next one only."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flint.backends.cost.collectives.algorithm import (
    GROUP_COLLECTIVES,
    AcrossTiers,
    Algorithm,
    LinkUse,
    Task,
    of_collective,
)
from flint.cluster.models import NetworkKind
from flint.ir.op_class import Collective


def total_bytes(collective: Collective, comm_bytes: float, size: int) -> float:
    """Bytes of the whole array: of an all-gather, `comm_bytes` is one rank's part of it."""
    return comm_bytes * size if collective is Collective.ALL_GATHER else comm_bytes


def ring(collective: Collective, comm_bytes: float, size: int) -> LinkUse:
    """A ring of `size` members: all-reduce goes round it twice, the others once.

    A broadcast is passed on in pieces, so that each member sends all of it once.
    """
    total = total_bytes(collective, comm_bytes, size)
    if collective is Collective.BROADCAST:
        return LinkUse("ring", size - 1, total)
    rounds = 2 if collective is Collective.ALL_REDUCE else 1
    part = total / size
    return LinkUse("ring", rounds * (size - 1), rounds * (size - 1) * part, part)


def flat_ring(
    collective: Collective, comm_bytes: float, sizes: Sequence[int]
) -> tuple[LinkUse, ...]:
    """One ring through all members of a group over several tiers: its schedule on each of them.

    `sizes` are the members in each tier, inner first. The ring enters and leaves each domain once.
    There are as many rings as members of a domain, each with its own way out and its part of the
    bytes: so each chip's link to the outside carries 1/m of them, with m members inside.
    """
    whole = ring(collective, comm_bytes, math.prod(sizes))
    rounds = whole.steps / (math.prod(sizes) - 1)
    schedules = []
    inside, domains = 1, math.prod(sizes)
    for number, size in enumerate(sizes):
        wider = domains // size
        hops = domains - (1 if number == len(sizes) - 1 else wider)
        own = 0.0 if number else whole.own_bytes
        wire = whole.wire_bytes / inside
        schedules.append(LinkUse("flat ring", rounds * hops, wire, own))
        inside, domains = inside * size, wider
    return tuple(schedules)


def _over_tiers(tasks: Sequence[Task]) -> tuple[LinkUse, ...]:
    return flat_ring(tasks[0].collective, tasks[0].comm_bytes, [t.span.size for t in tasks])


_SWITCHES = frozenset({NetworkKind.SWITCH})
_AROUND = GROUP_COLLECTIVES - {Collective.ALL_TO_ALL}
ALGORITHMS = (
    Algorithm(
        name="ring",
        collectives=_AROUND,
        networks=_SWITCHES,
        schedule=lambda task: ring(task.collective, task.comm_bytes, task.span.size),
        protocols=of_collective,
    ),
    AcrossTiers(
        name="flat ring",
        collectives=_AROUND,
        networks=_SWITCHES,  # one library runs rings through all of them
        schedules=_over_tiers,
        only_way=_AROUND - {Collective.ALL_REDUCE},
        protocols=of_collective,
    ),
)
