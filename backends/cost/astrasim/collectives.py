"""The times of ASTRA-sim's analytical backend, to the nanosecond, without ASTRA-sim.

They hold for its congestion-unaware backend with ring collectives, one chunk and one split, for
collectives of all ranks or along one dimension. (Over some of several dimensions, ASTRA-sim makes
one flat ring of them and charges each hop to one dimension.) Its GB is 2**30 bytes. A hop through a
switch counts as two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from flint.backends.cost.network.calls import Call
from flint.cluster.models import Cluster, Network, NetworkKind
from flint.ir.program import Collective


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension of ASTRA-sim's network: GiB/s, ns per hop, hops between neighbours."""

    bandwidth_gib_per_s: float
    latency_ns: float
    hops: int = 2

    def message_ns(self, size_bytes: float) -> int:
        """Nanoseconds of one message between neighbours."""
        bytes_per_ns = self.bandwidth_gib_per_s * 2**30 / 1e9
        return math.floor(self.hops * self.latency_ns + size_bytes / bytes_per_ns)


@dataclass(frozen=True, slots=True)
class System:
    """What ASTRA-sim's system file says: delay of an endpoint, memory bandwidth in 1e9 bytes/s."""

    endpoint_delay_ns: int = 10
    memory_bandwidth_gb_per_s: float = 3350.0

    def reduction_ns(self, size_bytes: float) -> int:
        """Nanoseconds to add two buffers: two reads and one write."""
        return 3 * math.floor(size_bytes / self.memory_bandwidth_gb_per_s)


def dimension_of(network: Network) -> Dimension:
    """The dimension that a tier is to ASTRA-sim.

    It sends round a ring in one direction, over one link: also of a torus and a ring. Its latency
    is of one hop, of which a message through a switch makes two.
    """
    bandwidth = network.bandwidth_bytes_per_s.value / 2**30
    if network.kind is NetworkKind.RING:
        bandwidth /= 2
    hops = 2 if network.kind is NetworkKind.SWITCH else 1
    return Dimension(bandwidth, network.latency_ns.value / hops, hops)


def duration_ns(call: Call, cluster: Cluster, system: System | None = None) -> int:
    """Nanoseconds that ASTRA-sim gives a call on a cluster, one dimension for each tier.

    A broadcast takes what its trace says, so here the time of one message.
    """
    dimensions = [(s.size, dimension_of(cluster.network[s.tier])) for s in call.spans if s.size > 1]
    return collective_ns(call.collective, call.comm_bytes, dimensions, system or System())


def collective_ns(
    collective: Collective,
    comm_bytes: int,
    dimensions: Sequence[tuple[int, Dimension]],
    system: System,
) -> int:
    """Nanoseconds of a collective over (members, dimension), inner first; `comm_bytes` is input.

    Dimension by dimension: an all-reduce scatters inside, reduces outside, gathers inside; an
    all-gather goes from the outside in, a reduce-scatter from the inside out. Each receives the
    bytes that the one before leaves.
    """
    if not dimensions or comm_bytes <= 0:
        return 0
    if collective in (Collective.NONE, Collective.PERMUTE, Collective.BROADCAST):
        return dimensions[-1][1].message_ns(comm_bytes)
    least = math.prod(
        n for n, _ in dimensions
    )  # a byte for each member, or nothing is left to send
    size = comm_bytes if collective is Collective.ALL_GATHER else max(comm_bytes, least)
    return _over_dimensions(collective, size, dimensions, system)


def _over_dimensions(
    collective: Collective,
    comm_bytes: int,
    dimensions: Sequence[tuple[int, Dimension]],
    system: System,
) -> int:
    (size, dimension), outer = dimensions[0], dimensions[1:]
    if not outer:
        return _one_dimension(collective, size, comm_bytes, dimension, system)
    if collective is Collective.ALL_REDUCE:
        part = comm_bytes // size
        return (
            _one_dimension(Collective.REDUCE_SCATTER, size, comm_bytes, dimension, system)
            + _over_dimensions(collective, part, outer, system)
            + _one_dimension(Collective.ALL_GATHER, size, part, dimension, system)
        )
    if collective is Collective.ALL_GATHER:
        gathered = comm_bytes * math.prod(n for n, _ in outer)
        inner = _one_dimension(collective, size, gathered, dimension, system)
        return inner + _over_dimensions(collective, comm_bytes, outer, system)
    left = comm_bytes // size if collective is Collective.REDUCE_SCATTER else comm_bytes
    inner = _one_dimension(collective, size, comm_bytes, dimension, system)
    return inner + _over_dimensions(collective, left, outer, system)


def _one_dimension(
    collective: Collective, size: int, comm_bytes: float, dimension: Dimension, system: System
) -> int:
    """The closed formulas of one dimension with `size` members."""
    part = comm_bytes / size
    delay, step = system.endpoint_delay_ns, dimension.message_ns(part)
    if collective is Collective.ALL_GATHER:
        return (size - 1) * dimension.message_ns(comm_bytes) + delay * size
    if collective is Collective.REDUCE_SCATTER:
        return (size - 1) * (step + system.reduction_ns(part)) + delay * size
    if collective is Collective.ALL_REDUCE:
        reductions = (size - 1) * system.reduction_ns(part)
        return 2 * (size - 1) * step + reductions + delay * (2 * size - 1)
    hops = size * (size - 1) // 2
    return hops * step + delay * (hops + 1)
