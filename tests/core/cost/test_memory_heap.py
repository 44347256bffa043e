"""Memory as XLA lays it out: rows past loops, and places of buffers in one heap."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

import flint
from flint.backends.cost.memory.memory import memory_use
from flint.backends.cost.memory.stored import stored
from flint.backends.cost.simulate.timeline import POLICIES
from flint.cluster.stack import Stack
from flint.ir.op_class import OpClass
from flint.ir.program import Kind, Program, RegionKind
from flint.ir.workload import Workload
from flint.passes.base import run_passes
from flint.passes.profiles import kernels_for
from flint.passes.rewrites.delay_past_loops import DelayPastLoops
from tests.program_text import Rows

KB = 1024


def stairs() -> Program:
    """Values a, b, c and a larger d: a and c lie beside b, and d needs what both leave together."""
    rows = Rows()
    x = rows.parameter()
    a = rows.op("sort", x, result_bytes=4 * KB)
    b = rows.op("sort", a, result_bytes=3 * KB)
    c = rows.op("sort", b, result_bytes=4 * KB)
    d = rows.op("sort", c, result_bytes=2 * KB)
    rows.result(d)
    return rows.build()


def test_a_heap_of_fitting_buffers_has_no_gaps() -> None:
    plain, packed = memory_use(stairs()), memory_use(stairs(), packed=True)
    assert plain.peak_bytes == 64 + 7 * KB
    assert packed.peak_bytes == plain.peak_bytes + 2 * KB  # a's place is taken by no result
    assert "fragmentation" not in packed.breakdown


def test_what_a_gap_is_too_small_for_is_lost() -> None:
    """The heap is 10 KB: of 6 beside 4, and then 5 beside 3, which fits in neither of them."""
    rows = Rows()
    x = rows.parameter()
    long = rows.op("sort", x, result_bytes=4 * KB)  # lies above the first
    first = rows.op("sort", x, result_bytes=6 * KB)
    small = rows.op("sort", first, result_bytes=3 * KB)  # first is free after this row
    last = rows.op("sort", small, result_bytes=5 * KB)
    rows.result(rows.op("sort", long, last, small))
    plain, packed = memory_use(rows.build()), memory_use(rows.build(), packed=True)
    assert plain.peak_bytes == 64 + 13 * KB  # long, first and small
    assert packed.peak_bytes >= plain.peak_bytes
    own = 64  # of the result
    assert packed.breakdown.get("fragmentation", 0) == packed.peak_bytes - plain.peak_bytes - own
    assert max(b for _, b in packed.curve) == packed.peak_bytes


def test_results_have_memory_of_their_own_all_step_long() -> None:
    """XLA's buffer assignment (jax-cuda12-plugin 0.10.2): what fits lies in it while it is free."""
    rows = Rows()
    x = rows.parameter()
    first = rows.op("sort", x, result_bytes=8 * KB)
    small = rows.op("sort", first, result_bytes=KB)
    last = rows.op("sort", small, result_bytes=4 * KB)
    rows.result(last)
    packed = memory_use(rows.build(), packed=True)
    assert memory_use(rows.build()).peak_bytes == 64 + 9 * KB
    assert packed.peak_bytes == 64 + 4 * KB + 9 * KB  # small meets last, and first is too large
    rows.result(rows.op("sort", last, result_bytes=KB))  # in which small fits
    assert memory_use(rows.build(), packed=True).peak_bytes == 64 + 5 * KB + 8 * KB
    rows.add("pipeline.turn", Kind.VALUE, op=OpClass.TURN)  # of many programs, not of one
    assert memory_use(rows.build(), packed=True).peak_bytes == 64 + 9 * KB


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 40)), min_size=1, max_size=12))
def test_a_heap_holds_what_is_alive_and_not_more_than_all(pieces: list[tuple[int, int]]) -> None:
    """Each value reads one of those before it; the heap is at least the live bytes."""
    rows = Rows()
    made = [rows.parameter()]
    for back, size in pieces:
        made.append(rows.op("sort", made[max(len(made) - 1 - back, 0)], result_bytes=256 * size))
    rows.result(made[-1])
    plain, packed = (memory_use(rows.build(), packed=p) for p in (False, True))
    total = 64 + sum(256 * size for _, size in pieces)
    assert plain.peak_bytes <= packed.peak_bytes <= total
    assert sum(packed.breakdown.values()) == packed.peak_bytes


def with_a_loop() -> Rows:
    """A head's gradient that only the end reads, before a loop; and zeros that the loop begins as."""
    rows = Rows()
    x = rows.parameter()
    zeros = rows.op("sort", x, scope="zeros")
    head = rows.op("dot_general", x, scope="head")
    loss = rows.op("dot_general", x, scope="loss")
    gradient = rows.op("dot_general", loss, x, scope="gradient")
    rows.begin_region(RegionKind.LOOP, 3)
    row = rows.op("while.carry", loss, kind=Kind.VALUE, alias=loss)
    total = rows.op("while.carry", zeros, kind=Kind.VALUE, alias=zeros)
    made = rows.op("sort", row)
    summed = rows.op("sort", total)
    rows.end_region(carries=((row, made), (total, summed)))
    rows.result(rows.op("sort", made, summed, head, gradient, scope="end"))
    return rows


def test_rows_that_only_the_end_reads_run_after_the_loop() -> None:
    program = run_passes(with_a_loop().build(), [DelayPastLoops()])
    scopes = [program.row(i).scope for i in range(len(program))]
    loop = program.regions[0]
    assert scopes.index("head") >= loop.stop
    assert loop.stop <= scopes.index("gradient") < scopes.index("end")
    assert max(scopes.index("zeros"), scopes.index("loss")) < loop.start
    again = run_passes(program, [DelayPastLoops()])
    assert [again.row(i).opcode for i in range(len(again))] == [
        program.row(i).opcode for i in range(len(program))
    ]


def test_a_program_without_loops_keeps_its_order() -> None:
    program = stairs()
    assert run_passes(program, [DelayPastLoops()]) is program


def test_programs_of_xla_are_laid_out_as_its_kernels() -> None:
    """Others as they were: with one result for each kernel, and layers ahead where the policy has it."""
    workload = Workload.single(with_a_loop().build())
    ahead = next(p for p in POLICIES.values() if p.prepares_ahead)
    stack = Stack.load("xla")
    xla = stored(workload, kernels_for(workload, "xla-gpu"), ahead, stack)
    assert (xla.packed, xla.as_kernels, xla.ahead) == (True, True, False)
    other = stored(workload, kernels_for(workload, "inductor"), ahead, stack)
    assert (other.packed, other.as_kernels, other.ahead) == (False, False, True)


def test_an_estimate_counts_what_the_heap_loses() -> None:
    trace = flint.Trace(Workload.single(with_a_loop().build()))
    use = trace.estimate("h100-dgx", profile="xla-gpu").classes[0].memory
    assert use.peak_bytes == sum(use.breakdown.values())
