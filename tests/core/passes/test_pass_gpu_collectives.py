"""What XLA does to collectives for GPUs alone: all-reduces folded, moves of narrower types.

Rules are those of jax-cuda12-plugin 0.10.2.
"""

from __future__ import annotations

from typing import Any

import pytest

from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Flag, Kind
from flint.passes.rewrites.fold_gathers import FoldGathers
from flint.passes.rewrites.narrow_collectives import NarrowCollectives
from flint.passes.rewrites.reduce_scatter import FoldAllReduces
from tests.program_text import Rows, group, lines


def moved(b: Rows, dep: int, **columns: Any) -> int:
    """An exchange over x."""
    sized = {"comm_bytes": 64, **columns}
    over = {"collective": Collective.ALL_TO_ALL, "group": group("x")}
    return b.op("sdy.all_to_all", dep, kind=Kind.COLLECTIVE, **over, **sized)


def test_an_all_reduce_of_an_all_reduce_is_one_over_both() -> None:
    b = Rows()
    b.result(b.all_reduce(b.all_reduce(b.parameter()), group("y")))
    after = FoldAllReduces().apply(b.build())
    after.verify()
    assert lines(after)[1:] == ["%1 all_reduce {x,y} 64->64 %0", "%2 result %1"]


def test_it_stays_where_another_reads_it_or_the_axes_are_the_same() -> None:
    b = Rows()
    inner = b.all_reduce(b.parameter())
    b.result(b.all_reduce(inner, group("y")), inner)
    read_twice = b.build()
    assert FoldAllReduces().apply(read_twice) is read_twice
    b = Rows()
    b.result(b.all_reduce(b.all_reduce(b.parameter())))
    same = b.build()
    assert FoldAllReduces().apply(same) is same


def test_what_is_widened_is_moved_first() -> None:
    b = Rows()
    narrow = b.parameter(dtype="bf16", result_bytes=32)
    wide = b.op("convert", narrow, operand_bytes=32, flops=16)
    b.result(moved(b, wide), b.op("negate", wide))
    after = NarrowCollectives().apply(b.build())
    after.verify()
    assert lines(after) == [
        "%0 argument",
        "%1 convert %0",
        "%2 all_to_all {x} 32->32 %0",
        "%3 convert %2",
        "%4 negate %1",
        "%5 result %3 %4",
    ]
    assert after.row(2).dtype == "bf16"
    assert (after.row(3).operand_bytes, after.row(3).result_bytes) == (32, 64)


def test_a_conversion_that_nothing_else_reads_goes() -> None:
    b = Rows()
    wide = b.op("convert", b.parameter(dtype="bf16", result_bytes=32), operand_bytes=32)
    b.result(moved(b, wide))
    after = NarrowCollectives().apply(b.build())
    after.verify()
    assert lines(after)[1:3] == ["%1 all_to_all {x} 32->32 %0", "%2 convert %1"]


def test_what_is_narrowed_afterwards_is_narrowed_first() -> None:
    b = Rows()
    whole = moved(b, b.parameter())
    b.result(b.op("convert", whole, dtype="bf16", result_bytes=32, operand_bytes=64))
    after = NarrowCollectives().apply(b.build())
    after.verify()
    assert lines(after)[1:3] == ["%1 convert %0", "%2 all_to_all {x} 32->32 %1"]
    assert [after.row(i).dtype for i in (1, 2)] == ["bf16", "bf16"]
    assert after.row(1).operand_bytes == 64


def test_sums_are_not_narrowed() -> None:
    b = Rows()
    narrow = b.parameter(dtype="bf16", result_bytes=32)
    b.result(b.all_reduce(b.op("convert", narrow, operand_bytes=32)))
    program = b.build()
    assert NarrowCollectives().apply(program) is program


def test_what_is_widened_may_be_moved_in_another_shape_or_order() -> None:
    for name, kind, flags in (
        ("reshape", Kind.VALUE, Flag.VIEW),
        ("transpose", Kind.COMPUTE, Flag(0)),
    ):
        b = Rows()
        wide = b.op("convert", b.parameter(dtype="bf16", result_bytes=32), operand_bytes=32)
        alias = {"alias": wide} if flags else {"op": OpClass.TRANSPOSE}
        b.result(moved(b, b.op(name, wide, kind=kind, flags=flags, **alias)))
        after = NarrowCollectives().apply(b.build())
        after.verify()
        assert lines(after)[2:6] == [
            f"%2 {name} %1",
            f"%3 {name} %0",
            "%4 all_to_all {x} 32->32 %3",
            "%5 convert %4",
        ]
        assert after.row(3).kind == kind


def gathered(b: Rows, dep: int, **columns: Any) -> int:
    """A gather of 16 values on each of 4 devices along x."""
    over = {"collective": Collective.ALL_GATHER, "group": group("x"), "comm_bytes": 64}
    sized = {"shape": (64,), "result_bytes": 256, **columns}
    return b.op("sdy.all_gather", dep, kind=Kind.COLLECTIVE, **over, **sized)


def test_what_a_broadcast_repeats_is_gathered_before() -> None:
    b = Rows()
    once = b.parameter(shape=(4,), result_bytes=16)
    b.result(gathered(b, b.op("broadcast_in_dim", once, operand_bytes=16)))
    after = NarrowCollectives().apply(b.build())
    after.verify()
    assert lines(after)[1:3] == ["%1 all_gather {x} 16->64 %0", "%2 broadcast_in_dim %1"]
    assert (after.row(2).operand_bytes, after.row(2).result_bytes) == (64, 256)


@pytest.mark.parametrize(
    ("shape", "over", "undone"),
    [((16,), "x", True), ((4, 4), "x", True), ((2, 8), "x", True), ((16,), "y", False)],
)
def test_a_slice_that_undoes_a_gather_is_what_was_gathered(
    shape: tuple[int, ...], over: str, undone: bool
) -> None:
    """Seen in another shape or not: of 16 values it may be cut along the first dimension only."""
    b = Rows()
    whole = gathered(b, b.parameter())
    if len(shape) > 1:
        wide = {"shape": (4 * shape[0], *shape[1:]), "result_bytes": 256}
        whole = b.op("reshape", whole, kind=Kind.VALUE, alias=whole, flags=Flag.VIEW, **wide)
    b.result(b.all_slice(whole, group(over), part_bytes=64, shape=shape))
    after = FoldGathers().apply(b.build())
    after.verify()
    part = after.row(len(after) - 2)
    assert (part.deps == (0,) and part.alias == 0) is undone
