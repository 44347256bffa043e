"""What XLA for GPUs joins, splits, turns and copies: before and after of each rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flint.ir.dims import ReductionDims
from flint.ir.mesh import AxisRef, Route
from flint.ir.program import Flag, Kind, Program, RegionKind
from flint.passes.base import Pass, run_passes
from flint.passes.fusion.blas import TurnResults
from flint.passes.fusion.chains import FuseChains
from flint.passes.fusion.merging import CircleError, merged, without_circles
from flint.passes.fusion.xla_gpu.copy_carried import CopyCarried
from flint.passes.fusion.xla_gpu.copy_overwritten import CopyOverwritten
from flint.passes.fusion.xla_gpu.expand_ragged import ExpandRagged
from flint.passes.fusion.xla_gpu.join_collectives import JoinCollectives
from flint.passes.fusion.xla_gpu.merge_products import MergeProducts
from flint.passes.fusion.xla_gpu.split_products import SplitProducts
from flint.passes.fusion.xla_gpu.split_reductions import SplitReductions
from flint.passes.fusion.xla_gpu.sum_products import SumProducts
from flint.passes.rewrites.turn_operands import TurnOperands
from flint.passes.work.totals import matmul_flops, total, totals
from tests.core.passes.test_fusion_chains import launched
from tests.program_text import Rows, group, lines
from tests.random_programs import QUICK, programs

#: x of (8, 4) by weights of (4, 2): operands and result have 4 bytes for each element.
PRODUCT: dict[str, Any] = {
    "shape": (8, 2), "dims": (1, 8, 2, 4), "flops": 128, "product": "f32",
    "operand_bytes": 160, "result_bytes": 64,
}  # fmt: skip
X: dict[str, Any] = {"shape": (8, 4), "result_bytes": 128}
W: dict[str, Any] = {"shape": (4, 2), "result_bytes": 32}
SCALAR: dict[str, Any] = {"shape": (), "result_bytes": 4}


def applied(b: Rows, one: Pass) -> Program:
    return run_passes(b.build(), [one])


XLA = FuseChains(sinks=False, orders=True, prologue="again", slices=True)

# products ----------------------------------------------------------------------------------------


def test_products_of_one_operand_are_one_and_each_takes_its_part() -> None:
    b = Rows()
    x = b.parameter(**X)
    found = [b.op("dot_general", x, b.parameter(**W), **PRODUCT) for _ in range(3)]
    b.result(*found)
    after = applied(b, MergeProducts())
    assert lines(after)[4:8] == [
        "%4 dot_general %0 %1 %2 %3",
        "%5 slice %4",
        "%6 slice %4",
        "%7 slice %4",
    ]
    whole = after.row(4)
    assert (whole.dims, whole.flops, whole.shape) == ((1, 8, 6, 4), 384, (8, 6))
    assert (whole.operand_bytes, whole.result_bytes) == (128 + 3 * 32, 192)
    assert (after.row(5).operand_bytes, after.row(5).result_bytes) == (64, 64)


def test_a_joined_product_reads_no_less_than_its_products_say() -> None:
    """A file may say that they read less than what they share is large."""
    for read in (0, 7, 128):
        b = Rows()
        x = b.parameter(**X)
        said = {**PRODUCT, "operand_bytes": read}
        b.result(*[b.op("dot_general", x, b.parameter(**W), **said) for _ in range(3)])
        assert applied(b, MergeProducts()).operand_bytes[4] == read


def test_products_stay_apart_that_need_each_other_are_large_or_share_other_sides() -> None:
    b = Rows()
    x, w = b.parameter(**X), b.parameter(**W)
    first = b.op("dot_general", x, w, **PRODUCT)
    other = b.op("sort", first, **W)  # the second needs the first
    b.result(b.op("dot_general", x, other, **PRODUCT))
    before = b.build()
    assert MergeProducts().apply(before) is before
    b = Rows()
    x = b.parameter(**X)
    b.result(*(b.op("dot_general", x, b.parameter(**W), **PRODUCT) for _ in range(2)))
    before = b.build()
    assert MergeProducts(most_bytes=223).apply(before) is before
    assert MergeProducts(most_bytes=224).apply(before) is not before
    b = Rows()
    x = b.parameter(**X)
    b.result(
        *(b.op("dot_general", x, b.parameter(**W), flags=Flag.LAUNCHED, **PRODUCT) for _ in "ab")
    )
    before = b.build()
    assert MergeProducts().apply(before) is before  # a framework launched them
    b = Rows()
    x = b.parameter(**X)
    wide = {**PRODUCT, "dims": (1, 2, 8, 4), "shape": (2, 8)}
    right = b.op("dot_general", x, b.parameter(**W), **wide)  # x is its second operand
    b.result(b.op("dot_general", x, b.parameter(**W), **PRODUCT), right)
    before = b.build()
    assert MergeProducts().apply(before) is before


#: A product of two matrices of (4, 4).
SQUARE: dict[str, Any] = {
    "shape": (4, 4), "dims": (1, 4, 4, 4), "flops": 128, "product": "f32",
    "operand_bytes": 128, "result_bytes": 64,
}  # fmt: skip


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()), max_size=10))
def test_products_of_products_are_joined_where_none_reads_another(
    plan: list[tuple[int, int, bool]],
) -> None:
    """Each line multiplies two of the last ten values, or sorts one of them."""
    b = Rows()
    made = [b.parameter(shape=(4, 4), result_bytes=64) for _ in range(2)]
    for one, other, sorts in plan:
        left, right = made[-1 - one % len(made)], made[-1 - other % len(made)]
        if sorts:
            made.append(b.op("sort", left, shape=(4, 4), result_bytes=64))
        else:
            made.append(b.op("dot_general", left, right, **SQUARE))
    b.result(*made[-2:])
    before = b.build()
    after = run_passes(before, [MergeProducts()])
    assert matmul_flops(after).sum() == matmul_flops(before).sum()
    assert total(after, after.flops) == total(before, before.flops)


def test_a_product_of_a_product_stays_one() -> None:
    b = Rows()
    x, w = b.parameter(**X), b.parameter(shape=(4, 4), result_bytes=64)
    wide = {**PRODUCT, "shape": (8, 4), "dims": (1, 8, 4, 4)}
    b.result(b.op("dot_general", b.op("dot_general", x, w, **wide), w, **wide))
    before = b.build()
    assert MergeProducts().apply(before) is before


@pytest.mark.parametrize(("seen", "copies"), [(Flag.SEEN_LAST, 0), (Flag(0), 1)])
def test_operands_whose_dimensions_are_mixed_are_copied(seen: Flag, copies: int) -> None:
    b = Rows()
    turned = Flag.TURNED_LAST | seen
    b.result(b.op("dot_general", b.parameter(), b.parameter(), **PRODUCT, flags=turned))
    after = applied(b, TurnOperands())
    assert launched(after).count("transpose") == copies


@pytest.mark.parametrize(("views", "copies"), [(0, 0), (1, 0), (2, 0), ("of two", 1)])
def test_values_that_loops_carry_are_no_operands_to_copy(views: object, copies: int) -> None:
    """Nor are views of one; what is made of two values is."""
    b = Rows()
    other = b.parameter()
    b.begin_region(RegionKind.LOOP, 3, name="loop")
    state = b.op("carry", other, kind=Kind.VALUE, operand_bytes=0, alias=other)
    read = state
    for _ in range(views if isinstance(views, int) else 0):
        read = b.op("reshape", read, kind=Kind.VALUE, operand_bytes=0)
    if views == "of two":
        read = b.op("concatenate", state, other, kind=Kind.VALUE, operand_bytes=0)
    dims = {"dims": (2, 8, 2, 2)}
    made = b.op("dot_general", other, read, **PRODUCT | dims, flags=Flag.TURNED_LAST)
    b.end_region([(state, made)])
    b.result(made)
    assert launched(applied(b, TurnOperands())).count("transpose") == copies


def test_filters_are_turned_before_and_their_gradients_after() -> None:
    half: dict[str, Any] = {"dtype": "bfloat16", "dims": (1, 4, 4, 4), "flops": 128}
    b = Rows()
    x, w = b.parameter(), b.parameter()
    y = b.op("convolution", x, w, flags=Flag.TURNED_LAST, **half)
    b.result(b.op("convolution", x, y, flags=Flag.TURNED_RESULT, **half))
    after = applied(b, TurnOperands())
    assert launched(after) == ["transpose", "convolution", "convolution", "transpose"]


#: A product of few tokens with a wide weight, in bfloat16: ten tiles for 132 processors.
NARROW: dict[str, Any] = {
    "dims": (1, 16, 1280, 8192), "flops": 2 * 16 * 1280 * 8192, "product": "bf16",
    "shape": (16, 1280), "result_bytes": 2 * 16 * 1280, "dtype": "bfloat16",
}  # fmt: skip


@pytest.mark.parametrize(
    ("dims", "parts"),
    [
        # what XLA of jaxlib 0.10.2 made of these for an H100
        ((1, 16, 1280, 8192), 16),
        ((1, 16, 7168, 8192), 8),
        ((1, 16, 16032, 8192), 4),
        ((1, 16, 8192, 3584), 4),
        ((16, 8, 128, 8192), 16),
        ((2, 128, 2048, 8192), 4),
        ((1, 8192, 128, 8192), 2),
        ((1, 2048, 4096, 4096), 1),
        ((16, 8, 8192, 128), 1),
    ],
)
def test_products_of_few_tiles_compute_parts(dims: tuple[int, int, int, int], parts: int) -> None:
    b = Rows()
    size = 2 * dims[0] * dims[1] * dims[2]
    sized = {**NARROW, "dims": dims, "shape": dims[:3], "result_bytes": size}
    b.result(b.op("sort", b.op("dot_general", b.parameter(), b.parameter(), **sized)))
    before = b.build()
    after = run_passes(before, [SplitProducts()])
    found = [r for r in map(after.row, range(len(after))) if r.opcode == "stablehlo.dot_general"]
    assert [(r.dims[0], r.dims[3]) for r in found] == [(dims[0] * parts, dims[3] // parts)]
    assert launched(after).count("reduce") == (parts > 1)
    assert found[0].result_bytes == (2 * size * parts if parts > 1 else size)


def test_parts_are_added_up_by_what_takes_a_slice_of_them() -> None:
    b = Rows()
    whole = b.op("dot_general", b.parameter(), b.parameter(), **NARROW)
    half = {"shape": (16, 640), "result_bytes": 16 * 1280, "dtype": "bfloat16"}
    b.result(*(b.op("negate", b.op("slice", whole, **half), **half) for _ in range(2)))
    after = applied(b, SplitProducts())
    assert launched(after) == ["dot_general", "reduce", "negate", "reduce", "negate"]
    assert after.row(3).operand_bytes == 16 * 4 * 16 * 640
    kernels = run_passes(after, [FuseChains(orders=True)])
    assert launched(kernels) == ["dot_general", "fusion", "fusion"], (
        "readers of a product stay apart"
    )


@pytest.mark.parametrize(
    ("dims", "kind"),
    [
        ((16, 1, 64, 8), "reduce"),  # one query of each sequence
        ((16, 64, 1, 8), "reduce"),
        ((1, 1, 1, 2**30), "reduce"),
        ((1024, 256, 8, 1), "multiply"),
        ((16, 2, 64, 8), "dot_general"),
        ((1, 1, 50_000, 4096), "dot_general"),  # too large: a kernel of Triton
    ],
)
def test_products_with_vectors_are_no_products(dims: tuple[int, ...], kind: str) -> None:
    b = Rows()
    size = 2 * dims[0] * dims[1] * dims[2]
    sized = {**NARROW, "dims": dims, "shape": dims[:3], "result_bytes": size}
    b.result(b.op("sort", b.op("dot_general", b.parameter(), b.parameter(), **sized)))
    before = b.build()
    after = run_passes(before, [SumProducts()])
    assert launched(after) == [kind, "sort"]
    row = len(before) - 3
    assert after.flops[row] == before.flops[row]
    assert after.operand_bytes[row] == before.operand_bytes[row]
    if kind == "reduce":
        assert tuple(ReductionDims.of(after.dims[row])) == (dims[0] * dims[1] * dims[2], dims[3])


#: 64 rows of 4 by three matrices (4, 8), with f32 everywhere.
TOKENS: dict[str, Any] = {"shape": (64, 4), "result_bytes": 1024}
EXPERTS: dict[str, Any] = {"shape": (3, 4, 8), "result_bytes": 384}
GROUPS: dict[str, Any] = {"shape": (3,), "result_bytes": 12, "dtype": "int32"}
RAGGED: dict[str, Any] = {"product": "f32", "flops": 2 * 64 * 4 * 8}


def ragged(b: Rows) -> tuple[int, int, int]:
    return b.parameter(**TOKENS), b.parameter(**EXPERTS), b.parameter(**GROUPS)


def test_rows_of_ragged_groups_meet_the_matrices_of_all_groups() -> None:
    b = Rows()
    made = {"shape": (64, 8), "result_bytes": 2048, "dims": (1, 64, 8, 4)}
    b.result(b.op("hlo.ragged-dot", *ragged(b), **RAGGED | made))
    after = applied(b, ExpandRagged())
    assert launched(after) == ["reduce_window", "select", "hlo.ragged-dot"]
    row = after.row(len(after) - 2)
    assert (row.dims, row.flops) == ((1, 64, 8, 12), 3 * RAGGED["flops"])
    assert row.operand_bytes == 3 * 1024 + 384
    before = b.build()
    assert lines(run_passes(before, [ExpandRagged(rows=False)])) == lines(before)


def test_gradients_of_ragged_products_turn_matrices_and_mask_both_sides() -> None:
    b = Rows()
    tokens, experts, groups = ragged(b)
    late = b.parameter(shape=(64, 8), result_bytes=2048)
    of_rows = {"dims": (1, 64, 4, 8), **TOKENS}
    of_matrices = {"dims": (1, 4, 8, 64), **EXPERTS}
    b.result(
        b.op("chlo.ragged_dot", late, experts, groups, **RAGGED | of_rows),
        b.op("chlo.ragged_dot", tokens, late, groups, **RAGGED | of_matrices),
    )
    after = applied(b, ExpandRagged())
    # the rows of `late` are masked once for both
    both = ["chlo.ragged_dot"] * 2
    assert sorted(launched(after)) == [*both, "reduce_window", *["select"] * 2, "transpose"]
    found = [r for r in map(after.row, range(len(after))) if r.opcode == "chlo.ragged_dot"]
    assert [r.dims for r in found] == [(1, 64, 4, 24), (3, 4, 8, 64)]
    for_tpus = applied(b, ExpandRagged(rows=False))
    assert sorted(launched(for_tpus)) == [
        "chlo.ragged_dot",
        "chlo.ragged_dot",
        "reduce_window",
        *["select"] * 2,
    ]


# reductions --------------------------------------------------------------------------------------


def reduction(reduced: int, *, along_rows: bool) -> Rows:
    """Eight sums of `reduced` elements, of rows or of columns."""
    b = Rows()
    shape = (8, reduced) if along_rows else (reduced, 8)
    x = b.parameter(shape=shape, result_bytes=32 * reduced)
    small = {"shape": (8,), "result_bytes": 32, "operand_bytes": 32 * reduced}
    b.result(b.op("reduce", x, dims=(1, 8, 1, reduced), flops=8 * reduced, **small))
    return b


@pytest.mark.parametrize(("along_rows", "most"), [(True, 16384), (False, 4096)])
def test_long_reductions_are_two_kernels(along_rows: bool, most: int) -> None:
    before = reduction(most, along_rows=along_rows).build()
    assert SplitReductions().apply(before) is before
    after = applied(reduction(4 * most, along_rows=along_rows), SplitReductions())
    parts = int((4 * most) ** 0.5)
    first, second = after.row(1), after.row(2)
    assert (first.dims, first.result_bytes) == ((1, 8 * parts, 1, 4 * most // parts), 32 * parts)
    assert (second.dims, second.operand_bytes) == ((1, 8, 1, parts), 32 * parts)
    assert launched(run_passes(after, [FuseChains()])) == ["reduce", "reduce"]


# collectives -------------------------------------------------------------------------------------


def test_all_reduces_are_one_of_an_array_that_they_are_copied_into() -> None:
    b = Rows()
    first = b.all_reduce(b.op("negate", b.parameter()))
    late = b.all_reduce(b.op("sort", b.parameter()))
    b.result(b.op("abs", first), b.op("abs", late))
    after = applied(b, JoinCollectives())
    assert lines(after)[4:9] == [
        "%4 concatenate %1 %3",
        "%5 all_reduce {x} 128->128 %4",
        "%6 slice %5",
        "%7 slice %5",
        "%8 abs %6",
    ]
    assert (after.row(4).operand_bytes, after.row(4).result_bytes) == (128, 128)


def test_collectives_stay_apart_that_need_each_other_or_are_too_large() -> None:
    b = Rows()
    first = b.all_reduce(b.parameter())
    b.result(b.all_reduce(b.op("negate", first)))
    before = b.build()
    assert JoinCollectives().apply(before) is before
    b = Rows()
    b.result(*(b.all_reduce(b.parameter()) for _ in range(3)))
    before = b.build()
    assert JoinCollectives(most_bytes=127).apply(before) is before
    after = JoinCollectives(most_bytes=128).apply(before)
    assert launched(after).count("slice") == 2  # the third is alone


def test_scatters_and_gathers_are_joined_without_copies() -> None:
    b = Rows()
    large = {"result_bytes": 64, "comm_bytes": 512, "group": group("x")}
    scatters = [
        b.op("sdy.reduce_scatter", b.parameter(), kind=Kind.COLLECTIVE, collective=3, **large)
        for _ in range(2)
    ]
    b.result(*(b.op("abs", s) for s in scatters))
    after = applied(b, JoinCollectives())
    assert lines(after)[2:5] == [
        "%2 reduce_scatter {x} 1024->128 %0 %1",
        "%3 abs %2",
        "%4 abs %2",
    ]


# loops -------------------------------------------------------------------------------------------


def loop_of_two(*, read_after: bool, same_start: bool) -> Rows:
    """A loop that updates an array in place and replaces another, perhaps while it is read."""
    b = Rows()
    zero = b.op("constant", kind=Kind.VALUE, **SCALAR)
    first = b.op("broadcast_in_dim", zero, operand_bytes=4)
    second = first if same_start else b.op("broadcast_in_dim", zero, operand_bytes=4)
    b.begin_region(RegionKind.LOOP, 3, name="loop")
    stack = b.op("carry", first, kind=Kind.VALUE, operand_bytes=0, alias=first)
    state = b.op("carry", second, kind=Kind.VALUE, operand_bytes=0, alias=second)
    made = b.op("sort", state)
    last = b.op("sort", state if read_after else made)
    updated = b.op("dynamic_update_slice", stack, last, flags=Flag.IN_PLACE, alias=stack)
    b.end_region([(stack, updated), (state, made)])
    b.result(updated)
    return b


def test_what_replaces_a_value_that_is_still_read_is_copied() -> None:
    before = loop_of_two(read_after=False, same_start=False).build()
    assert CopyCarried().apply(before) is before
    after = applied(loop_of_two(read_after=True, same_start=False), CopyCarried())
    (region,) = after.regions
    _, (_, handed_on) = region.carries
    assert after.row(handed_on).opcode == "stablehlo.copy"
    assert (after.row(handed_on).operand_bytes, after.row(handed_on).result_bytes) == (64, 64)
    assert launched(after).count("copy") == 1


def test_values_that_start_from_one_array_have_one_each() -> None:
    after = applied(loop_of_two(read_after=False, same_start=True), CopyCarried())
    assert launched(after).count("broadcast_in_dim") == 2
    (region,) = after.regions
    starts = [after.row(carried).deps for carried, _ in region.carries]
    assert len(set(starts)) == 2


@pytest.mark.parametrize("writes", [True, False])
def test_an_iteration_counts_in_kernels_of_its_own(writes: bool) -> None:
    b = Rows()
    zero, stack = b.op("constant", kind=Kind.VALUE, **SCALAR), b.parameter(shape=(3, 16))
    b.begin_region(RegionKind.LOOP, 3, name="loop")
    number = b.op("carry", zero, kind=Kind.VALUE, **SCALAR)
    if writes:
        b.op("dynamic_update_slice", stack, number, alias=stack, flags=Flag.IN_PLACE, shape=(3, 16))
    b.end_region([(number, b.op("add", number, kind=Kind.VALUE, **SCALAR))])
    b.result(number)
    assert launched(applied(b, CopyCarried()))[-2:] == ["copy", "add"][not writes :]


def masks(*, sinks: bool) -> list[str]:
    """Kernels of a loop that is handed a mask of positions, and reads it."""
    b = Rows()
    made = b.op("iota", operand_bytes=0)
    b.begin_region(RegionKind.LOOP, 3, name="layers")
    mask = b.op("carry", made, kind=Kind.VALUE, operand_bytes=0, alias=made)
    x = b.op("carry", b.parameter(), kind=Kind.VALUE, operand_bytes=0)
    y = b.op("add", x, mask)
    b.end_region([(mask, mask), (x, y)])
    b.result(y)
    return launched(run_passes(b.build(), [FuseChains(sinks=sinks)]))


def test_masks_that_a_loop_is_handed_are_arrays() -> None:
    assert masks(sinks=False) == ["iota", "add"]
    assert masks(sinks=True) == ["add"]


# what is computed again ----------------------------------------------------------------------------

GRID: dict[str, Any] = {"shape": (64, 64), "result_bytes": 16384}
COLUMN: dict[str, Any] = {"shape": (64,), "result_bytes": 256}
DOT: dict[str, Any] = {**GRID, "dims": (1, 64, 64, 64), "flops": 2 * 64**3, "product": "f32"}


def chosen(name: str) -> Program:
    """A program for each rule of what a reader computes itself, or does not."""
    b = Rows()
    x, y, bias = b.parameter(**GRID), b.parameter(**GRID), b.parameter(**COLUMN)
    if name in ("one value", "a vector", "two values", "and others"):
        reads = [x, y] if name == "two values" else [x]
        if name == "a vector":
            reads.append(b.op("broadcast_in_dim", bias, **GRID))
        made = b.op("maximum", *reads, flops=4096, **GRID)
        found = [b.op("dot_general", made, y, **DOT)]
        found += [b.op("sort", made, **GRID)] if name == "and others" else []
    elif name == "an element a row":
        wide = b.op("broadcast_in_dim", b.op("rsqrt", bias, flops=64, **COLUMN), **GRID)
        found = [b.op("multiply", x, wide, flops=4096, **GRID)]
    else:
        made = b.op("dot_general", x, y, **DOT)
        later = name == "turned later"
        made = b.all_reduce(made, **GRID) if later else b.op("sort", made, **GRID)
        found = [b.op("transpose", made, **GRID)]
    b.result(*found)
    return b.build()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("one value", ["dot_general"]),
        ("a vector", ["dot_general"]),
        ("two values", ["maximum", "dot_general"]),
        ("and others", ["maximum", "dot_general", "sort"]),
        ("an element a row", ["fusion"]),
        ("turned later", ["dot_general"]),
        ("turned after a sort", ["dot_general", "sort", "transpose"]),
    ],
)
def test_what_readers_compute_themselves(name: str, expected: list[str]) -> None:
    passes = [TurnResults(), FuseChains(orders=True, prologue="again")]
    assert launched(run_passes(chosen(name), passes)) == expected


# look-ups ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "kernel"),
    [("gather", "gather"), ("dynamic_slice", "fusion"), ("all_slice", "add")],
)
def test_what_is_looked_up_is_read_by_the_kernel_that_needs_it(kind: str, kernel: str) -> None:
    b = Rows()
    table = b.parameter(shape=(64,), result_bytes=256)
    if kind == "all_slice":
        part = b.all_slice(table, group("x"), part_bytes=64)
    else:
        part = b.op(kind, table, b.parameter(**SCALAR), operand_bytes=68)
    b.result(b.op("sort", b.op("add", part, b.parameter(), flops=16)))
    after = run_passes(b.build(), [XLA])
    assert launched(after) == [kernel, "sort"]
    assert after.group[after.kind == Kind.COMPUTE].tolist() == [-1, -1]


# orders ------------------------------------------------------------------------------------------

SCORES: dict[str, Any] = {"shape": (2, 4, 8), "result_bytes": 256, "operand_bytes": 256}


def scores(batch: int, *, gradient: bool) -> Rows:
    """Scores that a product makes in another order, and their softmax; perhaps also its gradient."""
    dims = {"dims": (batch, 4, 16 // batch, 4), "flops": 512, "product": "f32"}
    small = {"shape": (2, 4), "result_bytes": 32, "dims": (1, 8, 1, 8), "flops": 64}
    b = Rows()
    made = b.op("dot_general", b.parameter(), b.parameter(), **SCORES | dims | {"shape": (2, 8, 4)})
    x = b.op("convert", b.op("transpose", made, **SCORES), **SCORES)
    total = b.op("reduce", x, **{"operand_bytes": 256, **small})
    wide = b.op("broadcast_in_dim", total, **SCORES | {"operand_bytes": 32})
    weights = b.op("divide", x, wide, flops=64, **SCORES)
    if gradient:
        late = b.op("dot_general", b.parameter(), b.parameter(), **SCORES | dims)
        late = b.op("convert", late, **SCORES)
        b.op("reduce", late, **{"operand_bytes": 256, **small})
        weights = b.op("multiply", weights, late, flops=64, **SCORES)
    b.result(b.op("sort", weights, **SCORES))
    return b


def kernels_of(b: Rows) -> list[str]:
    return launched(run_passes(b.build(), [FuseChains(orders=True, prologue="again")]))


def test_the_gradient_of_scores_takes_their_order_by_a_kernel_of_its_own() -> None:
    found = kernels_of(scores(2, gradient=True))
    assert "convert" in found  # the gradient, turned into the order of the scores
    without = launched(run_passes(scores(2, gradient=True).build(), [FuseChains()]))
    assert "convert" not in without


def test_scores_of_a_product_without_a_batch_are_turned_and_their_rows_stay_on_chip() -> None:
    found = kernels_of(scores(1, gradient=False))
    assert found == ["dot_general", "fusion.layout", "fusion.norm", "sort"]
    found = kernels_of(scores(2, gradient=False))
    assert found == ["dot_general", "reduce", "divide", "sort"]  # not along rows: two kernels


def test_kernels_that_read_each_other_are_taken_apart() -> None:
    b = Rows()
    first = b.op("negate", b.parameter())
    between = b.op("sort", first)
    b.result(b.op("abs", between))
    program = b.build()
    kernel = np.array([0, 3, 2, 3, 4])  # the first and the last row, around the sort
    with pytest.raises(CircleError) as found:
        merged(program, kernel)
    assert sorted(found.value.kernels) == [2, 3]
    assert without_circles(kernel, found.value).tolist() == [0, 1, 2, 3, 4]


@QUICK
@given(programs())
def test_any_program_keeps_its_work(program: Program) -> None:
    for one in (MergeProducts(), SplitProducts(), JoinCollectives(), CopyCarried()):
        after = run_passes(program, [one])
        assert total(after, matmul_flops(after)) == total(program, matmul_flops(program))
        assert sent(after) == sent(program)


def sent(program: Program) -> dict[tuple[str, str], int]:
    """Bytes by kind and axes."""
    return {(c.kind, c.axes): c.comm_bytes for c in totals(program).communication}


def test_what_messages_fill_is_not_copied() -> None:
    """Two messages that write parts of one array, as of a cache that another pool sends."""
    b = Rows()
    cache = b.op("argument", kind=Kind.PARAMETER, result_bytes=1024)
    message = {"kind": Kind.RECV, "flags": Flag.IN_PLACE, "alias": cache, "comm_bytes": 512}
    route = Route((AxisRef("x"),), 1)
    for channel in (0, 1):
        b.op("recv", cache, route=route, channel=channel, result_bytes=512, **message)
    program = b.build()
    assert CopyOverwritten().apply(program) is program


@pytest.mark.parametrize(
    ("donated", "reads", "copies"),
    [((), "xs", 0), ((0,), "xs", 1), ((0,), "first", 0), ((0, 1), "both", 2), ((1,), "both", 1)],
)
def test_what_a_loop_stacks_up_is_copied_to_the_donated_argument_that_it_reads(
    donated: tuple[int, ...], reads: str, copies: int
) -> None:
    """Not if nothing reads the argument from the loop on: the stack has its place."""
    b = Rows()
    flags = [Flag.DONATED if number in donated else Flag(0) for number in range(2)]
    given = [b.parameter(flags=f, **X) for f in flags]
    read = given if reads == "both" else given[:1]
    if reads == "first":
        read = [b.op("sort", *read, **X)]
    made = [b.op("iota", **X) for _ in read]
    b.begin_region(RegionKind.LOOP, 4, name="layers")
    xs = [b.op("carry", r, kind=Kind.VALUE, operand_bytes=0, **X) for r in read]
    ys = [b.op("carry", m, kind=Kind.VALUE, operand_bytes=0, **X) for m in made]
    update = {"flags": Flag.IN_PLACE, **X}
    after = [
        b.op("dynamic_update_slice", y, b.op("negate", x, **X), alias=y, **update)
        for x, y in zip(xs, ys, strict=True)
    ]
    b.end_region([*zip(xs, xs, strict=True), *zip(ys, after, strict=True)])
    b.result(*after)
    assert launched(applied(b, CopyOverwritten())).count("copy") == copies
