"""Mesh axes on the tiers of a cluster: the default, explicit mappings, tori, messages."""

import pytest

from flint.backends.cost.network.mapping import parse_mapping
from flint.backends.cost.network.placement import NetworkPlacement, call_of
from flint.backends.cost.network.torus import Span, assign, slice_shape
from flint.cluster.models import Cluster, NetworkKind
from flint.errors import FlintError
from flint.ir.mesh import AxisRef, Group, Mesh, Route
from flint.ir.program import Collective, Kind
from tests.program_rows import ProgramBuilder

DATA, MODEL = AxisRef("data"), AxisRef("model")


def _placed(mesh, cluster="h100-dgx", mapping=None):
    return NetworkPlacement(Mesh.parse(mesh), Cluster.load(cluster), mapping)


def _rows(placement):
    return [tuple(row) for row in placement.table()]


@pytest.mark.parametrize(
    ("mesh", "rows"),
    [
        ("data=64,model=8", [("data", "64", "ib"), ("model", "8", "nvlink")]),
        ("model=8", [("model", "8", "nvlink")]),
        (
            "data=64,model=4",
            [("data:(32)2", "2", "nvlink"), ("data:(1)32", "32", "ib"), ("model", "4", "nvlink")],
        ),
        (
            "data=4,model=16",
            [("data", "4", "ib"), ("model:(2)8", "8", "nvlink"), ("model:(1)2", "2", "ib")],
        ),
        ("data=4,model=6", [("data", "4", "ib"), ("model", "6", "nvlink")]),
        (
            "data=2,model=12",
            [("data", "2", "ib"), ("model:(2)6", "6", "nvlink"), ("model:(1)2", "2", "ib")],
        ),
        ("data=2,model=11", [("data", "2", "ib"), ("model", "11", "nvlink, ib (in 2 domains)")]),
        ("data=1,model=2", [("model", "2", "nvlink")]),
    ],
)
def test_the_last_axes_fill_the_inner_tier(mesh, rows):
    assert _rows(_placed(mesh)) == rows


def test_a_domain_of_72_holds_more():
    assert _rows(_placed("data=4,model=72", "gb200-nvl72")) == [
        ("data", "4", "ib"),
        ("model", "72", "nvlink"),
    ]


def test_an_explicit_mapping_wins_and_the_rest_fills_what_is_left():
    placed = _placed("data=8,model=8", mapping={"data": "nvlink"})
    assert _rows(placed) == [("data", "8", "nvlink"), ("model", "8", "ib")]
    placed = _placed("data=8,model=8", mapping={"model": "ib"})
    assert _rows(placed) == [("data", "8", "nvlink"), ("model", "8", "ib")]
    placed = _placed("pipe=2,data=8,model=4", mapping={"pipe": "nvlink", "data": "ib"})
    assert [r[2] for r in _rows(placed)] == ["nvlink", "ib", "nvlink"]


@pytest.mark.parametrize(
    ("mesh", "cluster", "mapping", "said"),
    [
        ("64x8", "h100-dgx", {"modle": "ib"}, "no axis 'modle' to map; did you mean 'model'?"),
        ("64x8", "h100-dgx", {"model": "nvlnk"}, "no tier 'nvlnk'; did you mean 'nvlink'?"),
        ("64x8", "h100-dgx", {"data": "nvlink"}, "'data' (64) does not fit into tier 'nvlink'"),
        (
            "8x8",
            "h100-dgx",
            {"data": "nvlink", "model": "nvlink"},
            "into tier 'nvlink' of 8 beside 8 of other axes",
        ),
        ("16x17", "v5e", {"model": "ici"}, "'model' (17) does not fit into tier 'ici'"),
    ],
)
def test_mappings_that_cannot_be(mesh, cluster, mapping, said):
    with pytest.raises(FlintError) as caught:
        _placed(mesh, cluster, mapping)
    assert caught.value.code == "FL703"
    assert said in caught.value.message


def test_a_mesh_that_is_larger_than_the_cluster():
    dgx = Cluster.load("h100-dgx")
    one_node = dgx.model_copy(update={"network": dgx.network[:1]})
    said = (
        r"axis 'data' \(2\) does not fit on the cluster: tier 'nvlink' holds 8, of which other axes"
    )
    with pytest.raises(FlintError, match=said):
        NetworkPlacement(Mesh.parse("2x8"), one_node)


def test_a_torus_without_a_block_of_a_size():
    with pytest.raises(FlintError, match="tier 'ici' of 16x16, which has no block of 17"):
        _placed("17", "v5e", mapping="data=ici")


def test_mappings_as_text():
    assert parse_mapping("model=nvlink, data = ib") == {"model": "nvlink", "data": "ib"}
    assert parse_mapping("") == {}
    for text in ("model", "model=", "=ib", "a=b,a=c"):
        with pytest.raises(FlintError) as caught:
            parse_mapping(text)
        assert caught.value.code == "FL703"
    with pytest.raises(FlintError, match="axis 'a' is mapped twice, to 'b' and to 'c'"):
        parse_mapping("a=b,a=c")


@pytest.mark.parametrize(
    ("mapping", "said"),
    [
        (["model"], "a mapping of mesh axes cannot have type list"),
        (3, "a mapping of mesh axes cannot have type int"),
        ({"model": 1}, "the name of a tier cannot have type int: 1"),
        ({0: "nvlink"}, "the name of an axis cannot have type int: 0"),
        ({"model": ["nvlink"]}, "the name of a tier cannot have type list"),
        ({"modle": "nvlink"}, "mesh has no axis 'modle' to map; did you mean 'model'?"),
        ({"model": "nvlnk"}, "has no tier 'nvlnk'; did you mean 'nvlink'?"),
        ("model", "'model' is not AXIS=TIER"),
    ],
)
def test_mappings_that_are_none(mapping, said):
    with pytest.raises(FlintError) as caught:
        _placed("data=4,model=8", mapping=mapping)
    assert (caught.value.code, caught.value.message) == ("FL703", caught.value.message)
    assert said in caught.value.message and caught.value.help


@pytest.mark.parametrize(
    ("mapping", "said"),
    [
        ("model=nvlink", "axis 'model' (16) does not fit into tier 'nvlink' of 8"),
        (
            "pipe=nvlink,model=nvlink",
            "axis 'model' (8) does not fit into tier 'nvlink' of 8 beside 2 of other axes",
        ),
    ],
)
def test_what_does_not_fit_says_what_else_is_there(mapping, said):
    mesh = "pipe=2,data=2,model=16" if mapping == "model=nvlink" else "data=2,pipe=2,model=8"
    with pytest.raises(FlintError) as caught:
        _placed(mesh, mapping=mapping)
    assert caught.value.message == said


@pytest.mark.parametrize(
    ("shape", "sizes", "lines"),
    [
        # a dimension whose size divides the axis is taken first, and the rest from another
        ((8, 6), (12, 4), [((1, 6, 1), (0, 2, 1)), ((0, 4, 2),)]),
        ((6, 8), (12, 4), [((0, 6, 1), (1, 2, 1)), ((1, 4, 2),)]),
        ((4, 4, 4), (2, 32), [((0, 2, 1),), ((0, 2, 2), (1, 4, 1), (2, 4, 1))]),
        ((4, 4, 8), (4, 4, 8), [((0, 4, 1),), ((1, 4, 1),), ((2, 8, 1),)]),
        ((2, 4, 8), (8, 8), [((0, 2, 1), (1, 4, 1)), ((2, 8, 1),)]),
        ((1, 5), (5, 1), [((1, 5, 1),), ()]),
    ],
)
def test_axes_take_whole_dimensions_and_then_parts(shape, sizes, lines):
    found = assign(shape, sizes)
    assert [{(x.dimension, x.size, x.stride) for x in axis} for axis in found] == [
        set(axis) for axis in lines
    ]


def test_a_mapping_may_be_text():
    table = _placed("data=4,model=2", mapping="data=nvlink,model=ib").table()
    assert table == _placed("data=4,model=2", mapping={"data": "nvlink", "model": "ib"}).table()
    assert [row.tier for row in table] == ["nvlink", "ib"]


def test_spans_of_axes_and_sub_axes():
    placed = _placed("data=64,model=4")
    inner, outer = Span(0, 2, stride=4), Span(1, 32)
    assert placed.spans([MODEL]) == (Span(0, 4),)
    assert placed.spans([DATA]) == (inner, outer)
    assert placed.spans([DATA, MODEL]) == (Span(0, 8), outer)
    assert placed.spans([AxisRef("data", 32, 2)]) == (inner,)
    assert placed.spans([AxisRef("data", 16, 4)]) == (inner, Span(1, 2))
    assert placed.spans([AxisRef("data", 1, 8)]) == (Span(1, 8, stride=4),)
    assert placed.spans([AxisRef("data", 4, 1)]) == ()
    assert placed.spans_of_group(Group((DATA,))) == (inner, outer)


@pytest.mark.parametrize(
    ("mesh", "tiers"),
    [
        ("11", [(0, 5, 1), (1, 2, 1)]),
        ("13", [(0, 6, 1), (1, 2, 1)]),
        ("22", [(0, 7, 1), (1, 3, 1)]),
        ("3x11", [(0, 5, 1), (1, 2, 1)]),
        ("11x2", [(0, 3, 2), (1, 3, 1)]),  # four places a domain
        # divisors that leave less than half of the domains empty stay
        ("9", [(0, 3, 1), (1, 3, 1)]),
        ("20", [(0, 5, 1), (1, 4, 1)]),
        ("11x4", [(1, 11, 1)]),
        ("11x8", [(1, 11, 1)]),
    ],
)
def test_an_axis_that_no_number_divides_lies_on_as_few_domains_as_hold_it(mesh, tiers):
    placed = _placed(mesh)
    size, axis = max((n, name) for name, n in placed.mesh.shape.items())
    found = placed.spans([AxisRef(axis)])
    assert [(s.tier, s.size, s.stride) for s in found] == tiers
    assert _placed(mesh, mapping={axis: "ib"}).spans([AxisRef(axis)])[-1].size == size


def test_all_gathers_over_such_an_axis_bring_the_bytes_of_all_members():
    program = ProgramBuilder(Mesh.parse("data=11"))
    for collective in (Collective.ALL_GATHER, Collective.ALL_REDUCE):
        columns = {"collective": collective, "comm_bytes": 1000, "group": Group((DATA,))}
        program.add("all", Kind.COLLECTIVE, **columns)
    calls = [call_of(program.build(), row, _placed("data=11")) for row in (0, 1)]
    assert [c.comm_bytes * (c.size if c is calls[0] else 1) for c in calls] == [11_000, 1000]


def test_sub_axes_that_cut_across_domains():
    """Of 12 devices in domains of 6, groups of 4 neighbours: one has two in each domain."""
    placed = _placed("model=12")
    assert placed.spans([AxisRef("model", 3, 4)]) == (Span(0, 2), Span(1, 2))
    assert placed.spans([AxisRef("model", 2, 6)]) == (Span(0, 6),)


def test_listed_groups_are_those_of_the_most_spread_one():
    placed = _placed("data=4,model=8")
    near, far = (0, 1, 2, 3), (0, 8, 16, 24)
    assert placed.spans_of_group(Group(ranks=(near, (4, 5, 6, 7)))) == (Span(0, 4),)
    assert placed.spans_of_group(Group(ranks=(near, far))) == (Span(1, 4),)
    assert placed.spans_of_group(Group(ranks=((0, 1, 8, 9),))) == (Span(0, 2), Span(1, 2))
    uneven = Group(ranks=((0, 1, 2, 8),))
    assert placed.spans_of_group(uneven) == (Span(1, 4),)
    some = Group((DATA, MODEL), positions=(0, 1, 8, 9))
    assert placed.spans_of_group(some) == (Span(0, 2), Span(1, 2))


def test_messages_go_through_the_outermost_tier_on_their_way():
    placed = _placed("data=4,model=8")
    assert placed.spans_of_route(Route((MODEL,), 1)) == (Span(0, 2),)
    assert placed.spans_of_route(Route((DATA,), 1, wrap=False)) == (Span(1, 2),)
    assert placed.spans_of_route(Route(pairs=((0, 1), (7, 8)))) == (Span(1, 2),)
    assert placed.spans_of_route(Route(pairs=((0, 1), (7, 6)))) == (Span(0, 2),)
    assert placed.spans_of_route(Route((MODEL,), 8)) == ()


@pytest.mark.parametrize(
    ("cluster", "chips", "shape"),
    [
        ("v5p", 8, (2, 2, 2)), ("v5p", 32, (2, 4, 4)), ("v5p", 128, (4, 4, 8)),
        ("v5p", 256, (4, 8, 8)), ("v5p", 2048, (8, 16, 16)), ("v5p", 6144, (16, 16, 24)),
        ("v5p", 29, None), ("v4", 4096, (16, 16, 16)), ("v4", 8192, None), ("v5e", 128, (8, 16)),
        ("v5e", 8, (2, 4)), ("v6e", 512, None),
    ],
)  # fmt: skip
def test_slices_have_the_shapes_that_are_offered(cluster, chips, shape):
    loaded = Cluster.load(cluster)
    assert slice_shape(loaded.network[0], loaded.members[0], chips) == shape


def test_axes_get_whole_dimensions_of_a_torus_where_they_match():
    placed = _placed("data=64,model=8", "v5p")
    assert _rows(placed) == [
        ("data", "64", "ici (8x8 of 8x8x8)"),
        ("model", "8", "ici (8 of 8x8x8)"),
    ]
    assert placed.spans([MODEL]) == (Span(0, 8, 1, 1, (8,), (1,), (True,)),)
    assert placed.spans([DATA]) == (Span(0, 64, 8, 1, (8, 8), (1, 1), (True, True)),)
    (whole,) = placed.spans([DATA, MODEL])
    assert (whole.size, whole.torus_sizes, whole.torus_wraps) == (512, (8, 8, 8), (True,) * 3)


@pytest.mark.parametrize(("mesh", "ring"), [("data=16,model=4", True), ("data=8,model=4", False)])
def test_a_v5p_has_rings_in_whole_cubes_only(mesh, ring):
    (span,) = _placed(mesh, "v5p").spans([MODEL])
    assert (span.torus_sizes, span.torus_wraps) == ((4,), (ring,))


def test_axes_that_share_a_dimension_of_a_torus():
    placed = _placed("data=8,model=2", "v5e")
    assert placed.shapes[0] == (4, 4)
    (model,) = placed.spans([MODEL])
    assert (model.torus_sizes, model.torus_strides) == ((2,), (1,))
    (data,) = placed.spans([DATA])
    assert sorted(zip(data.torus_sizes, data.torus_strides, strict=True)) == [(2, 2), (4, 1)]
    (both,) = placed.spans([DATA, MODEL])
    assert (both.torus_sizes, both.torus_strides) == ((4, 4), (1, 1))
    assert both.torus_wraps == (False, False)  # of a v5e only 16 is a ring


def test_sub_axes_of_a_torus():
    placed = _placed("data=16,model=16", "v5e")
    (fast,) = placed.spans([AxisRef("model", 4, 4)])
    assert (fast.torus_sizes, fast.torus_strides, fast.torus_wraps) == ((4,), (1,), (False,))
    (slow,) = placed.spans([AxisRef("model", 1, 4)])
    assert (slow.torus_sizes, slow.torus_strides, slow.torus_wraps) == ((4,), (4,), (True,))
    assert slow.stride == 4


def test_what_a_pod_does_not_hold_goes_over_the_data_centre_network():
    placed = _placed("data=64,model=16", "v5e")
    spans = placed.spans([DATA])
    assert [(s.tier, s.size) for s in spans] == [(0, 16), (1, 4)]
    assert spans[0].torus_wraps == (True,)


def test_messages_on_a_torus_count_hops():
    placed = _placed("data=16,model=16", "v5e")
    for offset, hops in ((1, 1), (3, 3), (15, 1), (8, 8)):
        (span,) = placed.spans_of_route(Route((MODEL,), offset))
        assert (span.size, span.stride, span.sharing) == (2, hops, hops)
    lines = _placed("data=8,model=8", "v5e")
    (span,) = lines.spans_of_route(Route((MODEL,), 1))
    assert span.stride == 7  # the last one of a line sends to the first
    assert span.sharing == 1  # over links in the other direction


def test_a_shift_over_a_block_of_a_torus_loads_no_link_twice():
    for mesh, hops in (("data=4", 2), ("data=64", 14)):  # 2x2 and 8x8 chips without rings
        (span,) = _placed(mesh, "v5e").spans_of_route(Route((DATA,), 1))
        assert (span.stride, span.sharing) == (hops, 1)
    (span,) = _placed("data=4,model=4", "v5e").spans_of_route(Route((DATA,), 1))
    assert (span.stride, span.sharing) == (3, 1)
    (span,) = _placed("data=4,model=4", "v5e").spans_of_route(Route((DATA,), 2))
    assert (span.stride, span.sharing) == (2, 2)


def test_messages_in_different_pods_use_different_links():
    placed = _placed("data=2,model=256", "v5e")
    assert placed.spans_of_route(Route((MODEL,), 8))[0].sharing == (
        _placed("model=256", "v5e").spans_of_route(Route((MODEL,), 8))[0].sharing
    )


def test_parts_of_dimensions_are_used_up():
    lines = assign((4, 4, 8), (2, 64))
    assert [len(x) for x in lines] == [1, 3]
    assert sorted(line.size for line in lines[1]) == [2, 4, 8]
    assert assign((2, 3, 7), (42,))[0][0].size * 21 == 42


def test_rings_of_a_network_are_tori_of_one_dimension():
    v5e = Cluster.load("v5e")
    changed = {"kind": NetworkKind.RING, "size": 16, "torus_dimensions": 0, "torus_shape": ()}
    ring = v5e.network[0].model_copy(update=changed)
    cluster = v5e.model_copy(update={"network": (ring, v5e.network[1])})
    (span,) = NetworkPlacement(Mesh.parse("model=16"), cluster).spans([MODEL])
    assert (span.torus_sizes, span.torus_wraps) == ((16,), (True,))
    (span,) = NetworkPlacement(Mesh.parse("model=8"), cluster).spans([MODEL])
    assert span.torus_wraps == (False,)
