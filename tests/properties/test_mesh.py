"""Meshes, groups and routes: every rank once, inverse functions, one canonical form."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flint.ir.mesh import AxisRef, Mesh
from flint.passes.axes import subtract
from tests.random_programs import QUICK, axis_sets, meshes, routes


@QUICK
@given(st.data())
def test_groups_tile_the_mesh(data: st.DataObject) -> None:
    mesh = data.draw(meshes())
    axes = data.draw(axis_sets(mesh))
    groups = mesh.groups(axes)
    assert groups.shape == (mesh.size // mesh.group_size(axes), mesh.group_size(axes))
    assert sorted(groups.ravel().tolist()) == list(range(mesh.size))
    index = mesh.group_index(axes)
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
    index = mesh.group_index(route.axes or map(AxisRef, mesh.names))
    targets = route.targets(mesh)
    sends = np.flatnonzero(targets >= 0)
    assert np.array_equal(index[sends], index[targets[sends]])


@QUICK
@given(st.data())
def test_axes_without_a_part_are_its_complement(data: st.DataObject) -> None:
    mesh = data.draw(meshes())
    axes = data.draw(axis_sets(mesh))
    part = data.draw(st.sets(st.sampled_from(axes))) if axes else set()
    rest = subtract(mesh, axes, part)
    assert rest is not None
    assert mesh.canonical([*rest, *part]) == mesh.canonical(axes)
    assert mesh.group_size(rest) * mesh.group_size(part) == mesh.group_size(axes)


@QUICK
@given(st.data())
def test_a_part_that_is_not_inside_has_no_complement(data: st.DataObject) -> None:
    mesh = data.draw(meshes())
    axes, part = data.draw(axis_sets(mesh)), data.draw(axis_sets(mesh))
    rest = subtract(mesh, axes, part)
    index, inner = mesh.group_index(axes), mesh.group_index(part)
    pairs = zip(inner.tolist(), index.tolist(), strict=True)
    refined = len(set(pairs)) == len(set(inner.tolist()))
    if rest is not None:
        assert refined
        assert math.prod(map(mesh.axis_size, rest)) * mesh.group_size(part) == mesh.group_size(axes)
    elif refined:  # only a part that cuts across a factor of an axis
        assert any(a.size is not None for a in mesh.canonical([*axes, *part]))
