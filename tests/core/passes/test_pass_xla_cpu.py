"""Kernels of XLA for CPUs: before and after of each rule."""

from __future__ import annotations

from typing import Any

from hypothesis import given

from flint.ir.program import Collective, Flag, Kind, Program, RegionKind
from flint.passes.base import run_passes
from flint.passes.fusion.xla_cpu import FuseXlaCpu
from flint.passes.profiles import profile
from flint.passes.rewrites.single_trips import OpenSingleTrips
from flint.passes.rewrites.sink_fills import SinkFills
from flint.passes.rewrites.turn_operands import TurnOperands
from flint.passes.rewrites.whole_sums import SumWhole
from tests.program_text import Rows, group, lines
from tests.random_programs import QUICK, programs

#: Both operands of a product of a batch of two, [2, 2, 4] and [2, 4, 2].
DOT: dict[str, Any] = {"dims": (2, 2, 2, 4), "flops": 64, "shape": (2, 2, 2)}
LHS: dict[str, Any] = {"shape": (2, 2, 4)}
RHS: dict[str, Any] = {"shape": (2, 4, 2)}
#: A view of 16 elements.
FLAT: dict[str, Any] = {"shape": (4, 4), "operand_bytes": 0}


def fused(rows: Rows) -> Program:
    program = rows.build()
    after = run_passes(program, [FuseXlaCpu()])
    assert after.flops.sum() == program.flops.sum()
    return after


def test_loops_compute_what_they_read_once_in_each() -> None:
    b = Rows()
    x = b.op("multiply", b.parameter(), flops=16)
    b.result(b.op("negate", x, flops=16), b.op("abs", x, flops=16))
    after = fused(b)
    assert lines(after) == [
        "%0 argument",
        "%1 loop %0",
        "%2 loop %0",
        "%3 result %1 %2",
    ]
    assert [after.row(i).flops for i in (1, 2)] == [16, 32]  # counted once


def test_costly_functions_are_computed_once() -> None:
    b = Rows()
    x = b.op("exponential", b.parameter())
    b.result(b.op("negate", x), b.op("abs", x))
    assert lines(fused(b))[1:3] == ["%1 exponential %0", "%2 negate %1"]
    b = Rows()
    x = b.op("exponential", b.parameter())
    cast = b.op("convert", x)  # both readers take it, and so read the exponential
    b.result(b.op("negate", cast), b.op("abs", cast))
    assert lines(fused(b))[1:3] == ["%1 exponential %0", "%2 loop %1"]


def test_a_costly_function_is_not_computed_for_each_repetition() -> None:
    b = Rows()
    x = b.op("rsqrt", b.parameter())
    b.result(b.op("broadcast_in_dim", x, result_bytes=640, shape=(10, 16)))
    assert lines(fused(b))[1] == "%1 rsqrt %0"


def test_a_quotient_by_what_is_repeated_is_cheap() -> None:
    for repeats, expected in ((True, "%2 loop %0 %1"), (False, "%2 divide %0 %1")):
        b = Rows()
        x, s = b.parameter(), b.parameter(shape=(1,), result_bytes=4)
        divisor = b.op("broadcast_in_dim", s, operand_bytes=4) if repeats else s
        y = b.op("divide", x, divisor)
        b.result(b.op("negate", y), b.op("abs", y))
        assert lines(fused(b))[2] == expected


def test_what_reads_more_than_it_makes_is_computed_by_all_or_stored_for_all() -> None:
    b = Rows()
    x = b.op("add", b.parameter(), b.parameter())
    b.result(b.op("negate", x), b.op("sort", x))
    assert lines(fused(b))[2:4] == ["%2 add %0 %1", "%3 negate %2"]
    b = Rows()
    x = b.op("abs", b.parameter())  # one operand: the loop reads as much either way
    b.result(b.op("negate", x), b.op("sort", x))
    assert lines(fused(b))[1:3] == ["%1 abs %0", "%2 loop %0"]


def test_reductions_take_arithmetic_that_only_they_read() -> None:
    for name, several, expected in (
        ("multiply", False, "%1 reduce %0"),
        ("multiply", True, "%1 multiply %0"),
        ("select", False, "%1 select %0"),
    ):
        b = Rows()
        x = b.op(name, b.parameter())
        total = b.op("reduce", x, result_bytes=4, shape=())
        b.result(total, *([b.op("sort", x)] if several else []))
        assert lines(fused(b))[1] == expected


def test_products_are_alone() -> None:
    b = Rows()
    x = b.op("negate", b.parameter())
    b.result(b.op("tanh", b.op("dot_general", x, b.parameter(), **DOT)))
    assert [r.partition(" ")[2] for r in lines(fused(b))] == [
        "argument",
        "negate %0",
        "argument",
        "dot_general %1 %2",
        "tanh %3",
        "result %4",
    ]


def test_a_value_seen_in_another_shape_is_computed_in_that_shape() -> None:
    b = Rows()
    x = b.op("negate", b.parameter())
    flat = b.op("reshape", x, kind=Kind.VALUE, flags=Flag.VIEW, alias=x, **FLAT)
    b.result(b.op("abs", x), b.op("sort", flat))
    after = fused(b)
    assert lines(after)[1:4] == ["%1 layout %0", "%2 loop %0", "%3 sort %1"]
    b = Rows()
    x = b.op("sort", b.parameter())  # not computed again: the view stays one
    flat = b.op("reshape", x, kind=Kind.VALUE, flags=Flag.VIEW, alias=x, **FLAT)
    b.result(b.op("abs", x), b.op("sort", flat))
    assert fused(b).row(2).kind is Kind.VALUE


def turned(b: Rows) -> Program:
    return run_passes(b.build(), [TurnOperands()])


def test_an_operand_in_another_order_is_copied_for_each_product() -> None:
    b = Rows()
    x, w = b.parameter(**LHS), b.parameter(**RHS)
    first = b.op("dot_general", x, w, flags=Flag.TURNED_LAST, **DOT)
    second = b.op("dot_general", x, w, flags=Flag.TURNED_LAST, **DOT)
    straight = b.op("dot_general", x, w, **DOT)
    b.result(first, second, straight)
    assert lines(turned(b))[2:7] == [
        "%2 transpose  %1".replace("  ", " "),
        "%3 dot_general %0 %2",
        "%4 transpose %1",
        "%5 dot_general %0 %4",
        "%6 dot_general %0 %1",
    ]


def test_operands_of_more_dimensions_are_seen_as_matrices_once() -> None:
    b = Rows()
    x, w = b.parameter(shape=(2, 2, 4)), b.parameter(shape=(4, 4))
    flat: dict[str, Any] = {"dims": (1, 4, 4, 4), "shape": (2, 2, 4)}
    b.result(b.op("dot_general", x, w, **flat), b.op("dot_general", x, w, **flat))
    after = turned(b)
    assert lines(after)[2:5] == ["%2 reshape %0", "%3 dot_general %1 %2", "%4 dot_general %1 %2"]
    assert (after.row(2).kind, after.row(2).alias) == (Kind.VALUE, 0)
    assert after.row(3).shape == (16,)  # a matrix: nothing of three dimensions is written over it


def test_plain_products_stay() -> None:
    b = Rows()
    b.result(b.op("dot_general", b.parameter(**LHS), b.parameter(**RHS), **DOT))
    before = b.build()
    assert TurnOperands().apply(before) is before


def loop(repeated: str, *, carried: bool) -> Rows:
    """A loop that reads, or hands on, what repeats a constant or an argument."""
    b = Rows()
    small: dict[str, Any] = {"shape": (), "result_bytes": 4}
    x = (
        b.parameter(**small)
        if repeated == "argument"
        else b.op("constant", kind=Kind.VALUE, **small)
    )
    fill = b.op("broadcast_in_dim", x, operand_bytes=4)
    b.begin_region(RegionKind.LOOP, 3)
    held = (
        b.op("while.carry", fill, kind=Kind.VALUE, alias=fill, flags=Flag.VIEW) if carried else fill
    )
    b.op("sort", held)
    b.end_region(carries=((held, held),) if carried else ())
    return b


def test_what_repeats_a_value_is_made_in_the_loop_that_reads_it() -> None:
    after = run_passes(loop("argument", carried=False).build(), [SinkFills()])
    assert lines(after)[2:] == ["%2 broadcast_in_dim %0", "%3 sort %2"]
    assert after.row(2).region == 0


def test_what_a_loop_hands_on_is_made_in_it_if_it_repeats_a_constant() -> None:
    after = run_passes(loop("constant", carried=True).build(), [SinkFills()])
    assert lines(after)[2:] == ["%2 carry %1", "%3 broadcast_in_dim %0", "%4 sort %3"]
    before = loop("argument", carried=True).build()
    assert SinkFills().apply(before) is before


def test_an_inner_loop_begins_with_a_fill_of_the_outer_one() -> None:
    b = Rows()
    zero = b.op("constant", kind=Kind.VALUE, shape=(), result_bytes=4, operand_bytes=0)
    fill = b.op("broadcast_in_dim", zero, operand_bytes=4)
    b.begin_region(RegionKind.LOOP, 3)
    b.op("sort")
    b.begin_region(RegionKind.LOOP, 2)
    total = b.op("while.carry", fill, kind=Kind.VALUE, alias=fill)
    more = b.op("sort", total)
    b.end_region(carries=((total, more),))
    b.end_region()
    after = run_passes(b.build(), [SinkFills()])
    assert lines(after)[2:5] == ["%2 broadcast_in_dim %0", "%3 sort", "%4 carry %2"]
    assert (after.row(2).region, after.row(4).alias) == (0, 2)


def test_a_reduce_scatter_is_an_all_reduce_and_a_slice() -> None:
    b = Rows()
    x = b.parameter()
    part = b.op(
        "sdy.reduce_scatter",
        x,
        kind=Kind.COLLECTIVE,
        collective=Collective.REDUCE_SCATTER,
        group=group("x"),
        comm_bytes=64,
        result_bytes=8,
        shape=(2,),
    )
    b.result(part)
    after = run_passes(b.build(), [SumWhole()])
    assert [r.split()[1] for r in lines(after)] == [
        "argument",
        "all_reduce",
        "dynamic_slice",
        "result",
    ]
    assert [after.row(i).result_bytes for i in (1, 2)] == [64, 8]
    assert [after.row(i).deps for i in (1, 2, 3)] == [(0,), (1,), (2,)]
    assert after.row(1).shape == (16,) and after.row(2).kind is Kind.COMPUTE


def test_a_loop_of_one_trip_is_opened() -> None:
    for trips, regions in ((1, 1), (2, 2)):
        b = Rows()
        x = b.parameter()
        b.begin_region(RegionKind.LOOP, trips)
        outer = b.op("while.carry", x, kind=Kind.VALUE, alias=x)
        b.begin_region(RegionKind.LOOP, 3)
        inner = b.op("while.carry", outer, kind=Kind.VALUE, alias=outer)
        made = b.op("sort", inner)
        b.end_region(carries=((inner, made),))
        b.end_region(carries=((outer, made),))
        b.result(made)
        after = run_passes(b.build(), [OpenSingleTrips()])
        assert len(after.regions) == regions and len(after) == 5
        assert (Flag.VIEW in after.row(1).flags) == (trips == 1)
        assert after.regions[-1].trip_count == 3 and after.row(3).region == regions - 1


@QUICK
@given(program=programs())
def test_any_program_survives(program: Program) -> None:
    target = profile("xla-cpu")
    run_passes(program, [*target.passes, *target.kernels])
