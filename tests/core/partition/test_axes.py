"""Device lists map back to mesh axes: for any mesh, any axes, any order of groups and ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flint.errors import FlintError
from flint.ir.mesh import AxisRef, Group, Mesh, Route
from flint.passes.axes import groups_to_axes, pairs_to_route
from tests.cpu import cpu_seconds

SIZES = (1, 2, 3, 4, 6, 8, 12)


@st.composite
def meshes(draw: st.DrawFn) -> Mesh:
    sizes = draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=3))
    return Mesh(tuple("abc"[: len(sizes)]), tuple(sizes))


@st.composite
def axes_of(draw: st.DrawFn, mesh: Mesh) -> tuple[AxisRef, ...]:
    chosen: list[AxisRef] = []
    for name, whole in mesh.shape.items():
        pre = draw(st.sampled_from([d for d in range(1, whole + 1) if whole % d == 0]))
        rest = whole // pre
        size = draw(st.sampled_from([d for d in range(1, rest + 1) if rest % d == 0]))
        if draw(st.booleans()):
            chosen.append(AxisRef(name, pre, size))
    return mesh.canonical(chosen)


@settings(max_examples=150)
@given(st.data())
def test_groups_of_axes_give_the_axes(data: st.DataObject) -> None:
    mesh = data.draw(meshes())
    axes = data.draw(axes_of(mesh))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    groups = random.permuted(random.permutation(mesh.groups(axes)), axis=1)
    expected = Group(axes=axes) if mesh.group_size(axes) > 1 else Group()
    assert groups_to_axes(groups, mesh) == expected
    assert groups_to_axes(groups.tolist(), mesh) == expected


@settings(max_examples=150)
@given(st.data())
def test_a_shift_keeps_its_targets(data: st.DataObject) -> None:
    mesh = data.draw(meshes())
    axes = data.draw(axes_of(mesh))
    width = mesh.group_size(axes)
    offset = data.draw(st.integers(-width, width))
    route = Route(axes=axes, offset=offset, wrap=data.draw(st.booleans()))
    if not axes:
        return
    targets = route.targets(mesh)
    pairs = [(s, int(t)) for s, t in enumerate(targets) if t >= 0]
    if not pairs:
        return
    found = pairs_to_route(data.draw(st.permutations(pairs)), mesh)
    assert not found.pairs
    if any(s != t for s, t in pairs):
        np.testing.assert_array_equal(found.targets(mesh), targets)


@settings(max_examples=100)
@given(st.data())
def test_any_pairs_keep_their_targets(data: st.DataObject) -> None:
    mesh = data.draw(meshes().filter(lambda m: m.size <= 48))
    order = data.draw(st.permutations(range(mesh.size)))
    count = data.draw(st.integers(1, mesh.size))
    pairs = list(enumerate(order))[:count]
    targets = np.full(mesh.size, -1)
    for source, target in pairs:
        targets[source] = target
    found = pairs_to_route(pairs, mesh)
    if any(s != t for s, t in pairs):
        np.testing.assert_array_equal(found.targets(mesh), targets)
    else:
        assert found == Route()


def test_axes_are_named() -> None:
    mesh = Mesh.parse("data=4,model=8")
    rows = np.arange(32).reshape(4, 8)
    assert groups_to_axes(rows, mesh) == Group(axes=(AxisRef("model"),))
    assert groups_to_axes(rows.T, mesh) == Group(axes=(AxisRef("data"),))
    assert groups_to_axes([], mesh) == Group(axes=(AxisRef("data"), AxisRef("model")))
    halves = rows.reshape(8, 4)
    assert groups_to_axes(halves, mesh) == Group(axes=(AxisRef("model", 2, 4),))


def test_groups_that_are_no_axes_stay_lists() -> None:
    mesh = Mesh.parse("x=4")
    assert groups_to_axes([[0, 3], [1, 2]], mesh) == Group(ranks=((0, 3), (1, 2)))
    assert groups_to_axes([[0, 1, 2], [3]], mesh) == Group(ranks=((0, 1, 2), (3,)))
    assert groups_to_axes([[0, 1]], mesh) == Group(ranks=((0, 1),))
    assert groups_to_axes([[0, 1], [0, 1]], mesh) == Group(ranks=((0, 1), (0, 1)))
    assert groups_to_axes([[1, 2], [3, 0]], mesh).ranks


def test_routes_are_shifts_where_they_can_be() -> None:
    mesh = Mesh.parse("data=2,model=4")
    ring = [(d * 4 + m, d * 4 + (m + 1) % 4) for d in range(2) for m in range(4)]
    assert pairs_to_route(ring, mesh) == Route((AxisRef("model"),), 1)
    back = [(t, s) for s, t in ring]
    assert pairs_to_route(back, mesh) == Route((AxisRef("model"),), -1)
    open_ring = [p for p in ring if p[1] % 4]
    assert pairs_to_route(open_ring, mesh) == Route((AxisRef("model"),), 1, wrap=False)
    swap = [(i, i ^ 1) for i in range(8)]
    assert pairs_to_route(swap, mesh) == Route((AxisRef("model", 2, 2),), 1)
    mirror = [(d * 4 + m, d * 4 + 3 - m) for d in range(2) for m in range(4)]
    assert pairs_to_route(mirror, mesh).axes == (AxisRef("model"),)
    assert len(pairs_to_route(mirror, mesh).pairs) == 4
    assert pairs_to_route([(0, 5)], mesh) == Route(pairs=((0, 5),))
    assert pairs_to_route([(3, 3)], mesh) == Route()


@pytest.mark.parametrize("bad", [[[0, 2]], [[0, -1]], [[0, 1], [2]], [[5], [0, 1]]])
def test_a_device_outside_the_mesh_is_an_error(bad: list[list[int]]) -> None:
    mesh = Mesh.parse("x=2")
    with pytest.raises(FlintError, match="names device"):
        groups_to_axes(bad, mesh)


def test_a_pair_outside_the_mesh_is_an_error() -> None:
    with pytest.raises(FlintError, match="FL102|names device 7"):
        pairs_to_route([(0, 7)], Mesh.parse("x=2"))


def test_time_grows_with_devices_and_no_faster() -> None:
    def named(data: int) -> None:
        mesh = Mesh.parse(f"data={data},model=8")
        assert groups_to_axes(mesh.groups([AxisRef("data")]), mesh).axes == (AxisRef("data"),)
        ring = Route((AxisRef("data"),), 1)
        pairs = np.stack([np.arange(mesh.size), ring.targets(mesh)], axis=1)
        assert pairs_to_route(pairs, mesh) == ring

    eighth = min(cpu_seconds(lambda: named(512)) for _ in range(3))
    assert cpu_seconds(lambda: named(4096)) < 24 * max(eighth, 0.001)
