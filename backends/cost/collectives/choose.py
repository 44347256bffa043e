"""The ways that there are to run a collective, and the time of the fastest.

What a library would choose is modeled as what is fastest of what it has: so the time is continuous
in the bytes wherever the choice changes. Which algorithms there are is said in `algorithms/`.

A tier runs a schedule in t = a0 + steps * a1 + (w + c * sqrt(w)) / (efficiency * bw). Every tier that
a call crosses has its `a0`; the innermost one's, which holds the launch, counts for each call. `w` is the
bytes on the wire per rank, and a part `own_part` of what the rank keeps. The square root is what is
lost between latency and bandwidth: a library's protocols and pieces grow with the message, so that
it fills the links little by little.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flint.backends.cost.collectives.algorithm import (
    MESSAGES,
    NCCL,
    CollectiveCall,
    LinkUse,
    Speed,
    Task,
    Way,
    across_tiers,
    algorithms,
)
from flint.cluster.models import Cluster, Network, NetworkKind
from flint.cluster.tables import OF_ALGORITHMS
from flint.ir.op_class import Collective

#: What is taken where a tier's file has no constants. A switch: about the mean of the fitted chips,
#: see benchmarks/fits/networks.py. Others: links without a library's copies, see jax-ml/scaling-book.
_SWITCH = {"a0_ns": 6000.0, "c": 1500.0, "efficiency": 0.85, "own_part": 0.4}
_NO_HOST = {"host_bytes_per_s": math.inf, "sockets_bytes_per_s": math.inf}
_DIRECT = {"a0_ns": 5000.0, "c": 0.0, "efficiency": 0.85, "own_part": 0.0}


@dataclass(frozen=True, slots=True)
class Leg:
    """What one tier does of a call, and how; `schedule` is what the way gives for the task."""

    task: Task
    way: Way
    schedule: LinkUse


#: Legs of a call, inner tier first. They run as a pipeline: each piece of the message goes through
#: all of them, so their starts add up and the slowest transfer hides all of the others but one piece.
Plan = tuple[Leg, ...]
#: What NCCL has under way of a call at once: a smaller one goes through the tiers one after the other.
#: All-reduces over two nodes of H100 take 150 to 260 us more than inside one from 64 MB on, however
#: large they are, which is what their adapters need for it (benchmarks/data/nccl_public).
PIECE_BYTES = 64e6


def duration_ns(call: CollectiveCall, cluster: Cluster) -> float:
    """Nanoseconds of one collective or message, from its start on all members to its end.

    0 for a group of one and for no bytes. Formulas: see the modules of this package.
    """
    return _fastest(call, cluster, speeds_of(cluster))[0]


def transfer_share(call: CollectiveCall, cluster: Cluster) -> float:
    """How much of the time of a call is that of its bytes on the links, 0 to 1.

    The rest are launches and steps, which wait for latency. Of a call that takes no time it is 1.
    """
    total_ns, plan = _fastest(call, cluster, speeds_of(cluster))
    if not total_ns:
        return 1.0
    return max(leg.task.speed.transfer_ns(leg.schedule, leg.task.span) for leg in plan) / total_ns


def roofline_ns(call: CollectiveCall, cluster: Cluster) -> float:
    """Bytes on the wire by the bandwidth, of the algorithm that sends least: a lower bound."""
    found = plans(call, cluster, speeds_of(cluster))
    roofline_ns = (
        max(leg.task.speed.roofline_ns(leg.schedule, leg.task.span) for leg in plan)
        for plan in found
    )
    return min(roofline_ns, default=0.0)


def algorithm(call: CollectiveCall, cluster: Cluster) -> str:
    """Name of what is chosen, tier by tier: "in-switch on nvlink, tree on ib"; empty for nothing."""
    plan = _fastest(call, cluster, speeds_of(cluster))[1]
    return ", ".join(f"{leg.schedule.algorithm} on {leg.task.network.name}" for leg in plan)


def _fastest(
    call: CollectiveCall, cluster: Cluster, speeds: tuple[Speed, ...]
) -> tuple[float, Plan]:
    timed = [(plan_ns(plan, speeds[0].a0_ns), plan) for plan in plans(call, cluster, speeds)]
    return min(timed, key=lambda found: found[0], default=(0.0, ()))


def plan_ns(plan: Plan, launch_ns: float) -> float:
    """Time of a plan. One launch, at the cost that the innermost tier states."""
    starts = sum(leg.task.speed.start_ns(leg.schedule) for leg in plan)
    starts += sum(leg.task.speed.a0_ns for leg in plan if leg.task.span.tier > 0)
    times = [leg.task.speed.transfer_ns(leg.schedule, leg.task.span) for leg in plan]
    slowest = max(times)
    return launch_ns + starts + slowest + _piece(plan) * (sum(times) - slowest)


def _piece(plan: Plan) -> float:
    """The share of a call that no tier hides of another.

    One ring through all tiers is not in pieces of its own on each; XLA runs one tier after the other.
    """
    if len(plan) < 2 or plan[0].schedule.algorithm == plan[1].schedule.algorithm == "flat ring":
        return 0.0
    whole = plan[0].task
    if whole.library != NCCL:
        return 1.0
    return min(1.0, PIECE_BYTES / whole.comm_bytes)


def plans(call: CollectiveCall, cluster: Cluster, speeds: tuple[Speed, ...]) -> list[Plan]:
    """All ways to run a call on a cluster; none where nothing is sent."""
    tasks = _tasks(call, cluster, speeds)
    if len(tasks) < 2 and not (tasks and call.written):
        return _tier_by_tier(tasks)
    ways = [call.written] if call.written else [a for a in across_tiers() if a.runs(tasks)]
    found = [tuple(map(leg_of, tasks, by_tier)) for way in ways for by_tier in way.ways(tasks)]
    if call.written or any(call.collective in way.only_way for way in ways):
        return found
    return found + _tier_by_tier(tasks)


def _tasks(call: CollectiveCall, cluster: Cluster, speeds: tuple[Speed, ...]) -> list[Task]:
    """All tiers that a call crosses, with all of its bytes."""
    from flint.backends.cost.chips.model import model_of  # who reads a cluster's file needs none

    spans = [s for s in call.spans if s.size > 1] if call.comm_bytes > 0 else []
    library = model_of(cluster.chip).library
    sizes = [s.size for s in spans]
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
            math.prod(sizes[:at]),
        )
        for at, span in enumerate(spans)
    ]


def leg_of(task: Task, way: Way) -> Leg:
    """A leg with its schedule."""
    return Leg(task, way, way(task))


def _tier_by_tier(tasks: Sequence[Task]) -> list[Plan]:
    """All combinations of the ways that each tier has for its share."""
    if not tasks:
        return []
    parts = shares(tasks[0].collective, tasks[0].comm_bytes, [t.span.size for t in tasks])
    ways = []
    for whole, part in zip(tasks, parts, strict=True):
        task = replace(whole, comm_bytes=part)
        runs = (a for a in algorithms() if a.runs(task))
        ways.append([leg_of(task, way) for a in runs for way in a.ways(task)])
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


def speeds_of(cluster: Cluster) -> tuple[Speed, ...]:
    """The constants of all tiers, inner first.

    `own_part` stands for a copy in a chip's memory, which a switch between nodes has no part in.
    Where the file of such a tier has none, the copy is read and written at the memory's bandwidth.
    (So are those inside nodes: 0.4 of NVLink is a copy at 700 to 1,000 GB/s on A100 and H100.)
    """
    memory = cluster.chip.memory_bandwidth_bytes_per_s.value / 1e9
    found = [speed_of(cluster.network[0])]
    for network in cluster.network[1:]:
        speed = speed_of(network)
        if "a0_ns" not in network.constants_in_use:
            speed = replace(speed, a0_ns=0.0)
        if network.kind is NetworkKind.SWITCH and "own_part" not in network.constants_in_use:
            speed = replace(speed, own_part=2 * speed.efficiency * speed.bandwidth / memory)
        found.append(speed)
    return tuple(found)


def speed_of(network: Network) -> Speed:
    """The constants of a tier by itself, with the assumed ones where its file has none.

    A step takes `a1_ns`; without it, the latency of one message.
    """
    declared = {name: constant.assumed for name, constant in OF_ALGORITHMS.items()}
    values = {**_NO_HOST, **(_SWITCH if network.kind is NetworkKind.SWITCH else _DIRECT)}
    values["a1_ns"] = network.latency_ns.value
    for name, quantity in network.constants_in_use.items():
        (declared if name in declared else values)[name] = quantity.value
    bandwidth = network.bandwidth_bytes_per_s.value / network.oversubscription / 1e9
    if "sockets_bytes_per_s" not in network.constants_in_use:
        values["sockets_bytes_per_s"] = values["host_bytes_per_s"]
    if network.kind is NetworkKind.RING:  # two links, of which the torus formulas count one
        bandwidth /= 2
    return Speed(**values, bandwidth=bandwidth, domain=network.size, declared=declared)
