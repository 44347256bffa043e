"""Collectives among one device: before and after."""

from __future__ import annotations

import pytest

from flint.ir.mesh import AxisRef, Group, Mesh, Route
from flint.ir.program import Collective, Kind, RegionKind
from flint.passes.rewrites.single_member_groups import DropSingleMemberGroups
from tests.program_text import Rows, group, lines

MESH = Mesh(("x", "one"), (8, 1))
ONE = group("one")


def test_readers_read_what_the_collective_read_through_any_chain() -> None:
    b = Rows(MESH)
    p = b.parameter()
    x = b.op("tanh", p)
    for _ in range(5):
        x = b.all_reduce(x, ONE)
    x = b.all_slice(x, Group(ranks=tuple((r,) for r in range(8))), part_bytes=64)
    x = b.all_reduce(x, group("x", "one"))
    b.result(x)
    program = b.build()
    with pytest.raises(AssertionError, match="one member"):
        program.verify()
    after = DropSingleMemberGroups().apply(program)
    after.verify()
    assert lines(after) == [
        "%0 argument",
        "%1 tanh %0",
        "%2 all_reduce {x,one} 64->64 %1",
        "%3 result %2",
    ]
    assert after.groups == (group("x", "one"),)


def test_one_that_a_loop_yields_becomes_a_value() -> None:
    b = Rows(MESH)
    p = b.parameter()
    b.begin_region(RegionKind.LOOP, 3)
    c = b.op("flint.carried", p, kind=Kind.VALUE)
    y = b.all_reduce(p, ONE, flops=16)
    b.end_region([(c, y)])
    b.result(c)
    after = DropSingleMemberGroups().apply(b.build())
    after.verify()
    assert lines(after)[2] == "%2 identity %0"
    assert after.regions[0].carries == ((1, 2),)
    assert after.flops.sum() == 0


@pytest.mark.parametrize(
    ("route", "stays"),
    [
        (Route((AxisRef("one"),), 1), False),
        (Route((AxisRef("one"),), pairs=((0, 0),)), False),
        (Route((AxisRef("one"),), 1, wrap=False), True),  # nobody sends: the result is zeros
        (Route((AxisRef("x"),), 1), True),
        (Route((), 1), True),
    ],
)
def test_a_permute_among_one_position_goes(route: Route, stays: bool) -> None:
    b = Rows(MESH)
    p = b.parameter()
    x = b.op(
        "collective_permute",
        p,
        kind=Kind.COLLECTIVE,
        collective=Collective.PERMUTE,
        route=route,
        comm_bytes=64,
    )
    b.result(x)
    after = DropSingleMemberGroups().apply(b.build())
    assert len(after) == 2 + stays


def test_larger_groups_are_left_alone() -> None:
    b = Rows(MESH)
    b.all_reduce(b.parameter(), group("x"))
    program = b.build()
    assert DropSingleMemberGroups().apply(program) is program
