"""all_slice(all-reduce): before and after."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flint.ir.mesh import AxisRef, Group, Mesh
from flint.ir.program import Collective, Flag, Kind, RegionKind
from flint.passes.rewrites.reduce_scatter import FormReduceScatter
from tests.program_text import MESH, Rows, group, lines


def test_a_slice_over_the_same_axes_makes_a_reduce_scatter() -> None:
    b = Rows()
    p = b.parameter()
    reduced = b.all_reduce(p, cause="k", scope="dot", stream="comm", flags=Flag.ASYNC)
    b.result(b.all_slice(reduced, group("x"), part_bytes=8, scope="slice"))
    after = FormReduceScatter().apply(b.build())
    after.verify()
    assert lines(after) == [
        "%0 argument",
        "%1 reduce_scatter {x} 64->8 %0",
        "%2 result %1",
    ]
    row = after.row(1)
    assert (row.kind, row.collective) == (Kind.COLLECTIVE, Collective.REDUCE_SCATTER)
    assert (row.shape, row.operand_bytes) == ((2,), 64)
    assert (row.cause, row.scope, row.stream, row.flags) == (
        "k",
        "dot",
        "comm",
        Flag.ASYNC | Flag.PARTITIONED,
    )
    assert "sdy.all_slice" not in after.opcodes


def test_the_order_of_axes_and_a_value_row_do_not_matter() -> None:
    b = Rows()
    reduced = b.all_reduce(b.parameter(), group("x", "y"))
    b.result(b.all_slice(reduced, group("y", "x"), part_bytes=4, kind=Kind.VALUE))
    after = FormReduceScatter().apply(b.build())
    assert lines(after)[1] == "%1 reduce_scatter {x,y} 64->4 %0"


def test_a_sum_may_be_sliced_in_another_shape() -> None:
    b = Rows()
    reduced = b.all_reduce(b.parameter())
    shaped = b.op("reshape", reduced, kind=Kind.VALUE, alias=reduced, flags=Flag.VIEW)
    b.result(b.all_slice(shaped, group("x"), part_bytes=8))
    after = FormReduceScatter().apply(b.build())
    after.verify()
    assert lines(after)[1:] == ["%1 reduce_scatter {x} 64->8 %0", "%2 result %1"]


def test_a_slice_over_some_axes_leaves_an_all_reduce_of_the_part() -> None:
    b = Rows()
    reduced = b.all_reduce(b.parameter(), group("x", "y"), cause="k", stream="comm")
    b.result(b.all_slice(reduced, group("y"), part_bytes=16))
    b.all_reduce(b.parameter(), group("x"))
    after = FormReduceScatter().apply(b.build())
    after.verify()
    assert lines(after)[:4] == [
        "%0 argument",
        "%1 reduce_scatter {y} 64->16 %0",
        "%2 all_reduce {x} 16->16 %1",
        "%3 result %2",
    ]
    assert after.groups == (group("y"), group("x"))
    assert [after.row(i).shape for i in (1, 2)] == [(4,), (4,)]
    assert [after.row(i).cause for i in (1, 2)] == ["k", "k"]
    assert [after.row(i).stream for i in (1, 2)] == ["comm", "comm"]
    assert after.row(2).operand_bytes == 16


def test_slices_of_slices_are_taken_one_after_the_other() -> None:
    b = Rows()
    reduced = b.all_reduce(b.parameter(), group("x", "y"))
    part = b.all_slice(reduced, group("y"), part_bytes=16)
    b.result(b.all_slice(part, group("x"), part_bytes=2))
    b.all_reduce(b.parameter(), group("x"))
    after = FormReduceScatter().apply(b.build())
    assert [text.partition(" ")[2] for text in lines(after)[1:3]] == [
        "reduce_scatter {y} 64->16 %0",
        "reduce_scatter {x} 16->2 %1",
    ]


def test_inside_a_loop_the_yielded_slice_keeps_its_place() -> None:
    b = Rows()
    p = b.parameter()
    b.begin_region(RegionKind.LOOP, 3)
    c = b.op("flint.carried", p, kind=Kind.VALUE)
    part = b.all_slice(b.all_reduce(c), group("x"), part_bytes=8)
    b.end_region([(c, part)])
    after = FormReduceScatter().apply(b.build())
    after.verify()
    assert after.regions[0].carries == ((1, 2),)
    assert lines(after)[2] == "%2 reduce_scatter {x} 64->8 %1"


def _another_axis(b: Rows) -> None:
    b.all_slice(b.all_reduce(b.parameter()), group("y"), part_bytes=16)


def _more_axes(b: Rows) -> None:
    b.all_slice(b.all_reduce(b.parameter()), group("x", "y"), part_bytes=2)


def _another_reader(b: Rows) -> None:
    reduced = b.all_reduce(b.parameter())
    b.result(b.all_slice(reduced, group("x"), part_bytes=8), reduced)


def _listed_ranks(b: Rows) -> None:
    listed = Group(ranks=(tuple(range(32)),))
    b.all_slice(b.all_reduce(b.parameter(), listed), listed, part_bytes=2)


def _not_a_reduce(b: Rows) -> None:
    b.all_slice(b.op("tanh", b.parameter()), group("x"), part_bytes=8)


def _another_region(b: Rows) -> None:
    reduced = b.all_reduce(b.parameter())
    b.begin_region(RegionKind.LOOP, 3)
    b.all_slice(reduced, group("x"), part_bytes=8)
    b.end_region()


@pytest.mark.parametrize(
    "write",
    [_another_axis, _more_axes, _another_reader, _listed_ranks, _not_a_reduce, _another_region],
)
def test_anything_else_is_left_alone(write: Callable[[Rows], None]) -> None:
    b = Rows()
    write(b)
    program = b.build()
    program.verify()
    assert FormReduceScatter().apply(program) is program


@pytest.mark.parametrize(
    ("axes", "part", "rest"),
    [
        (("x", "y"), ("x",), ("y",)),
        (("x",), ("x",), ()),
        (("x",), (AxisRef("x", 1, 2),), (AxisRef("x", 2, 4),)),
        (("x",), (AxisRef("x", 2, 4),), (AxisRef("x", 1, 2),)),
        (("x",), (AxisRef("x", 2, 2),), (AxisRef("x", 1, 2), AxisRef("x", 4, 2))),
        ((AxisRef("x", 2, 4),), (AxisRef("x", 4, 2),), (AxisRef("x", 2, 2),)),
        (("y",), ("x",), None),
        ((AxisRef("x", 2, 4),), (AxisRef("x", 1, 2),), None),
        ((AxisRef("x", 1, 4),), (AxisRef("x", 2, 4),), None),
    ],
)
def test_axes_without_a_part(
    axes: tuple[str, ...], part: tuple[str, ...], rest: tuple[str, ...] | None
) -> None:
    expected = None if rest is None else group(*rest).axes
    assert MESH.without(group(*axes).axes, group(*part).axes) == expected


TWO, THREE = Mesh(("x", "y"), (8, 4)), Mesh(("x", "y", "z"), (8, 4, 2))


@pytest.mark.parametrize(
    ("mesh", "sliced", "other", "scatters"),
    [
        (TWO, "y", "x", 1),  # the mesh's last axis, and a sum over the rest of the axes
        (TWO, "y", "y", 1),
        (TWO, "y", None, 0),
        (TWO, "x", "y", 0),  # not the mesh's last
        (THREE, "y", "x", 0),  # not over the whole mesh
    ],
)
@pytest.mark.parametrize("opcode", ["dot", "scatter"])
def test_a_sum_stays_whole_unless_another_sum_has_its_groups(
    mesh: Mesh, sliced: str, other: str | None, scatters: int, opcode: str
) -> None:
    b = Rows(mesh)
    total = b.all_reduce(b.op(opcode, b.parameter()), group("x", "y"))
    b.result(b.all_slice(total, group(sliced), part_bytes=8))
    if other is not None:
        b.result(b.all_reduce(b.parameter(), group(other)))
    after = FormReduceScatter().apply(b.build())
    after.verify()
    kinds = [after.row(i).collective for i in range(len(after))]
    assert kinds.count(Collective.REDUCE_SCATTER) == scatters


def test_a_slice_of_two_dimensions_stays_a_slice() -> None:
    b = Rows()
    b.all_slice(b.all_reduce(b.parameter(), shape=(4, 4)), group("x"), part_bytes=8, shape=(2, 1))
    program = b.build()
    assert FormReduceScatter().apply(program) is program
