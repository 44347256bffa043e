"""Who holds which shard, and who has to send it to whom: for any mesh and axes."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flint.ir.mesh import AxisRef, Group, Mesh, Route
from flint.ir.program import Collective
from flint.passes.extract.collectives import Communication, permutation_pairs, shard_holders
from tests.random_programs import QUICK, axis_sets, meshes


def shard_of(mesh: Mesh, axes: tuple[AxisRef, ...], rank: int) -> int:
    """Which of the shards a rank holds: row-major over the axes as they are listed."""
    place, shard = mesh.coordinates(rank), 0
    for axis in axes:
        size = mesh.axis_size(axis)
        minor = mesh.shape[axis.name] // (axis.pre_size * size)
        shard = shard * size + place[axis.name] // minor % size
    return shard


@QUICK
@given(st.data())
def test_holders_of_a_shard_are_listed_by_rank(data: st.DataObject) -> None:
    mesh = data.draw(meshes())
    axes = tuple(data.draw(st.permutations(data.draw(axis_sets(mesh)))))
    holders = shard_holders(axes, mesh)
    assert len(holders) == mesh.group_size(axes)
    shards = [shard_of(mesh, axes, rank) for rank in range(mesh.size)]
    for shard, ranks in enumerate(holders.tolist()):
        assert ranks == [rank for rank in range(mesh.size) if shards[rank] == shard]


@QUICK
@given(st.data())
def test_a_shard_comes_from_the_holder_at_the_same_place(data: st.DataObject) -> None:
    """The n-th rank that wants a shard has it from the n-th that holds it."""
    mesh = data.draw(meshes())
    axes = data.draw(axis_sets(mesh))
    used, wanted = (tuple(data.draw(st.permutations(axes))) for _ in range(2))
    if [mesh.axis_size(a) for a in used] != [mesh.axis_size(a) for a in wanted]:
        wanted = used
    held, asked = shard_holders(used, mesh), shard_holders(wanted, mesh)
    expected = {(int(s), int(t)) for s, t in zip(held.ravel(), asked.ravel(), strict=True)}
    pairs = permutation_pairs((used, ()), ((), wanted), mesh)
    assert {(int(s), int(t)) for s, t in pairs} == expected
    assert np.array_equal(pairs[:, 1], np.arange(mesh.size))


def test_messages_that_stay_at_home_are_not_needed() -> None:
    mesh = Mesh.parse("x=4,one=1")
    x, one = AxisRef("x"), AxisRef("one")
    cases = {
        Group((x,)): True,
        Group((one,)): False,
        Group(): False,
        Group(ranks=((0, 1), (2, 3))): True,
        None: False,
    }
    for (group, needed), size in product(cases.items(), (0, 8)):
        message = Communication(Collective.ALL_REDUCE, "sdy.all_reduce", size, group)
        assert message.is_needed(mesh) == (needed and size > 0)
    for route, needed in (
        (Route(), False),
        (Route((x,), 1), True),
        (Route(pairs=((0, 1),)), True),
    ):
        message = Communication(Collective.PERMUTE, "sdy.collective_permute", 8, route=route)
        assert message.is_needed(mesh) == needed
