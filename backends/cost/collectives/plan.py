"""A way to run a collective: its schedules, tier by tier, and their time."""

from __future__ import annotations

from dataclasses import dataclass

from flint.backends.cost.collectives.schedule import Schedule
from flint.backends.cost.collectives.speed import Speed


@dataclass(frozen=True, slots=True)
class Part:
    """A schedule on a tier of the cluster, which `sharing` groups run at once on the same links."""

    tier: int
    schedule: Schedule
    sharing: int = 1


#: Parts of a plan, inner tier first. They run as a pipeline: each piece of the message goes through
#: all of them, so their starts add up and the slowest transfer hides the others.
Plan = tuple[Part, ...]


def plan_ns(plan: Plan, speeds: tuple[Speed, ...]) -> float:
    """Time of a plan. One launch, at the cost that the innermost tier states."""
    starts = sum(speeds[p.tier].start_ns(p.schedule) for p in plan)
    transfer = max(speeds[p.tier].transfer_ns(p.schedule, p.sharing) for p in plan)
    return speeds[0].a0_ns + starts + transfer


def plan_roofline_ns(plan: Plan, speeds: tuple[Speed, ...]) -> float:
    """Bytes on the wire by the bandwidth, of the tier where that takes longest."""
    return max(speeds[p.tier].roofline_ns(p.schedule, p.sharing) for p in plan)
