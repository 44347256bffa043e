"""How fast one tier runs a schedule: t = a0 + steps * a1 + (w + c * sqrt(w)) / (efficiency * bw).

`w` is the bytes on the wire per rank, and a part `own_part` of what the rank keeps. The square root
is what is lost between latency and bandwidth: a library's protocols and pieces grow with the
message, so that it fills the links little by little.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from flint.backends.cost.collectives.algorithm import LinkUse, constants
from flint.backends.cost.network.calls import Span
from flint.cluster.models import Cluster, Network, NetworkKind

#: What is taken where a tier's file has no constants. A switch: about the mean of the fitted chips,
#: see benchmarks/fit_nccl.py. Others: links without a library's copies, see jax-ml/scaling-book.
_SWITCH = {"a0_ns": 6000.0, "c": 1500.0, "efficiency": 0.85, "own_part": 0.4}
_NO_HOST = {"host_bytes_per_s": math.inf}
_DIRECT = {"a0_ns": 5000.0, "c": 0.0, "efficiency": 0.85, "own_part": 0.0}


@dataclass(frozen=True, slots=True)
class Speed:
    """Constants of a tier. Bandwidth is what one rank sends, in bytes per ns.

    `declared` are those that algorithms read beyond these, by name.
    """

    a0_ns: float
    a1_ns: float
    c: float
    efficiency: float
    own_part: float
    host_bytes_per_s: float
    bandwidth: float
    declared: Mapping[str, float]

    def share_of_host(self, size: int) -> float:
        """The share of its bandwidth that a member has where a group goes through the host.

        Two members reach each other; more share what `host_bytes_per_s` carries, all together.
        """
        if size <= 2:
            return 1.0
        return min(1.0, self.host_bytes_per_s / 1e9 / size / (self.efficiency * self.bandwidth))

    def start_ns(self, schedule: LinkUse) -> float:
        """Time of the steps one after the other, without any bytes."""
        return schedule.steps * self.a1_ns + schedule.local_ns

    def transfer_ns(self, schedule: LinkUse, span: Span) -> float:
        """Time of the bytes of the group at `span`, beside those that share its links."""
        moved = schedule.wire_bytes + self.own_part * schedule.own_bytes
        best = self.efficiency if schedule.efficiency is None else schedule.efficiency
        speed = best * self.bandwidth * self._links(schedule, span) / span.sharing
        return (moved + self.c * math.sqrt(moved)) / speed

    def roofline_ns(self, schedule: LinkUse, span: Span) -> float:
        """Bytes on the wire by the bandwidth of the datasheet."""
        return schedule.wire_bytes * span.sharing / (self.bandwidth * self._links(schedule, span))

    def _links(self, schedule: LinkUse, span: Span) -> float:
        return schedule.links * self.share_of_host(span.size)


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
        if network.kind is NetworkKind.SWITCH and "own_part" not in network.constants:
            speed = replace(speed, own_part=2 * speed.efficiency * speed.bandwidth / memory)
        found.append(speed)
    return tuple(found)


def speed_of(network: Network) -> Speed:
    """The constants of a tier by itself, with the assumed ones where its file has none.

    A step takes `a1_ns`; without it, the latency of one message.
    """
    declared = {name: constant.assumed for name, constant in constants().items()}
    values = {**_NO_HOST, **(_SWITCH if network.kind is NetworkKind.SWITCH else _DIRECT)}
    values["a1_ns"] = network.latency_ns.value
    for name, quantity in network.constants.items():
        (declared if name in declared else values)[name] = quantity.value
    bandwidth = network.bandwidth_bytes_per_s.value / network.oversubscription / 1e9
    if network.kind is NetworkKind.RING:  # two links, of which the torus formulas count one
        bandwidth /= 2
    return Speed(**values, bandwidth=bandwidth, declared=declared)
