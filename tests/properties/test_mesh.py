"""Meshes, groups and routes: every rank once, inverse functions, one canonical form."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from flint.errors import FlintError
from flint.ir.mesh import MOST_AXES, AxisRef, Group, Mesh, Route
from flint.passes.axes import axes_of_members, positions_along
from tests.random_programs import QUICK, axis_sets, meshes, routes


def group_index(mesh: Mesh, axes: Iterable[AxisRef]) -> NDArray[np.int64]:
    """For each rank, the row of `groups(axes)` that holds it."""
    groups = mesh.groups(axes)
    index = np.empty(mesh.size, dtype=np.int64)
    index[groups.ravel()] = np.repeat(np.arange(groups.shape[0]), groups.shape[1])
    return index


@QUICK
@given(st.data())
def test_groups_tile_the_mesh(data: st.DataObject) -> None:
    mesh = data.draw(meshes())
    axes = data.draw(axis_sets(mesh))
    groups = mesh.groups(axes)
    assert groups.shape == (mesh.size // mesh.group_size(axes), mesh.group_size(axes))
    assert sorted(groups.ravel().tolist()) == list(range(mesh.size))
    index = group_index(mesh, axes)
    assert all(rank in groups[index[rank]] for rank in range(mesh.size))


@QUICK
@given(st.data())
def test_members_of_a_group_differ_only_along_its_axes(data: st.DataObject) -> None:
    mesh = data.draw(meshes())
    axes = data.draw(axis_sets(mesh))
    whole = {a.name for a in axes}
    for group in mesh.groups(axes)[:8]:
        places = [mesh.coordinates(int(rank)) for rank in group]
        for name in set(mesh.names) - whole:
            assert len({p[name] for p in places}) == 1
        assert len({tuple(_parts(mesh, axes, p)) for p in places}) == len(group)


def _parts(mesh: Mesh, axes: tuple[AxisRef, ...], place: dict[str, int]) -> list[int]:
    """Coordinates along (sub-)axes, from Shardy's definition: (pre, size, rest), major first."""
    found = []
    for ref in axes:
        size = mesh.axis_size(ref)
        minor = mesh.shape[ref.name] // (ref.pre_size * size)
        found.append(place[ref.name] // minor % size)
    return found


@QUICK
@given(st.data())
def test_rank_and_coordinates_are_inverse(data: st.DataObject) -> None:
    mesh = data.draw(meshes())
    rank = data.draw(st.integers(0, mesh.size - 1))
    assert mesh.rank(mesh.coordinates(rank)) == rank
    row_major = 0
    for name, size in mesh.shape.items():
        row_major = row_major * size + mesh.coordinates(rank)[name]
    assert row_major == rank


@QUICK
@given(st.data())
def test_canonical_is_idempotent_and_means_the_same(data: st.DataObject) -> None:
    mesh = data.draw(meshes())
    axes = data.draw(axis_sets(mesh))
    shuffled = data.draw(st.permutations(axes))
    canonical = mesh.canonical(shuffled)
    assert mesh.canonical(canonical) == canonical == mesh.canonical(axes)
    assert all(mesh.axis_size(a) > 1 for a in canonical)
    assert np.array_equal(mesh.groups(canonical), mesh.groups(axes))


@QUICK
@given(st.data())
def test_targets_and_sources_are_inverse(data: st.DataObject) -> None:
    mesh = data.draw(meshes())
    route = data.draw(routes(mesh))
    targets, sources = route.targets(mesh), route.sources(mesh)
    for one, other in ((targets, sources), (sources, targets)):
        sends = np.flatnonzero(one >= 0)
        assert np.array_equal(other[one[sends]], sends)
    assert (targets >= 0).sum() == (sources >= 0).sum()


@QUICK
@given(st.data())
def test_messages_stay_in_the_group_of_their_route(data: st.DataObject) -> None:
    mesh = data.draw(meshes())
    route = data.draw(routes(mesh))
    index = group_index(mesh, route.axes or map(AxisRef, mesh.names))
    targets = route.targets(mesh)
    sends = np.flatnonzero(targets >= 0)
    assert np.array_equal(index[sends], index[targets[sends]])


@QUICK
@given(st.data())
def test_axes_without_a_part_are_its_complement(data: st.DataObject) -> None:
    mesh = data.draw(meshes())
    axes = data.draw(axis_sets(mesh))
    part = data.draw(st.sets(st.sampled_from(axes))) if axes else set()
    rest = mesh.without(axes, part)
    assert rest is not None
    assert mesh.canonical([*rest, *part]) == mesh.canonical(axes)
    assert mesh.group_size(rest) * mesh.group_size(part) == mesh.group_size(axes)


@QUICK
@given(st.data())
def test_a_part_that_is_not_inside_has_no_complement(data: st.DataObject) -> None:
    mesh = data.draw(meshes())
    axes, part = data.draw(axis_sets(mesh)), data.draw(axis_sets(mesh))
    rest = mesh.without(axes, part)
    index, inner = group_index(mesh, axes), group_index(mesh, part)
    pairs = zip(inner.tolist(), index.tolist(), strict=True)
    refined = len(set(pairs)) == len(set(inner.tolist()))
    if rest is not None:
        assert refined
        assert math.prod(map(mesh.axis_size, rest)) * mesh.group_size(part) == mesh.group_size(axes)
    elif refined:  # only a part that cuts across a factor of an axis
        assert any(a.size is not None for a in mesh.canonical([*axes, *part]))


def _position(mesh: Mesh, axes: tuple[AxisRef, ...], rank: int) -> int:
    """Where a rank is in its group, row-major over `axes`."""
    position = 0
    parts = _parts(mesh, axes, mesh.coordinates(rank))
    for ref, part in zip(axes, parts, strict=True):
        position = position * mesh.axis_size(ref) + part
    return position


@QUICK
@given(st.data())
def test_positions_are_row_major_over_the_axes(data: st.DataObject) -> None:
    mesh = data.draw(meshes())
    axes = mesh.canonical(data.draw(axis_sets(mesh)))
    expected = [_position(mesh, axes, rank) for rank in range(mesh.size)]
    ranks = np.arange(mesh.size, dtype=np.int64)
    assert positions_along(ranks, axes, mesh).tolist() == expected
    for group in mesh.groups(axes)[:8]:
        assert [expected[rank] for rank in group] == list(range(len(group)))


@QUICK
@given(st.data())
def test_a_message_goes_as_far_as_its_route_says(data: st.DataObject) -> None:
    """Each target is looked up in the group of its sender, as `Route` is documented."""
    mesh = data.draw(meshes().filter(lambda m: m.size <= 96))
    route = data.draw(routes(mesh))
    axes = route.axes or tuple(map(AxisRef, mesh.names))
    index, size = group_index(mesh, axes), mesh.group_size(axes)
    at = {(int(index[r]), _position(mesh, axes, r)): r for r in range(mesh.size)}
    listed = dict(route.pairs)
    for rank, found in enumerate(route.targets(mesh).tolist()):
        position = _position(mesh, axes, rank)
        goal = listed.get(position, -1) if listed else position + route.offset
        if not listed and route.wrap:
            goal %= size
        assert found == at.get((int(index[rank]), goal), -1)


def test_a_route_wraps_unless_it_says_not() -> None:
    mesh = Mesh.parse("x=4")
    ring = Route((AxisRef("x"),), 1)
    assert ring.targets(mesh).tolist() == [1, 2, 3, 0]
    assert Route((AxisRef("x"),), 1, wrap=False).targets(mesh).tolist() == [1, 2, 3, -1]
    assert Route((AxisRef("x"),), -1, wrap=False).targets(mesh).tolist() == [-1, 0, 1, 2]
    assert (str(ring), str(Route((), -1, wrap=False))) == ("x+1", "ranks-1 (no wrap)")
    assert str(Route((AxisRef("x", 1, 2),), pairs=((0, 1), (1, 0)))) == "2 pairs of x:(1)2"


@QUICK
@given(st.data())
def test_one_group_tells_its_axes(data: st.DataObject) -> None:
    mesh = data.draw(meshes())
    axes = mesh.canonical(data.draw(axis_sets(mesh)))
    groups = mesh.groups(axes)
    group = groups[data.draw(st.integers(0, len(groups) - 1))]
    assert axes_of_members(np.sort(group), mesh) == axes


@QUICK
@given(st.data())
def test_ranks_that_are_no_group_have_no_axes(data: st.DataObject) -> None:
    """A group moved along by some ranks is often none: it would wrap around an axis."""
    mesh = data.draw(meshes())
    axes = mesh.canonical(data.draw(axis_sets(mesh)))
    group = np.sort(mesh.groups(axes)[0])
    moved = group + data.draw(st.integers(0, mesh.size - 1 - int(group[-1])))
    chosen = data.draw(st.sets(st.integers(0, mesh.size - 1), min_size=1, max_size=12))
    for members in (moved, np.array(sorted(chosen), dtype=np.int64)):
        found = axes_of_members(members, mesh)
        whole = {tuple(sorted(g)) for g in mesh.groups(axes if found is None else found).tolist()}
        assert (tuple(members.tolist()) in whole) == (found is not None)


def test_strides_that_are_no_factors_of_each_other_are_no_axes() -> None:
    """0, 1, 3, 4 of six ranks: strides of 3 and of 1, which no two sub-axes have."""
    assert axes_of_members(np.array([0, 1, 3, 4]), Mesh.parse("x=6")) is None
    assert axes_of_members(np.array([0, 2, 4]), Mesh.parse("x=6")) == (AxisRef("x", 1, 3),)


def test_a_group_of_lists_is_as_large_as_its_largest() -> None:
    mesh = Mesh.parse("x=6")
    uneven = Group(ranks=((0, 1, 2), (3,), (4, 5)))
    assert (uneven.size(mesh), uneven.is_listed) == (3, True)
    assert [part.tolist() for part in uneven.members(mesh)] == [[0, 1, 2], [3], [4, 5]]
    assert str(uneven) == "3 explicit groups of 3"
    some = Group((AxisRef("x"),), positions=(0, 3))
    assert (some.size(mesh), some.is_listed, str(some)) == (2, True, "x[0,3]")
    assert np.array_equal(some.members(mesh), [[0, 3]])
    whole = Group((AxisRef("x"),))
    assert (whole.size(mesh), whole.is_listed, str(whole)) == (6, False, "x")


def test_what_is_no_mesh_is_refused() -> None:
    names = tuple(f"a{i}" for i in range(MOST_AXES + 1))
    assert len(Mesh(names[:16], (1,) * 16).names) == 16 == MOST_AXES
    bad: list[tuple[tuple[str, ...], tuple[int, ...]]] = [
        (names, (1,) * len(names)),
        ((), ()),
        ((), (2,)),
        (("x",), (2, 2)),
        (("x", "x"), (2, 2)),
        (("x", "y"), (2, 0)),
        ((" x",), (2,)),
        (("",), (2,)),
        (("x\n",), (2,)),
        ((3,), (2,)),  # type: ignore[arg-type]
        (("x", "y"), (2**12, 2**12 + 1)),
    ]
    for axes, sizes in bad:
        with pytest.raises(FlintError, match="FL101"):
            Mesh(axes, sizes)
    assert Mesh(("x", "y"), (2**12, 2**12)).size == 2**24


def test_sub_axes_have_to_divide_their_axis() -> None:
    mesh = Mesh.parse("x=12")
    mesh.require([AxisRef("x", 2, 3)])
    mesh.require([AxisRef("x", 1, 2), AxisRef("x", 6, 2)])
    for parts in ([("x", 5, 2)], [("x", 2, 4)], [("x", 1, 4), ("x", 2, 6)], [("x", 4, 6)]):
        with pytest.raises(FlintError, match="FL102"):
            mesh.require(AxisRef(*part) for part in parts)
    with pytest.raises(FlintError, match="FL102"):
        mesh.require([AxisRef("y")])
