"""The ways that there are to run a collective, and the time of the fastest.

What a library would choose is modelled as what is fastest of what it has: so the time is continuous
in the bytes wherever the choice changes. Which algorithms there are is said in `algorithms/`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flint.backends.cost.collectives.algorithm import (
    MESSAGES,
    LinkUse,
    Task,
    across_tiers,
    algorithms,
)
from flint.backends.cost.collectives.speed import Speed, speeds_of
from flint.backends.cost.network.calls import Call
from flint.cluster.models import Cluster
from flint.ir.collective import Collective


@dataclass(frozen=True, slots=True)
class Leg:
    """What one tier does of a call, and how."""

    task: Task
    schedule: LinkUse


#: Legs of a call, inner tier first. They run as a pipeline: each piece of the message goes through
#: all of them, so their starts add up and the slowest transfer hides the others.
Plan = tuple[Leg, ...]


def duration_ns(call: Call, cluster: Cluster) -> float:
    """Nanoseconds of one collective or message, from its start on all members to its end.

    0 for a group of one and for no bytes. Formulas: see the modules of this package.
    """
    return _fastest(call, cluster, speeds_of(cluster))[0]


def roofline_ns(call: Call, cluster: Cluster) -> float:
    """Bytes on the wire by the bandwidth, of the algorithm that sends least: a lower bound."""
    found = plans(call, cluster, speeds_of(cluster))
    return min(map(_plan_roofline_ns, found), default=0.0)


def algorithm(call: Call, cluster: Cluster) -> str:
    """Name of what is chosen, tier by tier: "in-switch on nvlink, tree on ib"; empty for nothing."""
    plan = _fastest(call, cluster, speeds_of(cluster))[1]
    return ", ".join(f"{leg.schedule.algorithm} on {leg.task.network.name}" for leg in plan)


def _fastest(call: Call, cluster: Cluster, speeds: tuple[Speed, ...]) -> tuple[float, Plan]:
    timed = [(_plan_ns(plan, speeds[0].a0_ns), plan) for plan in plans(call, cluster, speeds)]
    return min(timed, key=lambda found: found[0], default=(0.0, ()))


def _plan_ns(plan: Plan, launch_ns: float) -> float:
    """Time of a plan. One launch, at the cost that the innermost tier states."""
    starts = sum(leg.task.speed.start_ns(leg.schedule) for leg in plan)
    transfer = max(leg.task.speed.transfer_ns(leg.schedule, leg.task.span) for leg in plan)
    return launch_ns + starts + transfer


def _plan_roofline_ns(plan: Plan) -> float:
    """Bytes on the wire by the bandwidth, of the tier where that takes longest."""
    return max(leg.task.speed.roofline_ns(leg.schedule, leg.task.span) for leg in plan)


def plans(call: Call, cluster: Cluster, speeds: tuple[Speed, ...]) -> list[Plan]:
    """All ways to run a call on a cluster; none where nothing is sent."""
    tasks = _tasks(call, cluster, speeds)
    if len(tasks) < 2:
        return _tier_by_tier(tasks)
    ways = [a for a in across_tiers() if a.runs(tasks)]
    found = [tuple(map(Leg, tasks, way.schedules(tasks))) for way in ways]
    if any(call.collective in way.only_way for way in ways):
        return found
    return found + _tier_by_tier(tasks)


def _tasks(call: Call, cluster: Cluster, speeds: tuple[Speed, ...]) -> list[Task]:
    """All tiers that a call crosses, with all of its bytes."""
    from flint.backends.cost.chips.model import model_of  # who reads a cluster's file needs none

    spans = [s for s in call.spans if s.size > 1] if call.comm_bytes > 0 else []
    library = model_of(cluster.chip).library
    return [
        Task(
            call.collective,
            call.comm_bytes,
            span,
            cluster.network[span.tier],
            cluster.members[span.tier],
            speeds[span.tier],
            library,
            len(spans) == 1,
        )
        for span in spans
    ]


def _tier_by_tier(tasks: Sequence[Task]) -> list[Plan]:
    """All combinations of the ways that each tier has for its share."""
    if not tasks:
        return []
    parts = shares(tasks[0].collective, tasks[0].comm_bytes, [t.span.size for t in tasks])
    ways = []
    for whole, part in zip(tasks, parts, strict=True):
        task = replace(whole, comm_bytes=part)
        ways.append([Leg(task, a.schedule(task)) for a in algorithms() if a.runs(task)])
    return list(itertools.product(*ways))


def shares(collective: Collective, comm_bytes: float, sizes: Sequence[int]) -> list[float]:
    """Input bytes per rank of the collective of each tier, inner tier first.

    An all-reduce is a reduce-scatter inside, an all-reduce outside and an all-gather inside. An
    all-gather begins outside: the inner tiers gather what came from there, too. Of an all-to-all a
    tier moves what goes to the other domains inside its own. Each chip has its own way out of its
    domain, so that a tier carries 1/m of the bytes per chip where m members are together inside.
    """
    found = []
    inside, outside = 1, math.prod(sizes)
    for size in sizes:
        outside //= size
        if collective in MESSAGES:
            found.append(comm_bytes)
        elif collective is Collective.ALL_GATHER:
            found.append(comm_bytes * outside)
        elif collective is Collective.ALL_TO_ALL:
            found.append(comm_bytes / outside)
        else:
            found.append(comm_bytes / inside)
        inside *= size
    return found
