"""Collectives on one tier: what each algorithm sends, which one is taken, how long it takes."""

import math

import numpy as np
import pytest

from flint.backends.cost.collectives import algorithm, duration_ns, roofline_ns
from flint.backends.cost.collectives.algorithm import CollectiveCall
from flint.backends.cost.collectives.algorithms.all_to_all import direct_all_to_all
from flint.backends.cost.collectives.algorithms.fully_connected import fully_connected
from flint.backends.cost.collectives.algorithms.in_switch import in_switch_all_reduce
from flint.backends.cost.collectives.algorithms.ring import flat_ring, ring
from flint.backends.cost.collectives.algorithms.torus import Extent, torus
from flint.backends.cost.collectives.algorithms.tree import tree_all_reduce, tree_in_domain
from flint.backends.cost.network.torus import Span
from flint.cluster.models import Cluster, Network
from flint.ir.program import Collective

MIB = 1 << 20
AR, AG, RS = Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER
A2A, PERMUTE, BROADCAST = Collective.ALL_TO_ALL, Collective.PERMUTE, Collective.BROADCAST


@pytest.mark.parametrize(
    ("collective", "comm_bytes", "steps", "wire_bytes"),
    [
        (AR, 800, 14, 1400),  # 2 x 7/8
        (RS, 800, 7, 700),
        (AG, 100, 7, 700),  # the input is one part, the result 800 bytes
        (BROADCAST, 800, 7, 800),
    ],
)
def test_a_ring_of_eight_sends(
    collective: Collective, comm_bytes: int, steps: int, wire_bytes: int
) -> None:
    schedule = ring(collective, comm_bytes, 8)
    assert (schedule.steps, schedule.wire_bytes) == (steps, wire_bytes)


def test_trees_have_fewer_steps_and_send_no_less() -> None:
    assert tree_all_reduce(1000, 64).steps == 12
    assert tree_all_reduce(1000, 64).wire_bytes == ring(AR, 1000, 64).wire_bytes
    assert tree_in_domain(1000, 72).steps == pytest.approx(2 * 7 + 2 * math.log2(9))
    assert tree_in_domain(1000, 72).wire_bytes == 2000


def test_a_switch_that_adds_halves_the_bytes_and_has_two_steps() -> None:
    schedule = in_switch_all_reduce(800, 8)
    assert (schedule.steps, schedule.wire_bytes) == (2, 900)


def test_an_all_to_all_sends_each_part_once() -> None:
    schedule = direct_all_to_all(800, 8)
    assert (schedule.steps, schedule.wire_bytes) == (4, 700)
    assert direct_all_to_all(800, 2).steps == 2
    assert direct_all_to_all(800, 64).steps == 4 + 7  # in batches of 8 messages


def test_a_flat_ring_leaves_a_node_once_over_each_adapter() -> None:
    """16 members in 2 nodes: of 30 hops 2 are between nodes, with 1/8 of the bytes each."""
    inner, outer = flat_ring(AR, 1600, (8, 2))
    assert (inner.steps, inner.wire_bytes) == (28, 3000)
    assert (outer.steps, outer.wire_bytes) == (2, 375)


def test_a_flat_ring_over_three_tiers_has_all_the_steps_of_one_ring() -> None:
    parts = flat_ring(AG, 10, (4, 3, 2))
    assert [p.steps for p in parts] == [18, 4, 1]
    assert [p.wire_bytes for p in parts] == pytest.approx([230, 230 / 4, 230 / 12])


@pytest.mark.parametrize(
    ("extents", "links", "hops"),
    [
        ((Extent(8, True),), 2, 4),
        ((Extent(8, False),), 1, 7),
        ((Extent(2, True),), 1, 1),
        ((Extent(2, True, 8),), 2 / 8, 8),
        ((Extent(16, True), Extent(16, True)), 4, 16),
        ((Extent(4, True), Extent(2, False), Extent(1, False)), 3, 3),
    ],
)
def test_a_torus_uses_all_links_of_its_dimensions(
    extents: tuple[Extent, ...], links: float, hops: int
) -> None:
    size = math.prod(e.size for e in extents)
    gather = torus(AG, 100, extents)
    assert (gather.steps, gather.wire_bytes) == (hops, 100 * (size - 1))
    assert gather.links == pytest.approx(links)
    assert torus(AR, 100, extents).steps == 2 * hops
    assert torus(AR, 100 * size, extents).wire_bytes == 2 * gather.wire_bytes


def test_all_to_all_on_a_ring_is_a_quarter_of_an_all_gather() -> None:
    """As jax-ml/scaling-book has it, for large rings: V/4 by the bandwidth of both directions."""
    members, each = 64, 6400
    gather = torus(AG, each, (Extent(members, True),))
    exchange = torus(A2A, each, (Extent(members, True),))
    ratio = exchange.wire_bytes / (gather.wire_bytes / gather.links)
    assert ratio == pytest.approx(1 / 4, rel=0.02)


@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_all_to_all_on_a_line_loads_its_fullest_link_as_counted(size: int, wrapped: bool) -> None:
    load = np.zeros((2, size))  # bytes over the link to the right, and to the left, of each member
    for source in range(size):
        for target in range(size):
            right = (target - source) % size if wrapped else target - source
            ways = [right]
            if wrapped and size > 2:
                ways = [right if right <= size // 2 else right - size]
                if 2 * right == size:
                    ways = [right, -right]
            for hops in ways:
                for step in range(abs(hops)):
                    at = (source + step * int(np.sign(hops))) % size
                    load[0 if hops > 0 else 1, at] += 600 / size / len(ways)
    schedule = torus(A2A, 600, (Extent(size, wrapped),))
    assert schedule.wire_bytes == pytest.approx(load.max())


def test_members_that_are_all_connected_use_the_links_between_them() -> None:
    schedule = fully_connected(AR, 800, 4, 8)
    assert (schedule.steps, schedule.wire_bytes, schedule.links) == (2, 1200, 3 / 7)


def test_time_is_the_formula_with_the_constants_of_the_file() -> None:
    """The faster one of two protocols, that for many bytes or that for few."""
    cluster = Cluster.load("a100-80-dgx")
    k = {name: q.value for name, q in cluster.network[0].constants.items()}
    later = k["bulk_a0_ns"] + 3 * k["bulk_a1_ns"]
    for size, efficiency, start in (
        (64 * MIB, k["efficiency"], later),
        (4096, k["low_efficiency"], 0),
    ):
        call = CollectiveCall(RS, size, (Span(0, 4),))
        moved = size / 4 * (3 + k["own_part"])
        transfer = (moved + k["c"] * moved**0.5) / (efficiency * 300)
        expected = k["a0_ns"] + 3 * k["a1_ns"] + start + transfer
        assert duration_ns(call, cluster) == pytest.approx(expected)


def test_without_a_protocol_for_few_bytes_there_is_one() -> None:
    cluster = changed(Cluster.load("a100-80-dgx"), 0, low_efficiency=None)
    k = {name: q.value for name, q in cluster.network[0].constants.items()}
    moved = 4096 / 4 * (3 + k["own_part"])
    transfer = (moved + k["c"] * moved**0.5) / (k["efficiency"] * 300)
    call = CollectiveCall(RS, 4096, (Span(0, 4),))
    assert duration_ns(call, cluster) == pytest.approx(k["a0_ns"] + 3 * k["a1_ns"] + transfer)


def changed(cluster: Cluster, tier: int, **constants: float | None) -> Cluster:
    """The cluster with other constants in a tier; None takes one away."""
    tiers = [n.model_dump() for n in cluster.network]
    for name, value in constants.items():
        tiers[tier]["constants"].pop(name, None)
        if value is not None:
            number = {"value": value, "kind": "assumed", "source": "a test"}
            tiers[tier]["constants"][name] = number
    return cluster.model_copy(update={"network": tuple(map(Network.model_validate, tiers))})


def test_two_groups_on_the_same_links_take_twice_the_transfer() -> None:
    cluster = Cluster.load("v5p")
    alone = duration_ns(CollectiveCall(AG, MIB, (Span(0, 8),)), cluster)
    starts = duration_ns(CollectiveCall(AG, 1, (Span(0, 8),)), cluster)
    both = duration_ns(CollectiveCall(AG, MIB, (Span(0, 8, sharing=2),)), cluster)
    assert both - starts == pytest.approx(2 * (alone - starts), rel=1e-4)


def test_more_than_two_members_share_what_goes_through_a_host() -> None:
    cluster = Cluster.load("l40s")
    k = {name: q.value for name, q in cluster.network[0].constants.items()}

    def transfer(size: int) -> float:
        call = CollectiveCall(RS, 64 * MIB, (Span(0, size),))
        later = k["bulk_a0_ns"] + (size - 1) * (k["a1_ns"] + k["bulk_a1_ns"])
        return duration_ns(call, cluster) - k["a0_ns"] - later

    def at(size: int, bytes_per_ns: float) -> float:
        moved = 64 * MIB / size * (size - 1 + k["own_part"])
        return (moved + k["c"] * moved**0.5) / bytes_per_ns

    assert transfer(2) == pytest.approx(at(2, k["efficiency"] * 32))
    for size, host in ((4, "host_bytes_per_s"), (8, "sockets_bytes_per_s")):
        assert transfer(size) == pytest.approx(at(size, k[host] / 1e9 / size))
    message = CollectiveCall(Collective.NONE, 64 * MIB, (Span(0, 2),))
    assert roofline_ns(message, cluster) == pytest.approx(64 * MIB / 32)


def test_nothing_to_send_takes_no_time() -> None:
    cluster = Cluster.load("h100-dgx")
    for call in (
        CollectiveCall(AR, MIB, ()),
        CollectiveCall(AR, MIB, (Span(0, 1),)),
        CollectiveCall(AG, 0, (Span(0, 8),)),
    ):
        assert duration_ns(call, cluster) == 0
        assert roofline_ns(call, cluster) == 0
        assert algorithm(call, cluster) == ""


def test_large_all_reduces_are_done_in_the_switch_where_it_can() -> None:
    large, small = (
        CollectiveCall(AR, 512 * MIB, (Span(0, 8),)),
        CollectiveCall(AR, 4096, (Span(0, 8),)),
    )
    for name in ("h100-dgx", "h200-dgx"):
        assert algorithm(large, Cluster.load(name)) == "in-switch on nvlink"
        assert algorithm(small, Cluster.load(name)) == "ring on nvlink"
    assert algorithm(large, Cluster.load("a100-80-dgx")) == "ring on nvlink"
    assert algorithm(CollectiveCall(AR, 512 * MIB, (Span(0, 4),)), Cluster.load("h100-dgx")) == (
        "ring on nvlink"
    )


def test_small_all_reduces_over_many_hosts_take_a_tree() -> None:
    small = CollectiveCall(AR, 4096, (Span(0, 72),))
    assert algorithm(small, Cluster.load("gb200-nvl72")) == "tree on nvlink"


def test_messages_take_latency_and_bytes_by_bandwidth() -> None:
    """100e9 bytes/s of one link; of a hop the latency only."""
    cluster = Cluster.load("v5p")
    near = CollectiveCall(Collective.NONE, 10**6, (Span(0, 2),))
    far = CollectiveCall(PERMUTE, 10**6, (Span(0, 2, stride=5),))
    efficiency = cluster.network[0].constants["efficiency"].value
    start = cluster.network[0].constants["a0_ns"].value
    hop = cluster.network[0].latency_ns.value
    assert duration_ns(near, cluster) == pytest.approx(start + hop + 1e6 / 100 / efficiency)
    assert duration_ns(far, cluster) - duration_ns(near, cluster) == pytest.approx(4 * hop)


def test_measured_all_gathers_of_v5e_are_about_right() -> None:
    """jax-ml/scaling-book, sharding: 4 chips in a line, 34 MB in 680 us, 128 kB in about 8 us."""
    cluster = Cluster.load("v5e")
    line = (Span(0, 4, torus_sizes=(4,), torus_strides=(1,), torus_wraps=(False,)),)
    large = duration_ns(CollectiveCall(AG, 512 * 8192 * 2, line), cluster)
    small = duration_ns(CollectiveCall(AG, 64 * 256 * 2, line), cluster)
    assert large == pytest.approx(680e3, rel=0.15)
    assert small == pytest.approx(8e3, rel=0.3)
