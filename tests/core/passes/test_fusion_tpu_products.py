"""What becomes part of a product on a TPU: before and after of each rule."""

from __future__ import annotations

from flint.ir.program import Kind, Program
from flint.passes.fusion.tpu import FuseTpuProducts
from tests.program_text import Rows

SIDE = 64
SQUARE = {"shape": (SIDE, SIDE), "result_bytes": SIDE * SIDE * 4}
BYTES = SIDE * SIDE * 4
PRODUCT = {**SQUARE, "dims": (1, SIDE, SIDE, SIDE), "flops": 2 * SIDE**3}
MAXIMA = {"shape": (SIDE,), "result_bytes": SIDE * 4, "dims": (1, SIDE, 1, SIDE), "flops": SIDE**2}


class Squares(Rows):
    """Rows of 64 x 64 f32."""

    def argument(self) -> int:
        return self.parameter(**SQUARE)

    def element(self, *deps: int, opcode: str = "fusion", **columns: object) -> int:
        sized = {"dtype": "f32", "operand_bytes": BYTES * len(deps), "flops": SIDE**2}
        return self.add(opcode, Kind.COMPUTE, deps=deps, **{**SQUARE, **sized, **columns})

    def product(self, a: int, b: int) -> int:
        return self.op("dot_general", a, b, operand_bytes=2 * BYTES, **PRODUCT)

    def maxima(self, *deps: int) -> int:
        return self.op("fusion.reduction", *deps, operand_bytes=BYTES * len(deps), **MAXIMA)


def after(b: Rows, *, again: int = 0) -> Program:
    """What is left, verified; `again` flops are done more than once."""
    program = b.build()
    program.verify()
    found = FuseTpuProducts().apply(program)
    found.verify()
    assert found.flops.sum() == program.flops.sum() + again
    return found


def launched(program: Program) -> list[tuple[str, int, int]]:
    """Opcodes of the kernels without the dialect, and the arrays that each reads and writes."""
    rows = (program.row(i) for i in range(len(program)))
    return [
        (r.opcode.removeprefix("stablehlo."), r.operand_bytes // BYTES, r.result_bytes // BYTES)
        for r in rows
        if r.kind is Kind.COMPUTE
    ]


def test_operands_again_products_compute_what_only_products_read() -> None:
    b = Squares()
    scores, queries, keys = b.argument(), b.argument(), b.argument()
    weights = b.element(scores)
    b.result(b.product(weights, queries), b.product(weights, keys))
    found = after(b, again=SIDE**2)
    assert found.flops[found.flops > 0].tolist() == [2 * SIDE**3 + SIDE**2] * 2
    assert launched(found) == [("dot_general", 2, 1), ("dot_general", 2, 1)]


def test_operands_again_through_another_view() -> None:
    b = Squares()
    scores, queries = b.argument(), b.argument()
    weights = b.element(scores)
    view = b.op("reshape", weights, kind=Kind.VALUE, **SQUARE)
    b.result(b.product(weights, queries), b.product(view, queries))
    assert launched(after(b, again=SIDE**2)) == [("dot_general", 2, 1), ("dot_general", 2, 1)]


def test_operands_again_not_where_reading_costs_more_than_storing() -> None:
    b = Squares()
    other = b.argument()
    wide = b.element(*(b.argument() for _ in range(4)))
    b.result(b.product(wide, other), b.product(wide, other))
    kept = [("fusion", 4, 1), ("dot_general", 2, 1), ("dot_general", 2, 1)]
    assert launched(after(b)) == kept  # 2 x 4 > 4 + 3


def test_operands_again_not_what_something_else_takes() -> None:
    b = Squares()
    other = b.argument()
    weights = b.element(b.argument())
    b.result(weights, b.product(weights, other), b.product(weights, other))
    assert launched(after(b))[0] == ("fusion", 1, 1)


def test_operands_again_not_a_kernel_with_two_results() -> None:
    b = Squares()
    other = b.argument()
    pair = b.element(b.argument(), result_bytes=2 * BYTES)
    b.result(b.product(pair, other), b.product(pair, other))
    assert launched(after(b))[0] == ("fusion", 1, 2)


def test_turned_results_a_product_writes_in_the_layout_that_is_read() -> None:
    b = Squares()
    b.result(
        b.element(b.product(b.argument(), b.argument()), opcode="stablehlo.transpose", flops=0)
    )
    assert launched(after(b)) == [("dot_general", 2, 1)]


def test_turned_results_not_where_the_product_is_read_as_it_is() -> None:
    b = Squares()
    product = b.product(b.argument(), b.argument())
    b.result(product, b.element(product, opcode="stablehlo.transpose", flops=0))
    assert launched(after(b)) == [("dot_general", 2, 1), ("transpose", 1, 1)]


def test_reduced_results_a_maximum_of_each_row_leaves_with_the_product() -> None:
    b = Squares()
    scores = b.product(b.argument(), b.argument())
    b.result(scores, b.maxima(scores))
    found = after(b)
    assert launched(found) == [("dot_general", 2, 1)]
    assert found.result_bytes.max() == BYTES + SIDE * 4


def test_reduced_results_not_where_much_else_is_read() -> None:
    b = Squares()
    scores = b.product(b.argument(), b.argument())
    b.result(scores, b.maxima(scores, b.argument(), b.argument()))
    assert launched(after(b)) == [("dot_general", 2, 1), ("fusion.reduction", 3, 0)]


def test_reduced_results_never_in_a_circle() -> None:
    b = Squares()
    scores = b.product(b.argument(), b.argument())
    other = b.op("sine", scores, **{**SQUARE, "operand_bytes": BYTES})
    b.result(b.maxima(scores, other))
    assert [name for name, _, _ in launched(after(b))] == [
        "dot_general", "sine", "fusion.reduction",
    ]  # fmt: skip
