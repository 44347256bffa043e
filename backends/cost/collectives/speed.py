"""How fast one tier runs a schedule: t = a0 + steps * a1 + (w + c * sqrt(w)) / (efficiency * bw).

`w` is the bytes on the wire per rank, and a part `own_part` of what the rank keeps. The square root
is what is lost between latency and bandwidth: a library's protocols and pieces grow with the
message, so that it fills the links little by little.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from flint.backends.cost.collectives.schedule import Schedule
from flint.backends.cost.collectives.switch import IN_SWITCH
from flint.cluster.models import Cluster, Network, NetworkKind

#: What is taken where a tier's file has no constants. A switch: about the mean of the fitted chips,
#: see benchmarks/fit_nccl.py. Others: links without a library's copies, see jax-ml/scaling-book.
_SWITCH = {"a0_ns": 6000.0, "c": 1500.0, "efficiency": 0.85, "own_part": 0.4}
_NO_HOST = {"host_bytes_per_s": math.inf}
_DIRECT = {"a0_ns": 5000.0, "c": 0.0, "efficiency": 0.85, "own_part": 0.0}
#: An in-switch reduction without constants: its start, its efficiency, members from which it is
#: taken.
_IN_SWITCH = {"nvls_a0_ns": 50000.0, "nvls_efficiency": 0.7, "nvls_from": 5.0}


@dataclass(frozen=True, slots=True)
class Speed:
    """Constants of a tier. Bandwidth is what one rank sends, in bytes per ns."""

    a0_ns: float
    a1_ns: float
    c: float
    efficiency: float
    own_part: float
    nvls_a0_ns: float
    nvls_efficiency: float
    nvls_from: float
    host_bytes_per_s: float
    bandwidth: float

    def share_of_host(self, size: int) -> float:
        """The share of its bandwidth that a member has where a group goes through the host.

        Two members reach each other; more share what `host_bytes_per_s` carries, all together.
        """
        if size <= 2:
            return 1.0
        return min(1.0, self.host_bytes_per_s / 1e9 / size / (self.efficiency * self.bandwidth))

    def start_ns(self, schedule: Schedule) -> float:
        """Time of the steps one after the other, without any bytes."""
        extra = self.nvls_a0_ns if schedule.algorithm == IN_SWITCH else 0.0
        return schedule.steps * self.a1_ns + schedule.local_ns + extra

    def transfer_ns(self, schedule: Schedule, sharing: int = 1) -> float:
        """Time of the bytes, where `sharing` groups use the links at once."""
        moved = schedule.wire_bytes + self.own_part * schedule.own_bytes
        best = self.nvls_efficiency if schedule.algorithm == IN_SWITCH else self.efficiency
        speed = best * self.bandwidth * schedule.links / sharing
        return (moved + self.c * math.sqrt(moved)) / speed

    def roofline_ns(self, schedule: Schedule, sharing: int = 1) -> float:
        """Bytes on the wire by the bandwidth of the datasheet."""
        return schedule.wire_bytes * sharing / (self.bandwidth * schedule.links)


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
    switched = network.kind is NetworkKind.SWITCH
    values = {**_IN_SWITCH, **_NO_HOST, **(_SWITCH if switched else _DIRECT)}
    values["a1_ns"] = network.latency_ns.value
    known = {name: q.value for name, q in network.constants.items() if name in Speed.__slots__}
    bandwidth = network.bandwidth_bytes_per_s.value / network.oversubscription / 1e9
    if network.kind is NetworkKind.RING:  # two links, of which the torus formulas count one
        bandwidth /= 2
    return Speed(**{**values, **known}, bandwidth=bandwidth)
