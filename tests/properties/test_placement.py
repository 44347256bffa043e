"""Placement against brute force: where each rank's chip is, and what groups of them span."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from flint.backends.cost.network.placement import NetworkPlacement
from flint.cluster.models import Cluster
from flint.errors import FlintError
from flint.ir.mesh import AxisRef, Group, Mesh, Route

CLUSTERS = {name: Cluster.load(name) for name in ("h100-dgx", "gb200-nvl72", "v5e", "v5p")}
SIZES = st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16])


@st.composite
def _placements(draw, names=tuple(CLUSTERS)):
    sizes = draw(st.lists(SIZES, min_size=1, max_size=3))
    mesh = Mesh(tuple("abc"[: len(sizes)]), tuple(sizes))
    return NetworkPlacement(mesh, CLUSTERS[draw(st.sampled_from(names))])


@st.composite
def _axes(draw, mesh):
    refs = []
    for name, size in mesh.shape.items():
        pre = draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0]))
        part = draw(st.sampled_from([d for d in range(1, size // pre + 1) if size // pre % d == 0]))
        if draw(st.booleans()):
            refs.append(AxisRef(name, pre, part))
    return tuple(refs)


def _domains_of(placement, ranks, tier):
    """Coordinates, outside of `tier`, of the chips of `ranks`: one row for each rank."""
    columns = []
    for part in placement.parts:
        if part.tier > tier:
            index = placement.mesh.names.index(part.axis)
            coordinate = np.unravel_index(ranks, placement.mesh.sizes)[index]
            minor = placement.mesh.sizes[index] // (part.pre_size * part.size)
            columns.append(coordinate // minor % part.size)
    return np.stack(columns, axis=1) if columns else np.zeros((len(ranks), 0), dtype=int)


def _chips_of(placement, ranks, tier):
    """Coordinates of the chips of `ranks` on the torus of `tier`."""
    place = np.zeros((len(ranks), len(placement.shapes[tier])), dtype=int)
    for part in placement.parts:
        if part.tier == tier:
            index = placement.mesh.names.index(part.axis)
            coordinate = np.unravel_index(ranks, placement.mesh.sizes)[index]
            minor = placement.mesh.sizes[index] // (part.pre_size * part.size)
            digit = coordinate // minor % part.size
            place[:, part.line.dimension] += digit * part.line.stride
    return place


@settings(max_examples=60)
@given(st.data())
def test_the_product_of_span_sizes_is_the_size_of_the_group(data):
    placement = data.draw(_placements())
    axes = data.draw(_axes(placement.mesh))
    spans = placement.spans(axes)
    assert math.prod(s.size for s in spans) == placement.mesh.group_size(axes)
    assert [s.tier for s in spans] == sorted({s.tier for s in spans})
    assert all(s.size > 1 for s in spans)


@settings(max_examples=60)
@given(st.data())
def test_spans_of_whole_axes_are_those_of_every_group_by_brute_force(data):
    placement = data.draw(_placements())
    names = data.draw(st.sets(st.sampled_from(placement.mesh.names)))
    axes = tuple(AxisRef(n) for n in sorted(names))
    sizes = {s.tier: s.size for s in placement.spans(axes)}
    for ranks in placement.mesh.groups(axes)[:4]:
        inside = len(ranks)
        for tier in range(len(placement.cluster.network) - 1, -1, -1):
            domains = len(np.unique(_domains_of(placement, ranks, tier - 1), axis=0))
            outside = len(np.unique(_domains_of(placement, ranks, tier), axis=0))
            assert sizes.get(tier, 1) == domains // outside
            inside //= domains // outside
        assert inside == 1


@settings(max_examples=60)
@given(st.data())
def test_listing_the_ranks_of_a_group_gives_the_same_sizes(data):
    placement = data.draw(_placements())
    names = data.draw(st.sets(st.sampled_from(placement.mesh.names), min_size=1))
    axes = tuple(AxisRef(n) for n in sorted(names))
    listed = Group(ranks=tuple(tuple(map(int, g)) for g in placement.mesh.groups(axes)))
    found = [(s.tier, s.size) for s in placement.spans_of_group(listed)]
    assert found == [(s.tier, s.size) for s in placement.spans(axes)]


@settings(max_examples=60)
@given(st.data())
def test_of_listed_groups_the_most_spread_one_counts(data):
    placement = data.draw(_placements())
    order = data.draw(st.permutations(range(min(placement.mesh.size, 24))))
    cut = data.draw(st.integers(0, len(order) - 1))
    groups = tuple(g for g in (tuple(order[:cut]), tuple(order[cut:])) if g)
    each = [placement.spans_of_group(Group(ranks=(g,))) for g in groups]
    for ranks, spans in zip(groups, each, strict=True):
        assert math.prod(s.size for s in spans) == len(ranks)
    far = max(each, key=lambda spans: [(s.tier, s.size) for s in reversed(spans)])
    assert placement.spans_of_group(Group(ranks=groups)) == far


@settings(max_examples=60)
@given(st.data())
def test_every_rank_has_a_chip_of_its_own_and_domains_are_not_overfull(data):
    placement = data.draw(_placements())
    ranks = np.arange(placement.mesh.size)
    assert len(np.unique(_domains_of(placement, ranks, -1), axis=0)) == len(ranks)
    for tier, network in enumerate(placement.cluster.network):
        if network.size:
            domains = _domains_of(placement, ranks, tier)
            assert np.unique(domains, axis=0, return_counts=True)[1].max() <= network.size


@settings(max_examples=60)
@given(st.data())
def test_groups_on_a_torus_are_products_of_lines(data):
    placement = data.draw(_placements(("v5e", "v5p")))
    names = data.draw(st.sets(st.sampled_from(placement.mesh.names), min_size=1))
    axes = tuple(AxisRef(n) for n in sorted(names))
    spans = [s for s in placement.spans(axes) if s.tier == 0]
    if not spans:
        return
    (span,) = spans
    assert math.prod(span.torus_sizes) == span.size
    ranks = placement.mesh.groups(axes)[0]
    chips = np.unique(_chips_of(placement, ranks, 0), axis=0)
    assert len(chips) == span.size
    used = [len(np.unique(chips[:, d])) for d in range(chips.shape[1])]
    assert math.prod(used) == span.size
    assert math.prod(span.torus_sizes) == math.prod(u for u in used if u > 1)
    for size, stride, wraps in zip(
        span.torus_sizes, span.torus_strides, span.torus_wraps, strict=True
    ):
        assert any(size * stride <= whole for whole in placement.shapes[0])
        assert not wraps or size * stride in placement.shapes[0]


@settings(max_examples=60)
@given(st.data())
def test_ranks_of_powers_of_two_are_on_chips_in_their_order(data):
    exponents = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    mesh = Mesh(tuple("abc"[: len(exponents)]), tuple(2**e for e in exponents))
    placement = NetworkPlacement(mesh, CLUSTERS["h100-dgx"])
    ranks = np.arange(mesh.size)
    nodes = np.unique(_domains_of(placement, ranks, 0), axis=0, return_inverse=True)[1]
    assert (nodes.ravel() == ranks // 8).all()


@settings(max_examples=60)
@given(st.data())
def test_messages_go_through_the_outermost_tier_by_brute_force(data):
    placement = data.draw(_placements())
    mesh = placement.mesh
    name = data.draw(st.sampled_from(mesh.names))
    route = Route((AxisRef(name),), data.draw(st.integers(1, 3)), data.draw(st.booleans()))
    pairs = [(r, t) for r, t in enumerate(route.targets(mesh)) if t not in (-1, r)]
    expected = {
        tier
        for pair in pairs[:200]
        for tier in range(len(placement.cluster.network))
        if len(np.unique(_domains_of(placement, np.array(pair), tier - 1), axis=0)) == 2
        and len(np.unique(_domains_of(placement, np.array(pair), tier), axis=0)) == 1
    }
    spans = placement.spans_of_route(route)
    assert bool(spans) == bool(pairs)
    if len(pairs) <= 200 and spans:
        assert spans[0].tier == max(expected)
        assert spans[0].size == 2


@settings(max_examples=60)
@given(st.data())
def test_a_mapping_is_what_it_says_or_an_error(data):
    default = data.draw(_placements(("h100-dgx", "v5e")))
    tiers = [n.name for n in default.cluster.network]
    mapping = data.draw(
        st.dictionaries(st.sampled_from(default.mesh.names), st.sampled_from(tiers))
    )
    try:
        placement = NetworkPlacement(default.mesh, default.cluster, mapping)
    except FlintError as error:
        assert error.code == "FL703"
        return
    for axis, tier in mapping.items():
        found = {tiers[s.tier] for s in placement.spans([AxisRef(axis)])}
        assert found <= {tier}
