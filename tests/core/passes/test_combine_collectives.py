"""Small collectives joined: what may be joined, and that nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest

from flint.ir.mesh import AxisRef, Group
from flint.ir.program import Collective, Kind, Phase, Program, RegionKind
from flint.passes.base import run_passes
from flint.passes.rewrites.combine_collectives import CombineCollectives, independent
from tests.program_text import Rows, group
from tests.timeline_steps import Steps

BUCKETS = CombineCollectives(8, (Collective.ALL_REDUCE,), (Phase.BACKWARD,))


def collectives(program: Program) -> list[tuple[int, int]]:
    """Row and bytes of each."""
    rows = np.flatnonzero(program.kind == Kind.COLLECTIVE).tolist()
    return [(r, int(program.comm_bytes[r])) for r in rows]


def joined(steps: Steps, how: CombineCollectives = BUCKETS) -> Program:
    return run_passes(steps.builder.build(), [how])


def test_gradients_that_are_needed_late_share_a_bucket_until_it_is_full() -> None:
    steps = Steps()
    reduced = [steps.collective(1, steps.compute(1), result_bytes=4) for _ in range(5)]
    steps.compute(1, *reduced)
    program = joined(steps)
    # Each bucket stands where the last of its gradients is ready.
    assert collectives(program) == [(2, 8), (5, 8), (7, 4)]
    assert program.dependencies(2).tolist() == [0, 1]
    assert program.dependencies(8).tolist() == [2, 5, 7]


def test_what_is_needed_before_the_next_is_ready_stays_alone() -> None:
    steps = Steps()
    first = steps.collective(1, steps.compute(1), result_bytes=4)
    steps.collective(1, steps.compute(1, first), result_bytes=4)
    assert [size for _, size in collectives(joined(steps))] == [4, 4]


def test_what_is_ready_early_goes_to_the_first() -> None:
    steps = Steps()
    ready = [steps.compute(1), steps.compute(1)]
    first = steps.collective(1, ready[0], result_bytes=4)
    second = steps.collective(1, ready[1], result_bytes=4)
    steps.compute(1, first)
    steps.compute(1, second)
    assert collectives(joined(steps)) == [(2, 8)]


def test_a_sum_of_a_sum_is_not_joined_with_it() -> None:
    steps = Steps()
    first = steps.collective(1, steps.compute(1), result_bytes=4)
    steps.collective(1, result_bytes=4)
    steps.collective(1, first, result_bytes=4)
    program = joined(steps, CombineCollectives(100))
    assert [size for _, size in collectives(program)] == [8, 4]


@pytest.mark.parametrize("other", ["group", "phase", "large"])
def test_only_alike_and_small_ones_are_joined(other: str) -> None:
    steps = Steps()
    steps.collective(1, result_bytes=4)
    if other == "group":
        steps.collective(1, group=Group((AxisRef("pipe"),)), result_bytes=4)
    elif other == "phase":
        forward = CombineCollectives(8, (Collective.ALL_REDUCE,), (Phase.FORWARD,))
        steps.collective(1, result_bytes=4)
        assert len(collectives(joined(steps, forward))) == 2
        return
    else:
        steps.collective(1, result_bytes=9)
    assert len(collectives(joined(steps))) == 2


def test_a_loop_s_own_are_joined_in_it_and_carried_values_follow() -> None:
    steps = Steps()
    outside = steps.collective(1, result_bytes=4)
    steps.builder.begin_region(RegionKind.LOOP, 3)
    carry = steps.builder.add("while.carry", Kind.VALUE, deps=[outside])
    first = steps.collective(1, steps.compute(1, carry), result_bytes=4)
    second = steps.collective(1, steps.compute(1, carry), result_bytes=4)
    steps.builder.end_region([(carry, first)])
    steps.compute(1, second)
    program = joined(steps)
    assert collectives(program) == [(0, 4), (4, 8)]
    assert program.regions[0].carries == ((1, 4),)
    assert program.dependencies(5).tolist() == [4]


def test_all_reduces_that_do_not_need_each_other_start_together() -> None:
    rows = Rows()
    x = rows.parameter()
    first = rows.all_reduce(rows.op("sort", x, scope="a"), scope="a sum")
    late = rows.op("sort", rows.op("sort", rows.op("sort", x), scope="b1"), scope="b2")
    second = rows.all_reduce(late, scope="b sum")
    third = rows.all_reduce(rows.op("sort", second), scope="c sum")  # needs another
    rows.result(first, second, third)
    program = rows.build()
    assert independent(program, Collective.ALL_REDUCE, 10**9) == [[2, 6]]


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
    assert independent(program, Collective.ALL_REDUCE, 10**9) == [[4, 6]]


def test_sets_that_would_wait_for_each_other_stay_apart() -> None:
    rows = Rows()
    x = rows.parameter()
    a1 = rows.all_reduce(x)
    b2 = rows.all_reduce(rows.op("sort", x), group("y"))
    a2 = rows.all_reduce(rows.op("sort", a1), group("y"))
    b1 = rows.all_reduce(rows.op("sort", b2))
    rows.result(a2, b1)
    program = rows.build()
    assert independent(program, Collective.ALL_REDUCE, 10**9) == [[a1, b1]]
