"""Products of matrices against torch: values, gradients, types, and how few operations they are."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
import jax.numpy as jnp

from flint.frontends.torch_ops.tensors import matmul
from flint.frontends.torch_ops.tensors import matmul as grouped
from tests.oracle.torch_op_cases import (
    Case,
    Comparison,
    cases,
    exactly,
    names_without_a_case,
    operations,
    t,
)

A, B, SQUARE = t(3, 4), t(4, 5), exactly([[4.0, 1.0], [1.0, 3.0]])
EVERY = "f32 bf16 f16 f64 i64 c64"
ENDS = exactly([2, 2, 7], "i32")
HALF = {"over": "bf16", "out_dtype": torch.float32, "tolerance": (1e-5, 1e-5)}


def rows_of_experts(
    a: Any, b: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None
) -> Any:
    """Grouped products one by one, in float32."""
    wanted, a, b = out_dtype or a.dtype, a.float(), b.float()
    if offs is None:
        return (a @ b).to(wanted)
    ends = offs.tolist()
    parts = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    if a.dim() == 2 and b.dim() == 3:
        out = torch.cat([a[p] @ b[g] for g, p in enumerate(parts)])
    elif a.dim() == 3:
        out = torch.cat([a[g] @ b[:, p] for g, p in enumerate(parts)], 1)
    else:
        out = torch.stack([a[:, p] @ b[p] for p in parts])
    return (out if bias is None else out + bias).to(wanted)


def scaled(
    a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any = None, *rest: Any, **k: Any
) -> Any:
    """The product of the numbers that 8-bit floats stand for."""

    def whole(x: Any, scale: Any) -> Any:
        if scale.dim() == 2:
            for d in range(2):
                scale = scale.repeat_interleave(x.shape[d] // scale.shape[d], d)
        return x.float() * scale

    out = whole(a, scale_a) @ whole(b, scale_b)
    return (out if bias is None else out + bias).to(k.get("out_dtype") or a.dtype)


CASES = [
    *cases("aten::mm", A, B, over=EVERY, grad=True),
    *cases("aten::mm.dtype", A, B, reference=lambda a, b, out_dtype: a.float() @ b.float(), **HALF),
    *cases("aten::bmm", t(2, 3, 4), t(2, 4, 5), over=EVERY, grad=True),
    *cases(
        "aten::bmm.dtype",
        t(2, 3, 4),
        t(2, 4, 5),
        reference=lambda a, b, out_dtype: a.float() @ b.float(),
        **HALF,
    ),
    *cases("aten::addmm", t(5), A, B, over="f32 bf16 i64", grad=True, beta=2, alpha=3),
    *cases("aten::addmm", t(3, 5), A, B, beta=0.5),
    *cases("aten::addmm", exactly([float("nan")]), A, B, beta=0),
    *cases(
        "aten::addmm.dtype",
        t(5, dtype="f32"),
        A,
        B,
        reference=lambda c, a, b, out_dtype: c + a.float() @ b.float(),
        **HALF,
    ),
    *cases(
        "aten::baddbmm", t(2, 1, 5), t(2, 3, 4), t(2, 4, 5), over="f32 bf16", grad=True, alpha=2
    ),
    *cases(
        "aten::baddbmm.dtype",
        t(2, 3, 5, dtype="f32"),
        t(2, 3, 4),
        t(2, 4, 5),
        reference=lambda c, a, b, out_dtype: c + a.float() @ b.float(),
        **HALF,
    ),
    *cases(
        "aten::_trilinear",
        t(5, 8),
        t(4, 8, 6),
        t(5, 6),
        [1, 3],
        [0],
        [1, 2],
        [2, 3],
        grad=True,
        tolerance=(1e-4, 1e-4),
    ),
    *cases("aten::addbmm", t(3, 5), t(2, 3, 4), t(2, 4, 5), grad=True, tolerance=(1e-4, 1e-4)),
    *cases("aten::addmv", t(3), A, t(4), grad=True, alpha=2),
    *cases("aten::linalg_cholesky_ex", SQUARE),
    *cases("aten::linalg_cholesky_ex", SQUARE, upper=True),
    *cases("aten::linalg_solve_triangular", SQUARE, t(3, 2, 4), upper=True),
    *cases("aten::linalg_solve_triangular", SQUARE, t(4, 2), upper=False, left=False),
    *cases(
        "aten::_scaled_mm",
        t(16, 32, dtype="f8"),
        t(32, 16, dtype="f8"),
        exactly(0.5),
        exactly(2.0),
        t(16),
        out_dtype=torch.bfloat16,
        reference=scaled,
    ),
    *cases(
        "aten::_scaled_mm",
        t(16, 32, dtype="f8"),
        t(32, 8, dtype="f8"),
        t(16, 1),
        t(1, 8),
        out_dtype=torch.float32,
        tolerance=(1e-4, 1e-4),
        reference=scaled,
    ),
    *cases(
        "aten::_scaled_mm",
        t(16, 32, dtype="f8"),
        t(32, 8, dtype="f8"),
        t(16, 2),
        t(2, 1),
        out_dtype=torch.float32,
        tolerance=(1e-4, 1e-4),
        reference=scaled,
    ),
    *cases(
        "aten::_grouped_mm", t(7, 4), t(3, 4, 5), ENDS, over="f32 bf16", reference=rows_of_experts
    ),
    *cases(
        "aten::_grouped_mm", t(3, 5, 4), t(4, 7), ENDS, over="f32 bf16", reference=rows_of_experts
    ),
    *cases("aten::_grouped_mm", t(4, 7), t(7, 5), ENDS, over="f32 bf16", reference=rows_of_experts),
    *cases("aten::_grouped_mm", t(3, 2, 4), t(3, 4, 5), reference=rows_of_experts),
    *cases(
        "aten::_grouped_mm",
        t(7, 4),
        t(3, 4, 5),
        ENDS,
        None,
        torch.float32,
        over="bf16",
        tolerance=(1e-5, 1e-5),
        reference=rows_of_experts,
    ),
    *cases(
        "transformers::grouped_mm_fallback", t(7, 4), t(3, 4, 5), ENDS, reference=rows_of_experts
    ),
    *cases(
        "transformers::grouped_mm_fallback_backward",
        t(7, 4),
        t(3, 4, 5),
        ENDS,
        t(7, 5),
        reference=lambda x, w, ends, g: (
            rows_of_experts(g, w.mT, ends),
            rows_of_experts(x.T, g, ends),
        ),
    ),
]
COMPARISON = Comparison(CASES)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_torch(case: Case) -> None:
    COMPARISON.check(case)


def test_every_operator_has_a_case() -> None:
    assert names_without_a_case(CASES, matmul, grouped) == []


def test_a_product_is_one_operation() -> None:
    plain = ("aten::mm", "aten::bmm")
    assert {tuple(operations(c)) for c in CASES if c.op in plain} == {("dot_general",)}


def test_grouped_products_are_priced_once_for_all_groups() -> None:
    import flint

    def step(a: Any, b: Any, g: Any, ends: Any) -> Any:
        out = grouped.grouped_mm(a, b, ends)
        return out, grouped.grouped_mm(a.T, g, ends), grouped.grouped_mm(b.mT, a.T, ends)

    shapes = ((64, 16), (4, 16, 32), (64, 32))
    arrays = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in shapes]
    program = flint.trace(step, {"x": 1}, *arrays, jax.ShapeDtypeStruct((4,), jnp.int32)).program
    rows = [program.row(i) for i in range(len(program))]
    products = [r for r in rows if r.opcode == "hlo.ragged-dot"]
    assert [r.flops for r in products] == [2 * 64 * 16 * 32] * 3
