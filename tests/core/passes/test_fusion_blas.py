"""What BLAS does in the kernel of a product: before and after of each rule."""

from __future__ import annotations

from typing import Any

import pytest

from flint.ir.program import Flag, Kind, Program, RegionKind
from flint.passes.fusion.blas import UseBlas
from flint.passes.rewrites.separate_layers import SeparateLayers
from tests.core.passes.test_fusion_chains import launched
from tests.program_text import Rows

LAYERS, M, N, K = 4, 6, 10, 16
PRODUCT: dict[str, Any] = {
    "shape": (M, N), "dtype": "bfloat16", "result_bytes": 2 * M * N, "operand_bytes": 512,
    "dims": (1, M, N, K), "flops": 2 * M * N * K,
}  # fmt: skip
TURNED: dict[str, Any] = {"shape": (N, M), "dtype": "bfloat16", "result_bytes": 2 * M * N}


def applied(b: Rows) -> Program:
    """The program after the pass, verified; its work is the same."""
    before = b.build()
    before.verify()
    after = UseBlas().apply(before)
    after.verify()
    products = [r for r in map(before.row, range(len(before))) if "dot_general" in r.opcode]
    same = [after.row(r.number) for r in products]
    assert [(r.flops, r.dims) for r in same] == [(r.flops, r.dims) for r in products]
    return after


@pytest.mark.parametrize("opcode", ["transpose", "slice"])
def test_strided_operands_are_read_as_they_are(opcode: str) -> None:
    b = Rows()
    x = b.parameter()
    part = b.op(opcode, x)
    shown = b.op("reshape", part, kind=Kind.VALUE, flags=Flag.VIEW, alias=part, operand_bytes=0)
    b.result(b.op("dot_general", shown, **PRODUCT), b.op("dot_general", shown, **PRODUCT))
    after = applied(b)
    assert launched(after) == ["dot_general", "dot_general"]
    assert (after.row(part).alias, after.row(part).flags) == (x, Flag.VIEW)


def test_strided_operands_not_where_others_read_them() -> None:
    b = Rows()
    turned = b.op("transpose", b.parameter())
    b.result(b.op("dot_general", turned, **PRODUCT), b.op("sort", turned))
    assert launched(applied(b)) == ["transpose", "dot_general", "sort"]


def test_turned_results_are_written_by_the_product() -> None:
    b = Rows()
    product = b.op("dot_general", b.parameter(), **PRODUCT)
    b.result(b.op("transpose", product, **TURNED))
    assert launched(applied(b)) == ["dot_general"]


@pytest.mark.parametrize(
    ("read_too", "turned", "dims"),
    [
        (True, (N, M), (1, M, N, K)),
        (False, (2, M, 5), (1, M, N, K)),
        (False, (N, M), (2, M, N // 2, K)),
    ],
)
def test_turned_results_not_where_the_product_is_read_or_only_a_part_turns(
    read_too: bool, turned: tuple[int, ...], dims: tuple[int, ...]
) -> None:
    b = Rows()
    product = b.op("dot_general", b.parameter(), **{**PRODUCT, "dims": dims})
    others = [b.op("sort", product)] if read_too else []
    b.result(b.op("transpose", product, **{**TURNED, "shape": turned}), *others)
    assert "transpose" in launched(applied(b))


def gradient(dtype: str = "float32", *, stacked: bool = True, turned: bool = True) -> Rows:
    """A product that is added to a sum, of one layer or in a loop of layers."""
    size = 4 if dtype == "float32" else 2
    count = LAYERS if stacked else 1
    shape = (N, M) if turned else (M, N)
    whole: dict[str, Any] = {"shape": (LAYERS, *shape) if stacked else shape, "dtype": "bfloat16"}
    whole["result_bytes"] = 2 * M * N * count
    b = Rows()
    x = b.parameter()
    total = b.parameter(**{**whole, "dtype": dtype, "result_bytes": size * M * N * count})
    if stacked:
        zero = b.op("constant", kind=Kind.VALUE, shape=())
        filled = b.op("broadcast_in_dim", zero, **whole)
        b.begin_region(RegionKind.LOOP, LAYERS, name="layers")
        stack = b.op("carry", filled, kind=Kind.VALUE, **whole)
    part = b.op("dot_general", x, **PRODUCT)
    if turned:
        part = b.op("transpose", part, **TURNED)
    if stacked:
        layer = {"shape": (1, *shape), "result_bytes": 2 * M * N, "operand_bytes": 0}
        part = b.op("reshape", part, kind=Kind.VALUE, flags=Flag.VIEW, alias=part, **layer)
        part = b.op("dynamic_update_slice", stack, part, flags=Flag.IN_PLACE, alias=stack, **whole)
        b.end_region([(stack, part)])
    sized = {**whole, "dtype": dtype, "result_bytes": size * M * N * count}
    b.result(b.op("add", total, part, flags=Flag.IN_PLACE, alias=total, **sized))
    return b


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_sums_take_products_in_the_products_kernel(stacked: bool, turned: bool) -> None:
    before = SeparateLayers().apply(gradient(stacked=stacked, turned=turned).build())
    after = UseBlas().apply(before)
    after.verify()
    assert launched(after) == ["dot_general"]
    (product,) = (r for r in map(after.row, range(len(after))) if "dot_general" in r.opcode)
    assert product.operand_bytes == PRODUCT["operand_bytes"] + 4 * M * N
    assert product.result_bytes == 4 * M * N


def test_sums_of_16_bits_are_kernels_of_their_own() -> None:
    before = SeparateLayers().apply(gradient("bfloat16").build())
    assert launched(UseBlas().apply(before)) == ["dot_general", "add"]


def test_sums_of_stacks_that_are_copied_are_kernels_of_their_own() -> None:
    """Where a loop writes its parts (`SeparateLayers` was not applied), nothing is added there."""
    after = UseBlas().apply(gradient(turned=False).build())
    assert "add" in launched(after)
