"""The ASTRA-sim mode gives what ASTRA-sim gave, to the nanosecond.

The numbers are cycles (1 ns) of ASTRA-sim master, analytical congestion-unaware backend: ring
collectives, one chunk, one split, endpoint delay 10, local-mem-bw 3350; all ranks of the network in
one collective.
"""

import pytest

from flint.backends.cost.astrasim.collectives import (
    Dimension,
    System,
    collective_ns,
    dimension_of,
    duration_ns,
)
from flint.backends.cost.network.calls import Call, Span
from flint.cluster.models import Cluster
from flint.ir.program import Collective

MIB = 1 << 20
AR, AG, RS = Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER
A2A = Collective.ALL_TO_ALL
#: A network: (members, GiB/s, ns, hops between neighbours) for each dimension, inner first.
FAST = ((8, 100, 0, 2),)
NODES = ((8, 400, 500, 2), (4, 50, 2000, 2))  # Switch, Switch
RINGS = ((4, 90, 1000, 1), (2, 25, 2500, 2))  # Ring, Switch
PAIRS = ((2, 300, 700, 1), (8, 12.5, 9000, 2))  # FullyConnected, Switch
THREE = ((4, 90, 1000, 1), (2, 60, 500, 1), (2, 25, 2500, 2))  # Ring, FullyConnected, Switch


@pytest.mark.parametrize(
    ("network", "collective", "comm_bytes", "cycles"),
    [
        (FAST, AG, MIB, 68435),
        (FAST, RS, 8 * MIB, 75008),
        (FAST, AR, 8 * MIB, 143433),
        (FAST, A2A, 8 * MIB, 273710),
        (NODES, AR, 2613248, 60249),
        (NODES, AG, 1072128, 148915),
        (NODES, RS, 1504256, 26106),
        (NODES, A2A, 2896896, 156898),
        (NODES, AR, 4385656, 75189),
        (NODES, AG, 8992593, 1107870),
        (NODES, RS, 7911851, 55901),
        (NODES, A2A, 969953, 87352),
        (RINGS, AR, 2735104, 86174),
        (RINGS, AG, 2224128, 229005),
        (RINGS, RS, 121856, 9665),
        (RINGS, A2A, 1953792, 77806),
        (RINGS, AR, 1999280, 67323),
        (RINGS, AG, 7969672, 799773),
        (RINGS, RS, 6488057, 93706),
        (RINGS, A2A, 1810846, 72923),
        (PAIRS, AR, 1045504, 325853),
        (PAIRS, AG, 2722816, 1614476),
        (PAIRS, RS, 218112, 134423),
        (PAIRS, A2A, 658432, 677728),
        (PAIRS, AR, 4283075, 549678),
        (PAIRS, AG, 3736122, 2168121),
        (PAIRS, RS, 4788936, 294344),
        (PAIRS, A2A, 6633673, 2245146),
        (THREE, AR, 475136, 28968),
        (THREE, AG, 1559552, 308750),
        (THREE, RS, 1968128, 33894),
        (THREE, A2A, 1034240, 54950),
        (THREE, AR, 1306814, 49673),
        (THREE, AG, 7563104, 1464272),
        (THREE, RS, 2318633, 38414),
        (THREE, A2A, 189139, 19533),
        (NODES, AR, 1, 38230),  # less than a byte for each of the 32 members
        (NODES, AG, 1, 19120),
        (NODES, RS, 7, 19120),
        (NODES, A2A, 3, 52360),
    ],
)
def test_collectives_take_what_the_simulator_took(
    network: tuple[tuple[int, float, float, int], ...],
    collective: Collective,
    comm_bytes: int,
    cycles: int,
) -> None:
    dimensions = [(size, Dimension(*rest)) for size, *rest in network]
    assert collective_ns(collective, comm_bytes, dimensions, System()) == cycles


def test_messages_take_what_the_simulator_took() -> None:
    assert Dimension(400, 500).message_ns(MIB) == 3441
    assert Dimension(50, 2000).message_ns(MIB) == 23531


def test_a_cluster_is_a_network_of_one_dimension_per_tier() -> None:
    cluster = Cluster.load("h100-dgx")
    inner, outer = (dimension_of(n) for n in cluster.network)
    assert (inner.bandwidth_gib_per_s, inner.latency_ns, inner.hops) == (450e9 / 2**30, 500, 2)
    assert (outer.bandwidth_gib_per_s, outer.latency_ns, outer.hops) == (50e9 / 2**30, 1250, 2)
    call = Call(AR, 64 * MIB, (Span(0, 8), Span(1, 4)))
    expected = collective_ns(AR, 64 * MIB, [(8, inner), (4, outer)], System())
    assert duration_ns(call, cluster) == expected
    message = Call(Collective.NONE, MIB, (Span(1, 2),))
    assert duration_ns(message, cluster) == outer.message_ns(MIB)


def test_a_torus_link_is_one_hop() -> None:
    dimension = dimension_of(Cluster.load("v5p").network[0])
    assert (dimension.hops, dimension.bandwidth_gib_per_s) == (1, 100e9 / 2**30)


def test_nothing_to_send_takes_no_time() -> None:
    cluster = Cluster.load("h100-dgx")
    assert duration_ns(Call(AR, MIB, (Span(0, 1),)), cluster) == 0
    assert duration_ns(Call(AR, 0, (Span(0, 8),)), cluster) == 0
