"""Kernels of compilers: before and after of each rule."""

from __future__ import annotations

import pytest

from flint.ir.program import Flag, Kind, Phase, Program, RegionKind
from flint.passes.base import run_passes
from flint.passes.fusion.chains import FuseChains
from flint.passes.profiles import profile
from tests.program_rows import ProgramBuilder
from tests.program_text import MESH, Rows, lines

ROWS, COLUMNS = 4, 64
WIDE = {"shape": (ROWS, COLUMNS), "result_bytes": ROWS * COLUMNS * 4, "flops": ROWS * COLUMNS}
NARROW = {"shape": (ROWS,), "result_bytes": ROWS * 4, "flops": ROWS}
SUM = {**NARROW, "dims": (1, ROWS, 1, COLUMNS), "flops": ROWS * COLUMNS}
BYTES = int(WIDE["result_bytes"])  # type: ignore[call-overload]
XLA = FuseChains()
INDUCTOR = FuseChains(blocks="shared", epilogue="", siblings="any", operators=True, slices=True)

(TPU,) = (p for p in profile("xla-tpu").kernels if isinstance(p, FuseChains))


class Table(Rows):
    """Rows of 4 x 64 f32; reductions along rows have 4."""

    def wide(self, opcode: str, *deps: int, **columns: object) -> int:
        """An element-wise row."""
        return self._sized(opcode, deps, {**WIDE, **columns})

    def narrow(self, opcode: str, *deps: int, **columns: object) -> int:
        """One element a row."""
        return self._sized(opcode, deps, {**NARROW, **columns})

    def total(self, *deps: int, **columns: object) -> int:
        """A reduction along rows."""
        return self._sized("reduce", deps, {**SUM, **columns})

    def spread(self, dep: int) -> int:
        """A value a row, as wide as the rest."""
        return self._sized("broadcast_in_dim", (dep,), {**WIDE, "flops": 0})

    def argument(self) -> int:
        """A wide parameter."""
        return self.parameter(**{k: v for k, v in WIDE.items() if k != "flops"})

    def _sized(self, opcode: str, deps: tuple[int, ...], columns: dict[str, object]) -> int:
        operands = columns.pop("operand_bytes", sum(self._bytes[d] for d in set(deps)))
        return self.op(opcode, *deps, operand_bytes=operands, **columns)

    def add(self, opcode: str, kind: Kind, **columns: object) -> int:  # type: ignore[override]
        row = ProgramBuilder.add(self, opcode, kind, **columns)  # type: ignore[arg-type]
        self._bytes[row] = int(columns.get("result_bytes", 0))  # type: ignore[call-overload]
        return row

    @property
    def _bytes(self) -> dict[int, int]:
        return self.__dict__.setdefault("sizes", {})


def kernels(b: Rows, rules: FuseChains = XLA) -> Program:
    """The kernels of what was written, verified."""
    program = b.build()
    program.verify()
    after = rules.apply(program)
    after.verify()
    assert after.flops.sum() == program.flops.sum()
    return after


def launched(program: Program) -> list[str]:
    """Opcodes of the kernels, without the dialect."""
    names = (program.row(i) for i in range(len(program)))
    return [r.opcode.removeprefix("stablehlo.") for r in names if r.kind is Kind.COMPUTE]


def softmax(b: Table, x: int, *, scaled: bool = True) -> int:
    """exp(x - max) / sum, row by row."""
    x = b.wide("multiply", x) if scaled else x
    shifted = b.wide("subtract", x, b.spread(b.total(x)))
    e = b.wide("exponential", shifted)
    return b.wide("divide", e, b.spread(b.total(e)))


def test_elements_again_two_kernels_compute_a_row_that_is_cheap_to_read() -> None:
    b = Table()
    x = b.wide("sine", b.argument())
    b.result(b.total(x), b.op("sort", b.wide("tanh", x)))
    after = kernels(b)
    assert launched(after) == ["fusion.reduction", "fusion", "sort"]
    assert [after.row(i).operand_bytes for i in (1, 2)] == [BYTES, BYTES]


def test_elements_again_not_where_reading_again_costs_more_than_storing() -> None:
    b = Table()
    inputs = [b.argument() for _ in range(5)]
    x = b.wide("select", *inputs)
    b.result(b.wide("tanh", x, shape=(COLUMNS, ROWS)), b.op("sort", x))
    after = kernels(b)
    assert launched(after) == ["fusion", "sort"]
    assert after.row(5).operand_bytes == 5 * BYTES
    assert after.row(5).result_bytes == 2 * BYTES


def test_made_again_a_mask_of_iotas_is_not_stored() -> None:
    b = Table()
    x = b.argument()
    mask = b.wide("compare", b.wide("iota", flops=0), b.wide("iota", flops=0), result_bytes=256)
    b.result(b.wide("select", mask, x))
    after = kernels(b)
    assert lines(after) == ["%0 argument", "%1 select %0", "%2 result %1"]
    assert after.row(1).operand_bytes == BYTES


def test_made_again_a_mask_that_a_loop_hands_on_is_made_in_its_body() -> None:
    b = Table()
    mask = b.wide("broadcast_in_dim", b.op("constant", kind=Kind.VALUE, shape=()), flops=0)
    b.begin_region(RegionKind.LOOP, 8)
    idle = {**WIDE, "flops": 0, "kind": Kind.VALUE}
    x = b.op("carry", b.argument(), **idle)
    same = b.op("carry", mask, **idle)
    after_one = b.wide("select", same, x)
    b.end_region([(x, after_one), (same, same)])
    b.result(after_one)
    after = kernels(b)
    assert launched(after) == ["select"]
    (select,) = (r for r in map(after.row, range(len(after))) if r.kind is Kind.COMPUTE)
    assert select.operand_bytes == BYTES


def test_made_again_not_of_a_scalar_that_is_computed() -> None:
    b = Table()
    x = b.argument()
    total = b.op("reduce", x, shape=(), result_bytes=4, dims=(1, 1, 1, ROWS * COLUMNS))
    norm = b.op("sqrt", total, kind=Kind.VALUE, shape=(), result_bytes=4)
    b.result(b.wide("multiply", x, b.wide("broadcast_in_dim", norm, flops=0)))
    after = kernels(b)
    assert launched(after) == ["reduce", "multiply"]
    assert lines(after)[-2].split()[1:] == ["multiply", "%0", "%1"]


def test_made_again_not_what_was_saved_in_an_earlier_turn() -> None:
    b = Table()
    turn = b.op("turn", b.argument(), kind=Kind.VALUE, shape=(), result_bytes=0)
    saved = b.op("saved", turn, **{**WIDE, "flops": 0, "kind": Kind.VALUE})
    b.result(b.wide("sine", saved))
    after = kernels(b)
    assert after.row(len(after) - 2).operand_bytes == BYTES


def test_chain_what_others_read_is_a_further_result() -> None:
    b = Table()
    inputs = [b.argument() for _ in range(5)]
    moment = b.wide("add", *inputs, phase=Phase.OPTIMIZER)
    update = b.wide("rsqrt", moment, phase=Phase.OPTIMIZER)
    b.result(moment, update)
    after = kernels(b)
    assert launched(after) == ["fusion.optimizer"]
    assert lines(after)[-1] == "%6 result %5"
    assert after.row(5).result_bytes == 2 * BYTES


def test_chain_never_makes_a_circle() -> None:
    b = Table()
    x = b.wide("add", *[b.argument() for _ in range(5)])
    sorted_x = b.op("sort", x)
    b.result(b.wide("multiply", x, sorted_x))
    after = kernels(b)
    assert launched(after) == ["add", "sort", "multiply"]


def test_a_kernel_moves_behind_what_it_reads_and_its_readers_follow() -> None:
    b = Table()
    x = b.wide("add", *[b.argument() for _ in range(5)])
    early = b.op("sort", x)
    y = b.argument()
    b.result(b.wide("multiply", x, y), early)
    after = kernels(b)
    assert launched(after) == ["fusion", "sort"]
    assert lines(after)[5:] == [
        "%5 argument",
        "%6 fusion %0 %1 %2 %3 %4 %5",
        "%7 sort %6",
        "%8 result %6 %7",
    ]


def test_collectives_keep_their_order() -> None:
    b = Table()
    x = b.wide("add", *[b.argument() for _ in range(5)])
    first = b.all_reduce(x, result_bytes=BYTES)
    second = b.all_reduce(b.argument(), result_bytes=BYTES)
    b.result(first, second, b.wide("multiply", x, second))
    after = kernels(b)
    assert launched(after) == ["add", "multiply"]


def test_rows_a_softmax_is_one_kernel() -> None:
    for rules in (XLA, INDUCTOR):
        b = Table()
        b.result(softmax(b, b.argument()))
        after = kernels(b, rules)
        assert launched(after) == ["fusion.softmax"]
        row = after.row(1)
        assert row.dims == (1, ROWS, 1, COLUMNS)
        assert (row.operand_bytes, row.result_bytes) == (BYTES, BYTES)


def softmax_gradient(b: Table, y: int, g: int, *, factored: bool) -> int:
    """y * (g - sum(y * g)), or the same multiplied out."""
    product = b.wide("multiply", y, g)
    total = b.spread(b.narrow("negate", b.total(product)))
    if factored:
        return b.wide("multiply", y, b.wide("add", g, total))
    return b.wide("add", product, b.wide("multiply", y, total))


def norm_gradient(b: Table, x: int, g: int) -> int:
    """scale * g - x * sum(x * g)."""
    total = b.spread(b.total(b.wide("multiply", x, g)))
    return b.wide(
        "subtract", b.wide("multiply", g, b.spread(b.total(x))), b.wide("multiply", x, total)
    )


@pytest.mark.parametrize("factored", (True, False))
def test_rows_the_gradient_of_a_kept_softmax_is_one(factored: bool) -> None:
    b = Table()
    y = b.wide("convert", b.argument(), flops=0)
    b.result(softmax_gradient(b, y, b.argument(), factored=factored))
    assert launched(kernels(b, INDUCTOR)) == ["fusion.softmax"]


def test_rows_the_gradient_of_a_norm_is_a_norm() -> None:
    b = Table()
    b.result(norm_gradient(b, b.argument(), b.argument()))
    assert launched(kernels(b, INDUCTOR)) == ["fusion.norm"]


@pytest.mark.parametrize("results", (1, 2))
def test_rows_a_softmax_that_is_also_kept_in_f32_is_one(results: int) -> None:
    b = Table()
    y = softmax(b, b.argument())
    half = b.wide("convert", y, flops=0, result_bytes=BYTES // 2)
    b.result(*(half, y)[:results])
    assert launched(kernels(b, INDUCTOR)) == ["fusion.softmax"]


def test_rows_a_norm_is_one_kernel_with_the_sum_before_it() -> None:
    b = Table()
    x = b.wide("add", b.argument(), b.argument())
    scale = b.narrow("rsqrt", b.total(b.wide("multiply", x)))
    b.result(b.wide("multiply", x, b.spread(scale)), x)
    after = kernels(b)
    assert launched(after) == ["fusion.norm"]
    assert (after.row(2).operand_bytes, after.row(2).result_bytes) == (2 * BYTES, 2 * BYTES)


def test_rows_xla_parts_a_softmax_of_transposed_scores() -> None:
    parts = {XLA: ["reduce", "fusion.reduction", "fusion"], INDUCTOR: ["fusion.softmax"]}
    for rules, expected in parts.items():
        b = Table()
        x = b.op("dot_general", b.parameter(), **{**WIDE, "dims": (1, ROWS, COLUMNS, 8)})
        turned = b.wide("transpose", x, flops=0)
        b.result(softmax(b, turned, scaled=False))
        assert launched(kernels(b, rules))[1:] == expected, rules.blocks


def test_rows_xla_looks_for_a_transpose_where_the_kernel_is() -> None:
    """Not in the loop before it (jax-cuda12-plugin 0.10.2): a kernel is one computation's."""
    b = Table()
    x = b.argument()
    b.begin_region(RegionKind.LOOP, 3)
    carried = b.wide("while.carry", x, kind=Kind.VALUE, alias=x, flops=0, operand_bytes=0)
    made = b.wide("multiply", b.wide("transpose", carried, flops=0))
    b.end_region(carries=((carried, made),))
    b.result(softmax(b, made, scaled=False))
    assert launched(kernels(b))[-1] == "fusion.softmax"


def test_rows_another_reader_of_the_reduction_parts_the_kernel_in_xla() -> None:
    b = Table()
    x = b.argument()
    total = b.total(b.wide("multiply", x))
    b.result(b.wide("divide", x, b.spread(total)), b.op("sort", total))
    assert launched(kernels(b)) == ["fusion.reduction", "divide", "sort"]


def test_rows_inductor_keeps_both_results() -> None:
    b = Table()
    x = b.argument()
    total = b.total(b.wide("multiply", x))
    b.result(b.wide("divide", x, b.spread(total)), b.op("sort", total))
    after = kernels(b, INDUCTOR)
    assert launched(after) == ["fusion.norm", "sort"]
    assert after.row(1).result_bytes == BYTES + ROWS * 4


def test_rows_other_reductions_end_a_kernel() -> None:
    b = Table()
    x = b.wide("multiply", b.argument())
    down = b.op("reduce", x, shape=(COLUMNS,), result_bytes=256, dims=(1, COLUMNS, 1, ROWS))
    b.result(b.op("sqrt", down, shape=(COLUMNS,), result_bytes=256))
    assert launched(kernels(b, INDUCTOR)) == ["fusion.reduction", "sqrt"]


def product(b: Table) -> int:
    """A product of matrices of 4 x 64."""
    return b.op("dot_general", b.parameter(), **{**WIDE, "dims": (1, ROWS, COLUMNS, 8)})


@pytest.mark.parametrize(
    ("rules", "expected"),
    [(XLA, ["dot_general"]), (INDUCTOR, ["dot_general", "fusion"])],
)
def test_epilogue_a_bias_joins_a_product_in_libraries(
    rules: FuseChains, expected: list[str]
) -> None:
    b = Table()
    biased = b.wide("add", product(b), b.spread(b.parameter(shape=(4,), result_bytes=16)))
    b.result(b.wide("convert", biased, flops=0))
    after = kernels(b, rules)
    assert launched(after) == expected


@pytest.mark.parametrize(
    ("rules", "expected"),
    [(XLA, ["dot_general", "add"]), (FuseChains(epilogue="any"), ["dot_general"])],
)
def test_epilogue_an_array_joins_a_product_on_a_tpu(rules: FuseChains, expected: list[str]) -> None:
    b = Table()
    b.result(b.wide("add", b.argument(), product(b)))
    assert launched(kernels(b, rules)) == expected


def test_prologue_a_transpose_or_conversion_joins_the_product_that_reads_it() -> None:
    b = Table()
    turned = b.wide("transpose", b.wide("convert", b.argument(), flops=0), flops=0)
    other = b.wide("sine", b.argument())
    b.result(b.op("dot_general", turned, other, **{**WIDE, "dims": (1, ROWS, COLUMNS, 8)}))
    assert launched(kernels(b)) == ["sine", "dot_general"]


def test_prologue_element_wise_rows_join_the_product_that_reads_them_on_a_tpu() -> None:
    b = Table()
    factor = b.wide("sine", b.wide("convert", b.argument(), flops=0))
    dims = {**WIDE, "dims": (1, ROWS, COLUMNS, 8)}
    b.result(b.op("dot_general", factor, b.parameter(), **dims))
    assert launched(kernels(b)) == ["sine", "dot_general"]
    after = TPU.apply(b.build())
    assert launched(after) == ["dot_general"]
    assert after.row(2).dims == (1, ROWS, COLUMNS, 8)
    assert after.row(2).operand_bytes == BYTES + 64


def test_siblings_of_equal_operands_are_one_kernel() -> None:
    b = Table()
    x = b.argument()
    b.result(b.wide("sine", x), b.wide("cosine", x))
    after = kernels(b)
    assert launched(after) == ["fusion"]
    assert (after.row(1).operand_bytes, after.row(1).result_bytes) == (BYTES, 2 * BYTES)


def test_siblings_xla_merges_a_reduction_with_what_reads_more() -> None:
    b = Table()
    x, y = b.argument(), b.argument()
    down = b.op("reduce", x, shape=(COLUMNS,), result_bytes=256, dims=(1, COLUMNS, 1, ROWS))
    b.result(down, b.wide("add", x, y))
    assert launched(kernels(b)) == ["fusion.reduction"]


def test_siblings_inductor_merges_what_shares_one_operand() -> None:
    b = Table()
    x = b.argument()
    b.result(b.wide("add", x, b.argument()), b.wide("multiply", x, b.argument()))
    assert launched(kernels(b)) == ["add", "multiply"]
    assert launched(kernels(b, INDUCTOR)) == ["fusion"]


def test_siblings_tpus_merge_what_shares_an_array_but_no_scalar_and_no_transpose() -> None:
    b = Table()
    x, y, scalar = b.argument(), b.argument(), b.parameter(shape=(), result_bytes=4)
    b.result(b.total(x), b.wide("add", x, b.argument()), b.wide("multiply", y, scalar))
    b.result(b.wide("divide", b.argument(), scalar), b.wide("transpose", b.wide("sine", y)))
    merged = ["fusion.norm", "multiply", "divide", "fusion"]
    assert launched(kernels(b, TPU)) == merged


def test_parts_of_a_concatenation_are_stored_on_a_tpu_if_they_are_computed() -> None:
    b = Table()
    both = {"shape": (ROWS, 2 * COLUMNS), "result_bytes": 2 * BYTES, "flops": 0}
    x, y = b.wide("sine", b.argument()), b.wide("convert", b.argument(), flops=0)
    b.result(b.wide("concatenate", x, y, **both))
    assert launched(kernels(b)) == ["fusion"]
    assert launched(kernels(b, TPU)) == ["sine", "concatenate"]


def test_update_what_is_written_is_computed_by_the_kernel_that_writes_it() -> None:
    b = Table()
    whole = {"shape": (8, ROWS, COLUMNS), "result_bytes": 8 * BYTES}
    stack = b.parameter(**whole)
    b.begin_region(RegionKind.LOOP, 8)
    carry = b.op("carry", stack, kind=Kind.VALUE, operand_bytes=0, **whole)
    part = b.wide("sine", b.argument())
    columns = {**whole, "result_bytes": BYTES, "operand_bytes": BYTES}
    part = b.op(
        "dynamic_update_slice", carry, part, flags=Flag.IN_PLACE, alias=carry, **columns
    )  # fmt: skip
    b.end_region([(carry, part)])
    b.result(part, b.wide("convert", part, **whole, operand_bytes=8 * BYTES))
    after = kernels(b)
    assert launched(after) == ["fusion", "convert"]
    row = after.row(3)
    assert (row.operand_bytes, row.result_bytes) == (BYTES, BYTES)
    assert (row.flags, row.alias) == (Flag.IN_PLACE, 1)
    assert after.regions[0].carries == ((1, 3),)
    assert after.row(4).operand_bytes == 8 * BYTES


def test_update_a_value_that_others_read_too_is_computed_again_or_stored_first() -> None:
    b = Table()
    stack = b.parameter(shape=(8, ROWS, COLUMNS), result_bytes=8 * BYTES)
    value = b.wide("add", *(b.argument() for _ in range(5)))
    columns = {"shape": (8, ROWS, COLUMNS), "result_bytes": BYTES, "operand_bytes": BYTES}
    written = b.op("dynamic_update_slice", stack, value, alias=stack, **columns)
    b.result(written, b.op("sort", value))
    assert launched(kernels(b)) == ["add", "dynamic_update_slice", "sort"]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [(XLA, ["dynamic_slice", "sine"]), (INDUCTOR, ["sine"])],
)
def test_slices_are_copied_by_xla_and_read_in_place_by_others(
    rules: FuseChains, expected: list[str]
) -> None:
    b = Table()
    stack = b.parameter(shape=(8, ROWS, COLUMNS), result_bytes=8 * BYTES)
    at = b.op("constant", kind=Kind.VALUE, shape=(), result_bytes=4)
    part = b.wide("dynamic_slice", stack, at, flops=0, operand_bytes=BYTES)
    b.result(b.wide("sine", part))
    after = kernels(b, rules)
    assert launched(after) == expected
    assert after.row(len(after) - 2).operand_bytes == BYTES


def test_a_row_that_only_waits_for_a_reader_takes_no_bytes() -> None:
    b = Table()
    buffer, other = b.argument(), b.argument()
    read = b.wide("aten.neg", buffer)
    out = b.op("aten.sort", b.wide("aten.exp", read))
    columns = {"operand_bytes": BYTES, "alias": buffer, "flags": Flag.IN_PLACE}
    b.result(out, b.op("fsdp.copy_out", buffer, other, read, **columns))
    after = kernels(b, INDUCTOR)
    assert launched(after) == ["fusion", "aten.sort", "fsdp.copy_out"]
    assert after.row(2).result_bytes == BYTES


def test_operators_of_pytorch_fuse_in_inductor_only() -> None:
    b = Table()
    x = b.wide("aten.mul", b.wide("aten.neg", b.argument()))
    b.result(x)
    assert launched(kernels(b)) == ["aten.neg", "aten.mul"]
    assert launched(kernels(b, INDUCTOR)) == ["fusion"]


def foreach_sgd() -> Table:
    """A multi-tensor update, operator by operator, as PyTorch's `foreach` optimizers run it."""
    b = Table()
    columns = {"flags": Flag.IN_PLACE, "phase": Phase.OPTIMIZER}
    parameters, gradients, moments = b.argument(), b.argument(), b.argument()
    scaled = b.wide("aten._foreach_mul_", moments, alias=moments, **columns)
    moved = b.wide("aten._foreach_add_", scaled, gradients, alias=scaled, **columns)
    b.result(b.wide("aten._foreach_add_", parameters, moved, alias=parameters, **columns), moved)
    return b


def test_multi_tensor_updates_are_one_kernel_each_or_one_in_all() -> None:
    eager = foreach_sgd().build()
    assert run_passes(eager, profile("eager").kernels) is eager
    after = kernels(foreach_sgd(), INDUCTOR)
    assert launched(after) == ["fusion.optimizer"]
    assert (after.row(3).operand_bytes, after.row(3).result_bytes) == (3 * BYTES, 2 * BYTES)


def test_nothing_to_merge_leaves_the_program() -> None:
    b = Rows(MESH)
    b.result(b.op("sort", b.parameter()))
    program = b.build()
    assert lines(kernels(b)) == lines(program)
