"""Constants of a cluster's tiers from measured collectives, by the prices that estimates have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flint.backends.cost.collectives.algorithm import CollectiveCall, Speed
from flint.backends.cost.collectives.choose import Leg, Plan, leg_of, plan_ns, plans, speeds_of
from flint.backends.cost.collectives.choose import roofline_ns as of_call
from flint.backends.cost.network.torus import Span
from flint.cluster.models import Cluster
from flint.ir.arrays import Float64s
from flint.ir.op_class import Collective
from flint.tools.measure.fitting.fit import Bounds, hash_of
from flint.tools.measure.measurements.rows import CollectiveTime

#: What constants of a tier are looked for within; a range for those that are 0 in a file, too.
RANGES = {
    "a0_ns": (200.0, 500e3),
    "a1_ns": (20.0, 200e3),
    "c": (0.0, 20e3),
    "efficiency": (0.02, 0.95),
    "own_part": (0.0, 1.0),
    "host_bytes_per_s": (1e8, 1e12),
    "nvls_a0_ns": (0.0, 500e3),
    "nvls_efficiency": (0.05, 1.0),
}
#: The start of a collective is that of the innermost tier.
_INNER_ONLY = ("a0_ns",)
_UNEVEN = "of ranks that are not spread evenly over nodes"


@dataclass(frozen=True, eq=False)
class MeasuredCalls:
    """Collectives that differ, with their mean times and hashes."""

    calls: tuple[CollectiveCall, ...]
    measured_ns: Float64s
    hashes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.calls)

    def select(self, rows: NDArray[np.bool_]) -> MeasuredCalls:
        """Some of the rows."""
        calls = tuple(c for c, kept in zip(self.calls, rows.tolist(), strict=True) if kept)
        return MeasuredCalls(calls, self.measured_ns[rows], self.hashes[rows])


def measured_calls(
    rows: Sequence[CollectiveTime], cluster: Cluster
) -> tuple[dict[int, MeasuredCalls], dict[str, int]]:
    """By tier, the outermost that a collective crosses; and how many rows do not fit, by reason."""
    left_out: dict[str, int] = {}
    times: dict[CollectiveCall, list[float]] = {}
    keys: dict[CollectiveCall, int] = {}
    for row in rows:
        call = call_of(row, cluster)
        if isinstance(call, str):
            left_out[call] = left_out.get(call, 0) + 1
            continue
        times.setdefault(call, []).append(row.measured_ns)
        keys[call] = hash_of(int(row.collective), row.ranks, row.nodes, row.comm_bytes)
    tiers: dict[int, MeasuredCalls] = {}
    for tier in sorted({call.spans[-1].tier for call in times}):
        calls = tuple(c for c in times if c.spans[-1].tier == tier)
        mean = np.array([np.mean(times[c]) for c in calls])
        tiers[tier] = MeasuredCalls(calls, mean, np.array([keys[c] for c in calls]))
    return tiers, left_out


def call_of(row: CollectiveTime, cluster: Cluster) -> CollectiveCall | str:
    """Where the ranks of a row lie on a cluster: inside its inner tier as far as that holds them.

    Where nothing says how many hosts there were, domains are filled; with ranks that are known, the ranks of a
    job lie in their order. A text says why it cannot be.
    """
    inner = cluster.network[0].size or 1 << 40
    if row.members:
        shares = {*Counter(rank // inner for rank in row.members).values()}
        inside = shares.pop()
        if shares:
            return _UNEVEN
    elif row.ranks <= inner and (row.nodes <= 1 or inner > 8):
        inside = row.ranks
    else:
        nodes = row.nodes or -(-row.ranks // inner)
        if row.ranks % nodes:
            return _UNEVEN
        inside = row.ranks // nodes
    if inside > inner:
        name = cluster.network[0].name
        return f"with {inside} ranks per node, where {name} joins {inner}"
    if row.ranks > inside and len(cluster.network) < 2:
        return "over several nodes, which the cluster does not have"
    if row.collective is Collective.NONE:
        tier = int(row.ranks > inside)
        return CollectiveCall(row.collective, row.comm_bytes, (Span(tier, 2),))
    spans = [Span(0, inside)] if inside > 1 else []
    if row.ranks > inside:
        spans.append(Span(1, row.ranks // inside, inside))
    return CollectiveCall(row.collective, row.comm_bytes, tuple(spans))


class NetworkPricing:
    """Prices of calls with other constants of one tier: what can run each is found once."""

    def __init__(self, calls: Sequence[CollectiveCall], cluster: Cluster, tier: int) -> None:
        self.speeds, self.tier = speeds_of(cluster), tier
        self.plans = [plans(call, cluster, self.speeds) for call in calls]

    def of(self, rows: NDArray[np.int64]) -> NetworkPricing:
        """Prices of some of the calls."""
        some = copy(self)
        some.plans = [self.plans[row] for row in rows.tolist()]
        return some

    def bounds(self) -> Bounds:
        """What each constant of the tier may be, with its value now."""
        values = _values(self.speeds[self.tier])
        found: Bounds = {}
        for name, (low, high) in RANGES.items():
            is_here = name in values and (self.tier == 0 or name not in _INNER_ONLY)
            if is_here and np.isfinite(values[name]):
                found[name] = (low, high, float(np.clip(values[name], low, high)))
        return found

    def predict(self, values: Mapping[str, float]) -> Float64s:
        """Times of all calls, in ns."""
        speeds = list(self.speeds)
        speeds[self.tier] = _changed(speeds[self.tier], values)
        return np.array([min(self._plan_ns(p, speeds) for p in found) for found in self.plans])

    def _plan_ns(self, plan: Plan, speeds: Sequence[Speed]) -> float:
        return plan_ns(tuple(self._leg(leg, speeds) for leg in plan), speeds[0].a0_ns)

    def _leg(self, leg: Leg, speeds: Sequence[Speed]) -> Leg:
        """A leg with other constants, which its way may read."""
        if leg.task.span.tier != self.tier:
            return leg
        return leg_of(replace(leg.task, speed=speeds[self.tier]), leg.way)


def _values(speed: Speed) -> dict[str, float]:
    names = ("a0_ns", "a1_ns", "c", "efficiency", "own_part", "host_bytes_per_s")
    return {**{n: float(getattr(speed, n)) for n in names}, **speed.declared}


def _changed(speed: Speed, values: Mapping[str, float]) -> Speed:
    own = {n: v for n, v in values.items() if n not in speed.declared}
    declared = {**speed.declared, **{n: v for n, v in values.items() if n in speed.declared}}
    return replace(speed, **own, declared=declared)


def roofline_ns(data: MeasuredCalls, cluster: Cluster) -> Float64s:
    """Bytes on the wire by the bandwidth of the slowest tier: a lower bound."""
    return np.maximum([of_call(call, cluster) for call in data.calls], 1e-3)
