"""Collectives that may run at the same time over the same tier, and so slow each other down."""

from __future__ import annotations

from collections.abc import Iterable

from flint.backends.cost.calls import Call
from flint.cluster import Cluster


def calls_by_tier(calls: Iterable[Call]) -> dict[int, list[Call]]:
    """The calls that send over each tier, in their order; tiers with fewer than two left out."""
    found: dict[int, list[Call]] = {}
    for call in calls:
        if call.comm_bytes <= 0:
            continue
        for span in call.spans:
            if span.size > 1:
                found.setdefault(span.tier, []).append(call)
    return {tier: found[tier] for tier in sorted(found) if len(found[tier]) > 1}


def shared_links(calls: Iterable[Call], cluster: Cluster) -> list[str]:
    """A note for each tier that several concurrent calls use: who shares its links.

    Each of k such calls has at least 1/k of the bandwidth; the durations of this package are those
    of a call that is alone. On a torus they may use links of different dimensions.
    """
    notes = []
    for tier, sharers in calls_by_tier(calls).items():
        names = [f"{_name(c)} over {c.size}" for c in sharers]
        listed = ", ".join(f"{n} x{names.count(n)}" for n in dict.fromkeys(names))
        notes.append(f"{cluster.network[tier].name}: {len(sharers)} at once ({listed})")
    return notes


def _name(call: Call) -> str:
    return call.collective.name.lower() if call.collective else "message"
