"""Collectives over several tiers: each tier moves what the tiers inside it leave to it.

Each chip has its own way out of its domain, so that a tier carries 1/m of the bytes per chip where
m members are together inside.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from flint.backends.cost.collectives.plan import Part, Plan
from flint.backends.cost.collectives.ring import flat_ring
from flint.backends.cost.collectives.schedule import Schedule
from flint.backends.cost.network.calls import Span
from flint.ir.program import Collective

#: The ways to run a collective of some bytes on one span.
Options = Callable[[Collective, float, Span], Sequence[Schedule]]


def shares(collective: Collective, comm_bytes: float, sizes: Sequence[int]) -> list[float]:
    """Input bytes per rank of the collective of each tier, inner tier first.

    An all-reduce is a reduce-scatter inside, an all-reduce outside and an all-gather inside. An
    all-gather begins outside: the inner tiers gather what came from there, too. Of an all-to-all a
    tier moves what goes to the other domains inside its own.
    """
    found = []
    inside, outside = 1, math.prod(sizes)
    for size in sizes:
        outside //= size
        if collective is Collective.ALL_GATHER:
            found.append(comm_bytes * outside)
        elif collective is Collective.ALL_TO_ALL:
            found.append(comm_bytes / outside)
        else:
            found.append(comm_bytes / inside)
        inside *= size
    return found


def by_tier(
    collective: Collective, comm_bytes: float, spans: Sequence[Span], options: Options
) -> list[Plan]:
    """All combinations of the ways that each tier has for its share."""
    parts = shares(collective, comm_bytes, [s.size for s in spans])
    ways = [
        [Part(span.tier, schedule, span.sharing) for schedule in options(collective, share, span)]
        for span, share in zip(spans, parts, strict=True)
    ]
    return list(itertools.product(*ways))


def ring_over_tiers(collective: Collective, comm_bytes: float, spans: Sequence[Span]) -> Plan:
    """One ring through all members."""
    schedules = flat_ring(collective, comm_bytes, [s.size for s in spans])
    return tuple(
        Part(span.tier, schedule, span.sharing)
        for span, schedule in zip(spans, schedules, strict=True)
    )
