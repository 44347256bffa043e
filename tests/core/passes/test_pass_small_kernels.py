"""Kernels below a microsecond: what they are merged with, and what stays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flint.ir.program import Flag, Kind, Program, RegionKind
from flint.passes.rewrites.small_kernels import MergeSmallKernels
from tests.program_text import Rows, group, lines


def merged(b: Rows, **duration_ns: float) -> tuple[Program, list[float]]:
    """The merged program; durations are by opcode without its dialect."""
    program = b.build()
    short = [o.removeprefix("stablehlo.") for o in program.opcodes]
    duration: NDArray[np.float64] = np.array(
        [duration_ns.get(short[o], 0.0) for o in program.opcode]
    )
    after, left = MergeSmallKernels(duration).merged(program)
    after.verify()
    assert np.isclose((left * after.trips).sum(), (duration * program.trips).sum())
    for name in ("flops", "operand_bytes", "result_bytes"):
        computes = [(p.kind == Kind.COMPUTE) * p.trips for p in (program, after)]
        before = int((getattr(program, name) * computes[0]).sum())
        assert int((getattr(after, name) * computes[1]).sum()) == before
    return after, left.tolist()


def test_a_small_kernel_joins_the_one_before_it_under_the_name_of_the_longer() -> None:
    b = Rows()
    x = b.op("tanh", b.parameter(), scope="long", flops=5)
    b.result(b.op("negate", x, scope="short", flops=2))
    after, duration = merged(b, tanh=3000, negate=400)
    assert lines(after) == ["%0 argument", "%1 tanh %0"]
    assert duration == [0, 3400]
    assert after.row(1).scope == "long"
    assert after.row(1).flops == 7


def test_without_small_kernels_nothing_changes() -> None:
    b = Rows()
    b.result(b.op("negate", b.op("tanh", b.parameter())))
    program = b.build()
    assert MergeSmallKernels(np.full(len(program), 1000.0)).apply(program) is program


def test_merging_stops_at_a_microsecond_and_at_the_cap() -> None:
    b = Rows()
    x = b.parameter()
    for name in ("sine", "cosine", "tanh", "exponential", "negate"):
        x = b.op(name, x)
    b.result(x)
    after, duration = merged(b, sine=600, cosine=600, tanh=1500, exponential=19900, negate=900)
    assert duration == [0, 1200, 1500, 19900, 900]
    assert [line.split()[1] for line in lines(after)[1:]] == [
        "cosine",
        "tanh",
        "exponential",
        "negate",
    ]


def test_a_collective_that_reads_the_first_keeps_them_apart() -> None:
    b = Rows()
    x = b.op("tanh", b.parameter())
    r = b.all_reduce(x, group("y"))
    y = b.op("negate", x)
    b.result(b.op("add", y, r))
    _, duration = merged(b, tanh=300, negate=300, add=300)
    assert sorted(d for d in duration if d) == [300, 300, 300]


def test_a_kernel_that_waits_for_communication_begins_anew() -> None:
    b = Rows()
    r = b.all_reduce(b.parameter(), group("y"))
    x = b.op("tanh", b.parameter())
    y = b.op("negate", r)
    b.result(b.op("add", b.op("sine", r), b.op("cosine", x, y)))
    after, duration = merged(b, tanh=300, negate=300, sine=300, cosine=300, add=300)
    assert [d for d in duration if d] == [300, 1200]
    assert lines(after)[-1].split()[1] == "add"


def test_loops_keep_to_themselves_and_carry_on() -> None:
    b = Rows()
    x = b.op("tanh", b.parameter())
    b.begin_region(RegionKind.LOOP, 5)
    carry = b.op("while.carry", x, kind=Kind.VALUE, operand_bytes=0)
    y = b.op("sine", carry)
    z = b.op("cosine", y)
    b.end_region([(carry, y)])
    b.result(z)
    after, duration = merged(b, tanh=300, sine=300, cosine=300)
    assert [d for d in duration if d] == [300, 600]
    (loop,) = after.regions
    assert loop.carries == ((2, 3),)


def test_what_is_merged_shares_no_storage() -> None:
    b = Rows()
    x = b.op("tanh", b.parameter())
    y = b.op("negate", x, alias=x, flags=Flag.IN_PLACE)
    b.result(y)
    after, _ = merged(b, tanh=300, negate=300)
    assert (after.row(1).alias, after.row(1).flags) == (-1, Flag(0))


def test_a_merged_slice_keeps_its_group_and_a_merged_product_its_types() -> None:
    b = Rows()
    part = b.all_slice(b.parameter(), group("x"), part_bytes=8)
    b.result(b.op("tanh", part))
    after, _ = merged(b, **{"sdy.all_slice": 3000}, tanh=400)
    assert lines(after)[1] == "%1 all_slice {x} 0->72 %0"

    b = Rows()
    x, w = b.parameter(), b.parameter()
    y = b.op("dot_general", x, w, dims=(1, 4, 4, 4), product="i8", flags=Flag.TURNED_LAST)
    b.result(b.op("tanh", y))
    after, _ = merged(b, dot_general=3000, tanh=400)
    row = after.row(2)
    assert (row.opcode, row.dims, row.product) == ("stablehlo.dot_general", (1, 4, 4, 4), "i8")
    assert row.flags == Flag(0)  # its operands are no longer the first and the last it reads


def test_what_is_unknown_of_one_part_is_unknown_of_the_whole() -> None:
    b = Rows()
    x = b.op("custom_call", b.parameter(), flags=Flag.UNPRICED)
    b.result(b.op("tanh", x))
    after, _ = merged(b, custom_call=400, tanh=3000)
    assert [after.row(1).opcode, after.row(1).flags] == ["stablehlo.tanh", Flag.UNPRICED]
