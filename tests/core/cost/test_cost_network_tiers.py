"""Collectives over several tiers."""

from itertools import pairwise

import pytest

from flint.backends.cost.collectives import algorithm, duration_ns, roofline_ns
from flint.backends.cost.collectives.algorithm import CollectiveCall
from flint.backends.cost.collectives.choose import shares
from flint.backends.cost.network.placement import NetworkPlacement
from flint.backends.cost.network.torus import Span
from flint.cluster.models import Cluster, NetworkKind, Quantity
from flint.ir.mesh import AxisRef, Mesh
from flint.ir.program import Collective

MIB = 1 << 20
AR, AG, RS = Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER
A2A = Collective.ALL_TO_ALL
TWO_NODES = (Span(0, 8), Span(1, 2))


def test_each_tier_gets_its_share() -> None:
    assert shares(AR, 960, (8, 4, 3)) == [960, 120, 30]
    assert shares(RS, 960, (8, 4, 3)) == [960, 120, 30]
    assert shares(AG, 10, (8, 4, 3)) == [120, 30, 10]
    assert shares(A2A, 960, (8, 4, 3)) == [80, 320, 960]


def test_shares_of_an_all_to_all_send_every_byte_once() -> None:
    sent = [s * (n - 1) / n for s, n in zip(shares(A2A, 960, (8, 4, 3)), (8, 4, 3), strict=True)]
    assert sum(sent) == pytest.approx(960 * 95 / 96)


def test_algorithms_over_nodes_are_those_of_nccl() -> None:
    cluster = Cluster.load("a100-80-dgx")
    assert (
        algorithm(CollectiveCall(AG, MIB, TWO_NODES), cluster)
        == "flat ring on nvlink, flat ring on ib"
    )
    assert (
        algorithm(CollectiveCall(A2A, MIB, TWO_NODES), cluster) == "direct on nvlink, direct on ib"
    )
    many = CollectiveCall(AR, 4096, (Span(0, 8), Span(1, 64)))
    assert algorithm(many, cluster) == "ring on nvlink, tree on ib"
    large = CollectiveCall(AR, 4096 * MIB, (Span(0, 8), Span(1, 2)))
    assert algorithm(large, Cluster.load("h100-dgx")).startswith("in-switch on nvlink")


def test_slow_adapters_hide_what_happens_inside() -> None:
    """1 GiB over 2 nodes of 8: each adapter of 25e9 bytes/s carries 1/8 of it."""
    cluster = Cluster.load("a100-80-dgx")
    call = CollectiveCall(AR, 1024 * MIB, TWO_NODES)
    assert roofline_ns(call, cluster) == pytest.approx(
        max(1024 * MIB * 1.75 / 300, 1024 * MIB / 8 / 25)
    )
    slow = 1024 * MIB / 8 / 25
    assert slow < duration_ns(call, cluster) < 2 * slow


def test_one_member_per_node_has_one_adapter_per_group() -> None:
    """Eight groups side by side, each chip on its own adapter: the whole message goes over it."""
    cluster = Cluster.load("h100-dgx")
    call = CollectiveCall(RS, 64 * MIB, (Span(1, 4, stride=8),))
    assert roofline_ns(call, cluster) == pytest.approx(64 * MIB * 3 / 4 / 50)


def test_what_a_rank_keeps_is_copied_in_its_memory_and_not_over_its_adapter() -> None:
    """512 MiB to and from the other of two nodes, and as much copied at 3.35e12 bytes/s."""
    cluster = Cluster.load("h100-dgx")
    adapter = cluster.network[1]
    call = CollectiveCall(AG, 512 * MIB, (Span(1, 2),))
    copied = 2 * 512 * MIB / 3350
    moved = 512 * MIB / (adapter.constants["efficiency"].value * 50)
    assert moved + copied < duration_ns(call, cluster) < 1.15 * (moved + copied)
    slow_memory = cluster.chip.memory_bandwidth_bytes_per_s.model_copy(update={"value": 1e12})
    chip = cluster.chip.model_copy(update={"memory_bandwidth_bytes_per_s": slow_memory})
    slower = duration_ns(call, cluster.model_copy(update={"chip": chip}))
    more = 2 * 512 * MIB / 1000 - copied
    assert slower - duration_ns(call, cluster) == pytest.approx(more, rel=0.05)


def far_apart(latency_ns: float) -> Cluster:
    """h100-dgx whose nodes have another latency between them, and nothing fitted."""
    cluster = Cluster.load("h100-dgx")
    latency = cluster.network[1].latency_ns.model_copy(update={"value": latency_ns})
    outer = cluster.network[1].model_copy(update={"latency_ns": latency, "constants": {}})
    return cluster.model_copy(update={"network": (cluster.network[0], outer)})


def test_gathers_over_nodes_far_apart_are_trees_where_each_node_has_one_member() -> None:
    cluster = far_apart(20_000)
    for collective in (AG, RS):
        alone = CollectiveCall(collective, 64, (Span(1, 64),))
        assert algorithm(alone, cluster) == "PAT on ib"
        start = cluster.network[0].constants["a0_ns"].value
        took = start + 6 * 20_000 + 64 * 2800
        assert duration_ns(alone, cluster) == pytest.approx(took, rel=0.1)
        several = CollectiveCall(collective, 4096, (Span(0, 8), Span(1, 64)))
        assert algorithm(several, cluster) == "flat ring on nvlink, flat ring on ib"
        assert algorithm(CollectiveCall(collective, 4 << 30, alone.spans), cluster) == "ring on ib"
    assert algorithm(CollectiveCall(AR, 4096, (Span(1, 64),)), cluster) == "tree on ib"
    # NCCL charges more for each rank of PAT than a step of a ring takes here:
    assert algorithm(CollectiveCall(AG, 4096, (Span(1, 64),)), far_apart(2_500)) == "ring on ib"
    tpu = CollectiveCall(AG, 4096, (Span(1, 64),))
    assert algorithm(tpu, Cluster.load("v5e")) == "ring on dcn"


def test_a_slice_reduces_before_the_data_centre_network() -> None:
    cluster = Cluster.load("v5e")
    ring = Span(0, 16, torus_sizes=(16,), torus_strides=(1,), torus_wraps=(True,))
    call = CollectiveCall(AR, 256 * MIB, (ring, Span(1, 2)))
    assert algorithm(call, cluster).startswith("torus on ici, ")
    bandwidth = cluster.network[1].bandwidth_bytes_per_s.value / 1e9
    assert roofline_ns(call, cluster) == pytest.approx(
        max(256 * MIB * 2 * 15 / 16 / 100, 256 * MIB / 16 / bandwidth)
    )


def test_oversubscription_divides_the_bandwidth() -> None:
    cluster = Cluster.load("h100-dgx")
    outer = cluster.network[1].model_copy(update={"oversubscription": 2.0})
    narrow = cluster.model_copy(update={"network": (cluster.network[0], outer)})
    call = CollectiveCall(AG, 64 * MIB, (Span(1, 4),))
    assert roofline_ns(call, narrow) == pytest.approx(2 * roofline_ns(call, cluster))


def placed(mesh: str, cluster: Cluster, axis: str) -> tuple[Span, ...]:
    return NetworkPlacement(Mesh.parse(mesh), cluster).spans([AxisRef(axis)])


def test_an_axis_along_one_dimension_of_a_torus_has_its_two_links() -> None:
    """V / W of jax-ml/scaling-book, with W the 2 x 50e9 bytes/s of both directions."""
    cluster = Cluster.load("v5e")
    gather = CollectiveCall(AG, MIB, placed("data=16,model=16", cluster, "model"))
    assert roofline_ns(gather, cluster) == pytest.approx(15 * MIB / 100)


def test_an_axis_along_two_dimensions_has_four_links() -> None:
    cluster = Cluster.load("v5e")
    gather = CollectiveCall(AG, MIB, placed("model=256", cluster, "model"))
    assert roofline_ns(gather, cluster) == pytest.approx(255 * MIB / 200)


def test_a_part_of_a_dimension_is_a_line() -> None:
    """2 x 4 chips have no rings; the axis of 4 is a line, whose ends have one link."""
    cluster = Cluster.load("v5e")
    gather = CollectiveCall(AG, MIB, placed("data=2,model=4", cluster, "model"))
    assert roofline_ns(gather, cluster) == pytest.approx(3 * MIB / 50)


def test_interleaved_groups_share_the_links_of_a_dimension() -> None:
    cluster = Cluster.load("v5p")
    mesh = "a=4,b=4,c=4,d=4"  # 4x8x8 chips; c or another is every second chip of a dimension
    times = {
        axis: roofline_ns(CollectiveCall(AG, MIB, placed(mesh, cluster, axis)), cluster)
        for axis in "abcd"
    }
    assert min(times.values()) >= 3 * MIB / 200 * 0.999
    shared = [a for a in "abcd" if max(placed(mesh, cluster, a)[0].torus_strides) > 1]
    assert shared
    assert all(times[a] > min(times.values()) for a in shared)


def test_only_the_shared_dimension_of_a_group_is_slow() -> None:
    """32 of 256 chips: 16 in a ring of their own, 2 of them 8 apart in a ring that 8 groups use."""
    cluster = Cluster.load("v5e")
    gather = CollectiveCall(AG, MIB, placed("data=32,expert=8", cluster, "data"))
    first, then = MIB / (2 / 8), 2 * MIB * 15 / 2
    assert roofline_ns(gather, cluster) == pytest.approx((first + then) / 50)
    scatter = CollectiveCall(RS, 32 * MIB, gather.spans)
    assert roofline_ns(scatter, cluster) == pytest.approx((first + then) / 50)
    everyone = CollectiveCall(AG, MIB, placed("data=32,expert=8", cluster, "expert"))
    assert roofline_ns(everyone, cluster) == pytest.approx(7 * MIB / 50)


def test_an_axis_inside_a_node_and_one_over_nodes() -> None:
    cluster = Cluster.load("h100-dgx")
    inside = CollectiveCall(AR, MIB, placed("data=64,model=8", cluster, "model"))
    across = CollectiveCall(AR, MIB, placed("data=64,model=8", cluster, "data"))
    assert algorithm(inside, cluster) == "ring on nvlink"
    assert algorithm(across, cluster) == "tree on ib"
    assert roofline_ns(inside, cluster) < roofline_ns(across, cluster)


def test_members_with_a_link_each_share_the_bandwidth_among_all_links() -> None:
    base = Cluster.load("h100-dgx")
    inner = base.network[0].model_copy(update={"kind": NetworkKind.MESH, "constants": {}})
    cluster = base.model_copy(update={"network": (inner, base.network[1])})
    message = CollectiveCall(Collective.NONE, MIB, (Span(0, 2),))
    assert roofline_ns(message, cluster) == pytest.approx(MIB / (450 / 7))
    assert roofline_ns(CollectiveCall(AG, MIB, (Span(0, 8),)), cluster) == pytest.approx(
        7 * MIB / 450
    )


def test_a_ring_tier_has_two_links_of_half_the_bandwidth() -> None:
    base = Cluster.load("h100-dgx")
    inner = base.network[0].model_copy(update={"kind": NetworkKind.RING, "constants": {}})
    cluster = base.model_copy(update={"network": (inner, base.network[1])})
    assert roofline_ns(CollectiveCall(AG, MIB, (Span(0, 8),)), cluster) == pytest.approx(
        7 * MIB / 450
    )
    assert roofline_ns(CollectiveCall(AG, MIB, (Span(0, 4),)), cluster) == pytest.approx(
        3 * MIB / 225
    )


def with_outer(cluster: Cluster, **constants: float) -> Cluster:
    """The cluster with these constants of its outer tier, beside those that it has."""
    given = {n: Quantity(value=v, kind="assumed", source="a test") for n, v in constants.items()}
    outer = cluster.network[1]
    outer = outer.model_copy(update={"constants": {**outer.constants, **given}})
    return cluster.model_copy(update={"network": (cluster.network[0], outer)})


@pytest.mark.parametrize("collective", [AR, AG, RS, A2A, Collective.NONE])
def test_the_start_of_an_outer_tier_counts_for_what_crosses_it(collective: Collective) -> None:
    cluster = Cluster.load("h100-dgx")
    slow = with_outer(cluster, a0_ns=50_000)
    spans = (Span(1, 2),) if collective is Collective.NONE else TWO_NODES
    for size in (1024, 64 * MIB):
        call = CollectiveCall(collective, size, spans)
        assert duration_ns(call, slow) == pytest.approx(duration_ns(call, cluster) + 50_000)
    inside = CollectiveCall(AR, MIB, (Span(0, 8),))
    assert duration_ns(inside, slow) == duration_ns(inside, cluster)


def test_of_a_large_call_one_piece_is_not_hidden_by_the_slower_tier() -> None:
    """64 MB of all ranks: a slower network between nodes costs 1 GiB no more than 2 GiB."""
    cluster = with_outer(Cluster.load("h100-dgx"), low_efficiency=0.0, bulk_a0_ns=0.0, c=0.0)
    slower = with_outer(cluster, efficiency=0.8)
    for size in (1024 * MIB, 2048 * MIB):
        call = CollectiveCall(AR, size, TWO_NODES)
        more = duration_ns(call, slower) - duration_ns(call, cluster)
        assert more == pytest.approx(64e6 / 8 / 50 * (1 / 0.8 - 1 / 0.94), rel=0.05)


def test_an_all_to_all_between_nodes_has_a_start_for_each_message_that_leaves() -> None:
    cluster = Cluster.load("h100-efa")
    each = cluster.network[1].constants["p2p_peer_ns"].value
    two, four = (
        duration_ns(CollectiveCall(A2A, 64, (Span(0, 8), Span(1, n, 8))), cluster) for n in (2, 4)
    )
    assert four - two == pytest.approx(16 * each, rel=0.01)


@pytest.mark.parametrize(
    ("preset", "span", "gigabytes"), [("h100-dgx", 0, 364.9), ("h100-efa", 1, 42.5)]
)
def test_a_large_message_has_the_rate_that_is_measured(
    preset: str, span: int, gigabytes: float
) -> None:
    call = CollectiveCall(Collective.NONE, 8 << 30, (Span(span, 2),))
    assert (8 << 30) / duration_ns(call, Cluster.load(preset)) == pytest.approx(gigabytes, rel=0.01)


@pytest.mark.parametrize(
    "preset", ["h100-dgx", "h100-efa", "a100-80-dgx", "b200-dgx", "gb200-nvl72"]
)
@pytest.mark.parametrize("collective", [AR, AG, RS, A2A, Collective.NONE])
def test_times_grow_without_jumps_where_protocols_change(
    preset: str, collective: Collective
) -> None:
    """By no more than the bytes, and no less than nothing, inside a node and over two."""
    cluster = Cluster.load(preset)
    places = [(Span(0, 2),), (Span(1, 2),)]
    if collective is not Collective.NONE:
        places = [(Span(0, 2),), (Span(0, 4),), TWO_NODES]
    for spans in places:
        sizes = [int(1024 * 1.1**k) for k in range(160)]
        times = [duration_ns(CollectiveCall(collective, s, spans), cluster) for s in sizes]
        for before, after in pairwise(times):
            assert before <= after <= 1.11 * before


@pytest.mark.parametrize("preset", ["h100-dgx", "h100-efa", "a100-80-hdr4", "b300-hgx", "v6e"])
@pytest.mark.parametrize("collective", [AR, AG, RS, A2A])
def test_more_nodes_are_never_faster(preset: str, collective: Collective) -> None:
    """Of the same input of each rank."""
    cluster = Cluster.load(preset)
    for size in (1024, MIB, 256 * MIB):
        nodes = [2, 3, 4, 8, 16, 64, 256]
        calls = [CollectiveCall(collective, size, (Span(0, 8), Span(1, n, 8))) for n in nodes]
        times = [duration_ns(call, cluster) for call in calls]
        assert times == sorted(times)
