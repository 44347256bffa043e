"""Collectives over more members than a network's constants were measured with."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from flint.backends.cost.network.calls import Span
from flint.backends.cost.network.placement import Placement
from flint.cluster.models import Network
from flint.ir.program import Kind, Program


def extrapolation_notes(programs: Iterable[Program], placement: Placement) -> list[str]:
    """A note for each network with collectives over more members than was measured.

    It is of the group with most members there.
    """
    largest: dict[int, tuple[int, int]] = {}  # by tier: members in it, and in the whole group
    for spans in _groups(programs, placement):
        ranks = int(np.prod([s.size for s in spans], dtype=np.int64))
        for span in spans:
            largest[span.tier] = max(largest.get(span.tier, (0, 0)), (span.size, ranks))
    networks = placement.cluster.network
    return [
        _note(networks[tier], members, ranks)
        for tier, (members, ranks) in sorted(largest.items())
        if 0 < networks[tier].measured_members < members
    ]


def _groups(programs: Iterable[Program], placement: Placement) -> Iterable[tuple[Span, ...]]:
    """The networks that each group of collectives crosses."""
    for program in programs:
        used = program.group[(program.kind == Kind.COLLECTIVE) & (program.group >= 0)]
        for number in np.unique(used).tolist():
            yield placement.spans_of_group(program.groups[number])


def _note(network: Network, members: int, ranks: int) -> str:
    measured, inside = network.measured_members, f"{members:,} members of {network.name}"
    known = f"measured up to {measured}" if measured > 1 else "not measured"
    return f"collectives over {ranks:,} ranks are extrapolated: {inside}, {known}"
