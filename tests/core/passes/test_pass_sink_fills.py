"""Fills are made in the loops that read them: before and after of each rule."""

from __future__ import annotations

from typing import Any

from flint.ir.program import Flag, Kind, RegionKind
from flint.passes.base import run_passes
from flint.passes.rewrites.sink_fills import SinkFills
from tests.program_text import Rows, lines


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
