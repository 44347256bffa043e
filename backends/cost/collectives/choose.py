"""The algorithms that a library has for a collective, and the time of the fastest.

NCCL's choice is modelled: rings; trees for all-reduce over hosts; reduction in the switch where it
can; all-gather and reduce-scatter over nodes as one flat ring, or as PAT's trees where each node has
one member. Tori use all their links at once,
and go tier by tier. Because the fastest is taken, the time is continuous in the bytes wherever the
choice changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flint.backends.cost.collectives.hierarchical import by_tier, ring_over_tiers
from flint.backends.cost.collectives.mesh import fully_connected
from flint.backends.cost.collectives.messages import message
from flint.backends.cost.collectives.pat import pat
from flint.backends.cost.collectives.plan import Part, Plan, plan_ns, plan_roofline_ns
from flint.backends.cost.collectives.ring import ring
from flint.backends.cost.collectives.schedule import Schedule
from flint.backends.cost.collectives.speed import Speed, speeds_of
from flint.backends.cost.collectives.switch import direct_all_to_all, in_switch_all_reduce
from flint.backends.cost.collectives.torus import extents_of, torus
from flint.backends.cost.collectives.tree import CHIPS_PER_HOST, tree_all_reduce, tree_in_domain
from flint.backends.cost.network.calls import Call, Span
from flint.cluster.models import Cluster, NetworkKind
from flint.ir.program import Collective

_MESSAGES = (Collective.NONE, Collective.PERMUTE)


def duration_ns(call: Call, cluster: Cluster) -> float:
    """Nanoseconds of one collective or message, from its start on all members to its end.

    0 for a group of one and for no bytes. Formulas: see the modules of this package.
    """
    return float(durations_ns([call], cluster)[0])


def durations_ns(calls: Iterable[Call], cluster: Cluster) -> NDArray[np.float64]:
    """Nanoseconds of each call; equal calls are worked out once."""
    speeds = speeds_of(cluster)
    known: dict[Call, float] = {}
    found = []
    for call in calls:
        if call not in known:
            known[call] = _fastest(call, cluster, speeds)[0]
        found.append(known[call])
    return np.array(found, dtype=np.float64)


def roofline_ns(call: Call, cluster: Cluster) -> float:
    """Bytes on the wire by the bandwidth, of the algorithm that sends least: a lower bound."""
    speeds = speeds_of(cluster)
    return min((plan_roofline_ns(p, speeds) for p in plans(call, cluster, speeds)), default=0.0)


def algorithm(call: Call, cluster: Cluster) -> str:
    """Name of what is chosen, tier by tier: "in-switch on nvlink, tree on ib"; empty for nothing."""
    speeds = speeds_of(cluster)
    plan = _fastest(call, cluster, speeds)[1]
    return ", ".join(f"{p.schedule.algorithm} on {cluster.network[p.tier].name}" for p in plan)


def _fastest(call: Call, cluster: Cluster, speeds: tuple[Speed, ...]) -> tuple[float, Plan]:
    timed = [(plan_ns(plan, speeds), plan) for plan in plans(call, cluster, speeds)]
    return min(timed, key=lambda found: found[0], default=(0.0, ()))


def plans(call: Call, cluster: Cluster, speeds: tuple[Speed, ...]) -> list[Plan]:
    """All ways to run a call on a cluster; none where nothing is sent."""
    spans = [s for s in call.spans if s.size > 1]
    if not spans or call.comm_bytes <= 0:
        return []
    if call.collective in _MESSAGES:
        return [tuple(_message(call.comm_bytes, span, cluster) for span in spans)]
    shares = {s.tier: speeds[s.tier].share_of_host(s.size) for s in spans}
    return [_narrowed(plan, shares) for plan in _collectives(call, spans, cluster, speeds)]


def _collectives(
    call: Call, spans: Sequence[Span], cluster: Cluster, speeds: tuple[Speed, ...]
) -> list[Plan]:
    def options(collective: Collective, comm_bytes: float, span: Span) -> list[Schedule]:
        return schedules(collective, comm_bytes, span, cluster, speeds[span.tier])

    tiers = by_tier(call.collective, call.comm_bytes, spans, options)
    if len(spans) == 1:
        return [*tiers, *_pat(call, spans[0], cluster)]
    if not _one_library(spans, cluster) or call.collective is Collective.ALL_TO_ALL:
        return tiers
    flat = ring_over_tiers(call.collective, call.comm_bytes, spans)
    return [flat, *tiers] if call.collective is Collective.ALL_REDUCE else [flat]


def _narrowed(plan: Plan, shares: Mapping[int, float]) -> Plan:
    """A plan whose tiers have a share of their bandwidth only."""
    return tuple(
        replace(p, schedule=replace(p.schedule, links=p.schedule.links * shares[p.tier]))
        for p in plan
    )


def schedules(
    collective: Collective, comm_bytes: float, span: Span, cluster: Cluster, speed: Speed
) -> list[Schedule]:
    """The ways to run a collective inside one tier."""
    network, members = cluster.network[span.tier], cluster.members[span.tier]
    if network.kind in (NetworkKind.TORUS, NetworkKind.RING):
        return [torus(collective, comm_bytes, extents_of(span, network, members))]
    if network.kind is NetworkKind.MESH:
        return [fully_connected(collective, comm_bytes, span.size, members)]
    if collective is Collective.ALL_TO_ALL:
        return [direct_all_to_all(comm_bytes, span.size)]
    found = [ring(collective, comm_bytes, span.size)]
    if collective is Collective.ALL_REDUCE:
        if span.tier > 0:  # one member per host, as far as this tier knows
            found.append(tree_all_reduce(comm_bytes, span.size))
        elif span.size > CHIPS_PER_HOST:
            found.append(tree_in_domain(comm_bytes, span.size))
        if network.in_network_reduction and span.size >= speed.nvls_from:
            found.append(in_switch_all_reduce(comm_bytes, span.size))
    return found


def _pat(call: Call, span: Span, cluster: Cluster) -> list[Plan]:
    """PAT, where NCCL has it: GPUs, one member in each node."""
    switched = span.tier > 0 and cluster.network[span.tier].kind is NetworkKind.SWITCH
    gathers = call.collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
    if not (switched and gathers) or cluster.chip.systolic is not None:
        return []
    schedule = pat(call.collective, call.comm_bytes, span.size)
    return [(Part(span.tier, schedule, span.sharing),)]


def _one_library(spans: Sequence[Span], cluster: Cluster) -> bool:
    """Whether all tiers are switches, which one library runs rings through."""
    return all(cluster.network[s.tier].kind is NetworkKind.SWITCH for s in spans)


def _message(comm_bytes: int, span: Span, cluster: Cluster) -> Part:
    network, members = cluster.network[span.tier], cluster.members[span.tier]
    if network.kind in (NetworkKind.TORUS, NetworkKind.RING):
        return Part(span.tier, message(comm_bytes, hops=span.stride), span.sharing)
    links = max(members - 1, 1) if network.kind is NetworkKind.MESH else 1
    return Part(span.tier, message(comm_bytes, links=1 / links), span.sharing)
