"""Rows in the order of a queue: what is ready first comes first."""

from __future__ import annotations

import numpy as np
from hypothesis import given

from flint.ir.program import Collective, Kind, Program, RegionKind
from flint.passes.base import run_passes
from flint.passes.rewrites.breadth_first import BreadthFirst
from flint.passes.rewrites.combine_collectives import independent
from tests.program_text import Rows, group
from tests.random_programs import QUICK, programs


def queued(rows: Rows) -> Program:
    return run_passes(rows.build(), [BreadthFirst()])


def names(program: Program) -> list[str]:
    return [program.row(i).scope for i in range(len(program)) if program.row(i).scope]


def test_what_is_ready_first_comes_first() -> None:
    rows = Rows()
    x = rows.parameter(scope="x")
    first = rows.op("sort", x, scope="a1")
    second = rows.op("sort", first, scope="a2")
    other = rows.op("sort", x, scope="b1")
    rows.result(rows.op("sort", second, rows.op("sort", other, scope="b2"), scope="end"))
    assert names(queued(rows)) == ["x", "a1", "b1", "a2", "b2", "end"]


def test_recomputation_starts_as_soon_as_it_can() -> None:
    """Nothing of the graph says that it waits for the gradient."""
    rows = Rows()
    x = rows.parameter()
    once = rows.op("sort", x, scope="forward")
    loss = rows.op("sort", rows.op("sort", once, scope="more"), scope="loss")
    again = rows.op("sort", x, scope="again")
    rows.result(rows.op("sort", loss, again))
    assert names(queued(rows)) == ["forward", "again", "more", "loss"]


def test_a_loop_waits_as_a_whole_and_begins_with_what_it_carries() -> None:
    rows = Rows()
    x = rows.parameter()
    initial = rows.op("sort", x, scope="initial")
    rows.begin_region(RegionKind.LOOP, 3)
    carried = rows.op("while.carry", initial, kind=Kind.VALUE, alias=initial, scope="carried")
    constant = rows.op("iota", scope="inside")
    made = rows.op("add", carried, constant, scope="made")
    rows.end_region([(carried, made)])
    beside = rows.op("sort", x, scope="beside")
    rows.result(rows.op("sort", made, beside, scope="after"))
    program = queued(rows)
    assert names(program) == ["initial", "beside", "carried", "inside", "made", "after"]
    (region,) = program.regions
    assert [program.row(i).scope for i in range(region.start, region.stop)] == names(program)[2:5]
    assert [program.row(i).scope for i in region.carries[0]] == ["carried", "made"]


def test_loops_inside_of_loops_stay_there() -> None:
    rows = Rows()
    x = rows.parameter()
    rows.begin_region(RegionKind.LOOP, 2)
    rows.begin_region(RegionKind.LOOP, 5)
    inner = rows.op("sort", x, scope="inner")
    rows.end_region()
    rows.op("sort", inner, scope="outer")
    rows.op("sort", x, scope="early")
    rows.end_region()
    rows.result(x)
    program = queued(rows)
    assert names(program) == ["inner", "early", "outer"]
    assert [(r.parent, r.trip_count, r.stop - r.start) for r in program.regions] == [
        (-1, 2, 3),
        (0, 5, 1),
    ]


def test_what_is_returned_comes_last() -> None:
    rows = Rows()
    x = rows.parameter()
    y = rows.op("sort", x)
    rows.op("send", rows.op("sort", y))
    rows.result(y)
    assert queued(rows).row(4).opcode == "flint.result"


@QUICK
@given(programs())
def test_it_is_the_same_program(program: Program) -> None:
    after = run_passes(program, [BreadthFirst()])
    for column in ("result_bytes", "flops", "comm_bytes", "opcode", "trips"):
        before, now = getattr(program, column), getattr(after, column)
        assert np.array_equal(np.sort(before), np.sort(now))
    assert len(after.deps) == len(program.deps)
    assert len(after.regions) == len(program.regions)


@QUICK
@given(programs())
def test_in_order_it_stays_so(program: Program) -> None:
    once = run_passes(program, [BreadthFirst()])
    again = run_passes(once, [BreadthFirst()])
    assert np.array_equal(once.opcode, again.opcode)
    assert np.array_equal(once.deps, again.deps)


def test_all_reduces_that_do_not_need_each_other_start_together() -> None:
    rows = Rows()
    x = rows.parameter()
    first = rows.all_reduce(rows.op("sort", x, scope="a"), scope="a sum")
    late = rows.op("sort", rows.op("sort", rows.op("sort", x), scope="b1"), scope="b2")
    second = rows.all_reduce(late, scope="b sum")
    third = rows.all_reduce(rows.op("sort", second), scope="c sum")  # needs another
    rows.result(first, second, third)
    assert names(queued(rows)) == ["a", "a sum", "b1", "b2", "b sum", "c sum"]
    program = rows.build()
    assert independent(program, Collective.ALL_REDUCE) == [[2, 6]]
    together = run_passes(program, [BreadthFirst(together=True)])
    assert names(together) == ["a", "b1", "b2", "a sum", "b sum", "c sum"]


def test_all_reduces_in_and_after_a_loop_are_not_together() -> None:
    rows = Rows()
    x = rows.parameter()
    rows.begin_region(RegionKind.LOOP, 3)
    carried = rows.op("while.carry", x, kind=Kind.VALUE, alias=x)
    inside = rows.all_reduce(carried)
    other = rows.op("sort", carried)
    rows.end_region(carries=((carried, inside),))
    rows.result(rows.all_reduce(other), rows.all_reduce(rows.op("sort", x)))
    program = rows.build()
    assert independent(program, Collective.ALL_REDUCE) == [[4, 6]]


def test_sets_that_would_wait_for_each_other_stay_apart() -> None:
    rows = Rows()
    x = rows.parameter()
    a1 = rows.all_reduce(x)
    b2 = rows.all_reduce(rows.op("sort", x), group("y"))
    a2 = rows.all_reduce(rows.op("sort", a1), group("y"))
    b1 = rows.all_reduce(rows.op("sort", b2))
    rows.result(a2, b1)
    program = rows.build()
    assert independent(program, Collective.ALL_REDUCE) == [[a1, b1]]
    run_passes(program, [BreadthFirst(together=True)])
