"""What holds for every collective on every preset."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flint.backends.cost.collectives import duration_ns, roofline_ns
from flint.backends.cost.collectives.algorithm import CollectiveCall
from flint.backends.cost.network.torus import Span
from flint.cluster.models import Cluster, NetworkKind
from flint.ir.program import Collective

CLUSTERS = {name: Cluster.load(name) for name in Cluster.names()}
#: Two tiers whose inner one is a ring, or has a link between each pair.
for _kind in (NetworkKind.RING, NetworkKind.MESH):
    _base = CLUSTERS["h100-dgx"]
    _inner = _base.network[0].model_copy(update={"kind": _kind, "constants": {}})
    CLUSTERS[_kind.value] = _base.model_copy(update={"network": (_inner, *_base.network[1:])})
#: Nodes so far apart that gathers take PAT.
_far = CLUSTERS["h100-dgx"].network[1]
_latency = _far.latency_ns.model_copy(update={"value": 30_000.0})
_outer = _far.model_copy(update={"latency_ns": _latency})
CLUSTERS["far"] = CLUSTERS["h100-dgx"].model_copy(
    update={"network": (CLUSTERS["h100-dgx"].network[0], _outer)}
)

names = st.sampled_from(sorted(CLUSTERS))
collectives = st.sampled_from(list(Collective))
sizes = st.integers(1, 2**33)


@st.composite
def torus_spans(draw: st.DrawFn, shape: tuple[int, ...]) -> Span:
    lines = [draw(st.sampled_from([1, 2, 4, 8])) for _ in shape]
    size = 1
    for line in lines:
        size *= line
    wraps = tuple(draw(st.booleans()) for _ in lines)
    return Span(0, size, 1, 1, tuple(lines), (1,) * len(lines), wraps)


@st.composite
def calls(draw: st.DrawFn) -> tuple[CollectiveCall, Cluster]:
    cluster = CLUSTERS[draw(names)]
    collective = draw(collectives)
    inner = cluster.network[0]
    if collective in (Collective.NONE, Collective.PERMUTE):
        spans: tuple[Span, ...] = (Span(draw(st.integers(0, 1)), 2),)
    else:
        shape = inner.torus_shape
        inside = draw(torus_spans(shape) if shape else st.sampled_from([1, 2, 4, 8]))
        first = inside if isinstance(inside, Span) else Span(0, inside)
        spans = (first, Span(1, draw(st.integers(1, 64))))
    return CollectiveCall(collective, draw(sizes), spans), cluster


@given(calls(), st.integers(0, 2**33))
def test_a_bigger_message_is_never_faster(case: tuple[CollectiveCall, Cluster], more: int) -> None:
    call, cluster = case
    bigger = CollectiveCall(call.collective, call.comm_bytes + more, call.spans)
    assert duration_ns(bigger, cluster) >= duration_ns(call, cluster)


@given(calls(), st.integers(0, 1), st.floats(1, 100))
def test_more_bandwidth_is_never_slower(
    case: tuple[CollectiveCall, Cluster], tier: int, factor: float
) -> None:
    call, cluster = case
    network = cluster.network[tier]
    wide = network.bandwidth_bytes_per_s.value * factor
    quantity = network.bandwidth_bytes_per_s.model_copy(update={"value": wide})
    networks = list(cluster.network)
    networks[tier] = network.model_copy(update={"bandwidth_bytes_per_s": quantity})
    faster = cluster.model_copy(update={"network": tuple(networks)})
    assert duration_ns(call, faster) <= duration_ns(call, cluster) * (1 + 1e-12)


@given(calls())
def test_the_roofline_is_a_lower_bound(case: tuple[CollectiveCall, Cluster]) -> None:
    call, cluster = case
    assert duration_ns(call, cluster) >= roofline_ns(call, cluster) * (1 - 1e-12)


@given(calls())
def test_a_group_of_one_takes_no_time(case: tuple[CollectiveCall, Cluster]) -> None:
    call, cluster = case
    assert (duration_ns(call, cluster) > 0) == (call.size > 1)


@given(calls())
def test_a_byte_more_changes_little(case: tuple[CollectiveCall, Cluster]) -> None:
    """No jumps where the algorithm changes: one byte adds at most what the first byte costs."""
    call, cluster = case
    more = CollectiveCall(call.collective, call.comm_bytes + 1, call.spans)
    first = CollectiveCall(call.collective, 1, call.spans)
    difference = duration_ns(more, cluster) - duration_ns(call, cluster)
    assert difference <= duration_ns(first, cluster) + 1e-6 * duration_ns(call, cluster)


@given(calls(), st.integers(2, 8))
def test_groups_that_share_links_are_not_faster(
    case: tuple[CollectiveCall, Cluster], sharing: int
) -> None:
    call, cluster = case
    spans = tuple(
        Span(s.tier, s.size, s.stride, sharing, s.torus_sizes, s.torus_strides, s.torus_wraps)
        for s in call.spans
    )
    shared = CollectiveCall(call.collective, call.comm_bytes, spans)
    assert duration_ns(shared, cluster) >= duration_ns(call, cluster)


@given(calls())
def test_an_all_reduce_is_at_most_a_reduce_scatter_and_an_all_gather(
    case: tuple[CollectiveCall, Cluster],
) -> None:
    call, cluster = case
    size = call.comm_bytes * call.size
    both = duration_ns(
        CollectiveCall(Collective.REDUCE_SCATTER, size, call.spans), cluster
    ) + duration_ns(CollectiveCall(Collective.ALL_GATHER, call.comm_bytes, call.spans), cluster)
    whole = duration_ns(CollectiveCall(Collective.ALL_REDUCE, size, call.spans), cluster)
    assert whole <= both * (1 + 1e-9)


@pytest.mark.parametrize("name", sorted(CLUSTERS))
def test_a_pair_is_never_slower_than_two_messages_of_all_bytes(name: str) -> None:
    cluster = CLUSTERS[name]
    for size in (2**10, 2**20, 2**30):
        message = duration_ns(CollectiveCall(Collective.NONE, size, (Span(0, 2),)), cluster)
        pair = duration_ns(CollectiveCall(Collective.ALL_REDUCE, size, (Span(0, 2),)), cluster)
        assert pair <= 2 * message
