"""Gradients that a loop adds up: one all-reduce behind it."""

from __future__ import annotations

from flint.ir.program import Collective, Kind, Program, RegionKind
from flint.passes.rewrites.sum_after_loops import SumAfterLoops
from tests.program_text import Rows, lines


def looped(*, begins: str = "broadcast_in_dim", reads_it: bool = False) -> Program:
    """Four turns that each add an all-reduced, transposed product to a carried sum."""
    b = Rows()
    x = b.parameter()
    start = b.op(begins, x)
    b.begin_region(RegionKind.LOOP, 4)
    carried = b.op("flint.carried", start, kind=Kind.VALUE)
    other = b.op("tanh", carried) if reads_it else x
    turned = b.op("transpose", b.all_reduce(b.op("dot_general", x, other)))
    total = b.op("add", carried, turned)
    b.end_region([(carried, total)])
    b.result(b.op("negate", total))
    return b.build()


def test_it_is_summed_once_behind_the_loop() -> None:
    before = looped()
    after = SumAfterLoops().apply(before)
    after.verify()
    assert lines(after)[2:] == [
        "%2 carried %1",
        "%3 dot_general %0",
        "%4 transpose %3",
        "%5 add %2 %4",
        "%6 all_reduce {x} 64->64 %5",
        "%7 negate %6",
        "%8 result %7",
    ]
    executed = [int(p.trips[p.collective == Collective.ALL_REDUCE].sum()) for p in (before, after)]
    assert executed == [4, 1]


def test_it_stays_where_the_loop_reads_the_sum_or_begins_with_something() -> None:
    for program in (looped(reads_it=True), looped(begins="tanh")):
        assert SumAfterLoops().apply(program) is program
