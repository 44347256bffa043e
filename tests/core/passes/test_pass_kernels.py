"""Kernels: before and after of each fusion rule."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flint.ir.program import Flag, Kind, Phase, Program, RegionKind
from flint.passes.fusion.kernels import FuseKernels
from flint.passes.profiles import PROFILES, profile
from tests.program_text import Rows, lines

DOT = {"dims": (1, 4, 4, 2), "flops": 64}


def fused(b: Rows) -> Program:
    """The kernels of what was written, verified."""
    program = b.build()
    program.verify()
    after = FuseKernels().apply(program)
    after.verify()
    assert after.flops.sum() == program.flops.sum()
    return after


def test_a_chain_of_elementwise_operations_is_one_fusion() -> None:
    b = Rows()
    x, y = b.parameter(), b.parameter()
    wide = b.op("convert", x, flops=16, result_bytes=128)
    total = b.op("add", wide, y, flops=16, scope="inner", phase=Phase.FORWARD)
    last = b.op("tanh", total, flops=16, result_bytes=32, scope="outer", phase=Phase.BACKWARD)
    b.result(last)
    after = fused(b)
    assert lines(after) == ["%0 argument", "%1 argument", "%2 fusion %0 %1", "%3 result %2"]
    row = after.row(2)
    assert (row.flops, row.operand_bytes, row.result_bytes) == (48, 128, 32)
    assert (row.scope, row.phase, row.kind) == ("outer", Phase.BACKWARD, Kind.COMPUTE)


def test_a_value_that_is_read_twice_inside_crosses_once() -> None:
    b = Rows()
    x = b.parameter()
    b.result(b.op("multiply", b.op("sine", x), b.op("cosine", x)))
    assert fused(b).row(1).operand_bytes == 64


def test_a_value_that_two_kernels_read_is_a_kernel() -> None:
    b = Rows()
    x = b.op("sine", b.parameter())
    b.result(b.op("tanh", x), b.op("sort", x))
    assert len(fused(b)) == 5


def test_a_diamond_inside_one_kernel_joins() -> None:
    b = Rows()
    x = b.op("sine", b.parameter())
    b.result(b.op("add", b.op("tanh", x), b.op("negate", x)))
    assert lines(fused(b)) == ["%0 argument", "%1 fusion %0", "%2 result %1"]


def test_a_view_between_operations_does_not_part_them() -> None:
    b = Rows()
    x = b.op("sine", b.parameter())
    view = b.op("reshape", x, kind=Kind.VALUE, flags=Flag.VIEW, operand_bytes=0)
    b.result(b.op("tanh", view))
    assert lines(fused(b)) == ["%0 argument", "%1 fusion %0", "%2 result %1"]


def test_a_view_before_one_operation_keeps_its_name_and_the_bytes_read() -> None:
    b = Rows()
    view = b.op("reshape", b.parameter(), kind=Kind.VALUE, flags=Flag.VIEW, operand_bytes=0)
    b.result(b.op("tanh", view))
    after = fused(b)
    assert lines(after)[1] == "%1 tanh %0"
    assert after.row(1).operand_bytes == 64


def test_a_reduction_takes_its_producers_and_ends_the_kernel() -> None:
    b = Rows()
    x = b.op("multiply", b.parameter(), b.parameter(), flops=16)
    y = b.op("reduce", x, flops=16, dims=(1, 4, 1, 4), result_bytes=16)
    b.result(b.op("rsqrt", y, result_bytes=16, operand_bytes=16))
    after = fused(b)
    assert lines(after)[2:] == ["%2 reduce %0 %1", "%3 rsqrt %2", "%4 result %3"]
    row = after.row(2)
    assert (row.flops, row.dims, row.operand_bytes) == (32, (1, 4, 1, 4), 128)
    assert row.result_bytes == 16


def test_a_product_takes_its_epilogue_with_its_dims() -> None:
    b = Rows()
    product = b.op("dot_general", b.parameter(), b.parameter(), **DOT)
    bias = b.op("broadcast_in_dim", b.parameter(result_bytes=16), operand_bytes=16)
    total = b.op("add", product, bias, flops=16)
    b.result(b.op("convert", total, result_bytes=32, flops=16, scope="out"))
    after = fused(b)
    assert lines(after)[3:] == ["%3 dot_general %0 %1 %2", "%4 result %3"]
    row = after.row(3)
    assert (row.dims, row.flops, row.scope) == ((1, 4, 4, 2), 96, "out")
    assert (row.operand_bytes, row.result_bytes) == (64 + 64 + 16, 32)


def test_the_later_of_two_products_takes_the_epilogue() -> None:
    b = Rows()
    gate = b.op("dot_general", b.parameter(), b.parameter(), **DOT)
    up = b.op("dot_general", b.parameter(), b.parameter(), **DOT)
    b.result(b.op("multiply", b.op("logistic", gate), up))
    assert lines(fused(b))[2:] == [
        "%2 dot_general %0 %1",
        "%3 argument",
        "%4 argument",
        "%5 dot_general %2 %3 %4",
        "%6 result %5",
    ]


def test_a_product_of_another_size_takes_no_epilogue() -> None:
    b = Rows()
    product = b.op("dot_general", b.parameter(), **DOT, shape=(4,), result_bytes=16)
    b.result(b.op("add", b.op("broadcast_in_dim", product), b.parameter()))
    assert [text.partition(" ")[2] for text in lines(fused(b))] == [
        "argument",
        "dot_general %0",
        "argument",
        "add %1 %2",
        "result %3",
    ]


def test_layout_and_conversion_feed_a_product_and_arithmetic_does_not() -> None:
    b = Rows()
    x = b.op("sine", b.parameter())
    turned = b.op("transpose", b.op("convert", x))
    b.result(b.op("dot_general", turned, b.op("tanh", b.parameter()), **DOT))
    assert [text.partition(" ")[2] for text in lines(fused(b))] == [
        "argument",
        "sine %0",
        "argument",
        "tanh %2",
        "dot_general %1 %3",
        "result %4",
    ]


def test_an_iota_joins_and_a_constant_stays_a_value() -> None:
    b = Rows()
    constant = b.op("constant", kind=Kind.VALUE, result_bytes=4)
    spread = b.op("broadcast_in_dim", constant, operand_bytes=4)
    b.result(b.op("compare", b.op("iota"), spread))
    after = fused(b)
    assert lines(after) == ["%0 constant", "%1 compare %0", "%2 result %1"]
    assert after.row(1).operand_bytes == 4


@pytest.mark.parametrize(("bytes_each", "whole"), [(64, 128), (100, 150)])
def test_slices_of_one_value_count_together_up_to_the_whole(bytes_each: int, whole: int) -> None:
    """Both halves, as of rotary embeddings; and parts that overlap."""
    b = Rows()
    x = b.parameter(result_bytes=whole)
    low, high = (b.op("slice", x, operand_bytes=bytes_each) for _ in range(2))
    b.result(b.op("add", low, high, flops=16))
    after = fused(b)
    assert len(after) == 3 and after.row(1).operand_bytes == whole


def test_a_slice_of_a_large_value_counts_what_it_reads() -> None:
    b = Rows()
    part = b.op("slice", b.parameter(result_bytes=10**9), operand_bytes=64)
    b.result(b.op("tanh", part))
    assert fused(b).row(1).operand_bytes == 64


def test_a_conversion_is_done_again_by_each_reader() -> None:
    b = Rows()
    wide = b.op("convert", b.parameter(result_bytes=32), operand_bytes=32)
    rows = b.op("reduce", wide, b.parameter(result_bytes=4), operand_bytes=68, result_bytes=4)
    scale = b.op("broadcast_in_dim", b.op("rsqrt", rows, operand_bytes=4, result_bytes=4))
    b.result(b.op("multiply", wide, scale, flops=16))
    after = fused(b)
    assert [text.partition(" ")[2] for text in lines(after)] == [
        "argument",
        "argument",
        "reduce %0 %1",
        "fusion %0 %2",
        "result %3",
    ]
    assert [after.row(i).operand_bytes for i in (2, 3)] == [32 + 4, 32 + 4]


def test_a_chain_of_cheap_rows_reads_what_its_first_reads() -> None:
    b = Rows()
    x = b.parameter(result_bytes=4)
    view = b.op("reshape", x, kind=Kind.VALUE, result_bytes=4, operand_bytes=4)
    wide = b.op("convert", view, operand_bytes=4, result_bytes=8)
    spread = b.op("broadcast_in_dim", wide, operand_bytes=8)
    turned = b.op("transpose", spread)
    b.result(b.op("tanh", turned), b.op("sine", turned))
    after = fused(b)
    assert lines(after) == ["%0 argument", "%1 tanh %0", "%2 sine %0", "%3 result %1 %2"]
    assert [after.row(i).operand_bytes for i in (1, 2)] == [4, 4]


def _collective(b: Rows) -> None:
    b.op("tanh", b.all_reduce(b.op("sine", b.parameter())))


def _opaque(b: Rows) -> None:
    b.op("custom_call", b.op("sine", b.parameter()))
    b.op("tanh", b.op("custom_call", b.parameter()))


def _unpriced(b: Rows) -> None:
    b.op("tanh", b.op("sine", b.parameter(), flags=Flag.UNPRICED))


def _two_reductions(b: Rows) -> None:
    b.op("reduce", b.op("reduce", b.parameter()))


def _product_into_product(b: Rows) -> None:
    b.op("dot_general", b.op("dot_general", b.parameter(), **DOT), **DOT)


def _product_into_reduction(b: Rows) -> None:
    b.op("reduce", b.op("dot_general", b.parameter(), **DOT))


def _into_a_loop(b: Rows) -> None:
    x = b.op("sine", b.parameter())
    b.begin_region(RegionKind.LOOP, 3)
    b.op("tanh", x)
    b.end_region()


def _out_of_a_loop(b: Rows) -> None:
    p = b.parameter()
    b.begin_region(RegionKind.LOOP, 3)
    x = b.op("sine", p)
    b.end_region()
    b.op("tanh", x)


def _yielded(b: Rows) -> None:
    p = b.parameter()
    b.begin_region(RegionKind.LOOP, 3)
    c = b.op("flint.carried", p, kind=Kind.VALUE)
    x = b.op("sine", c)
    b.op("tanh", x)
    b.end_region([(c, x)])


def _carried_view(b: Rows) -> None:
    p = b.parameter()
    b.begin_region(RegionKind.LOOP, 3)
    c = b.op("reshape", p, kind=Kind.VALUE)
    b.end_region([(c, b.op("tanh", c))])


def _narrowing(b: Rows) -> None:
    x = b.op("convert", b.op("sort", b.parameter()), result_bytes=32)
    b.result(b.op("tanh", x), b.op("sine", x))


def _hoisted(b: Rows) -> None:
    x = b.op("convert", b.parameter())
    b.begin_region(RegionKind.LOOP, 3)
    b.op("tanh", x)
    b.end_region()


def _arithmetic_read_twice(b: Rows) -> None:
    x = b.op("exponential", b.parameter(), flops=16)
    b.result(b.op("tanh", x), b.op("sine", x))


def _other_stream(b: Rows) -> None:
    b.op("tanh", b.op("sine", b.parameter(), stream="copies"))


@pytest.mark.parametrize(
    "write",
    [
        _collective,
        _opaque,
        _unpriced,
        _two_reductions,
        _product_into_product,
        _product_into_reduction,
        _into_a_loop,
        _out_of_a_loop,
        _yielded,
        _carried_view,
        _narrowing,
        _hoisted,
        _arithmetic_read_twice,
        _other_stream,
    ],
)
def test_what_no_rule_names_stays_apart(write: Callable[[Rows], None]) -> None:
    b = Rows()
    write(b)
    program = b.build()
    program.verify()
    assert FuseKernels().apply(program) is program


def test_a_kernel_is_in_place_only_if_its_first_operand_is_still_the_same() -> None:
    b = Rows()
    x, y = b.parameter(), b.parameter()
    b.op("add", y, b.op("sine", y), flags=Flag.IN_PLACE)
    b.op("add", y, b.op("sine", x), flags=Flag.IN_PLACE)
    after = fused(b)
    assert [after.row(i).flags for i in (2, 3)] == [Flag.IN_PLACE, Flag(0)]


def test_profiles_are_found_by_name() -> None:
    from flint.errors import FlintError

    names = ["none", "xla-gpu", "xla-gpu+flash", "xla-tpu"]
    names += ["inductor", "megatron", "eager"]
    assert list(PROFILES) == [*names, "torch"]
    assert all(profile(name).name == name for name in PROFILES)
    assert profile("none").passes == ()
    with pytest.raises(FlintError) as caught:
        profile("xla-gpus")
    assert caught.value.code == "FL405"
    assert "did you mean 'xla-gpu'" in str(caught.value)
