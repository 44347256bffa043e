"""Reductions, softmax and running results are those of torch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from flint.frontends.torch_ops.tensors import reductions
from tests.oracle.torch_op_cases import (
    Case,
    Comparison,
    bools,
    cases,
    exactly,
    ints,
    names_without_a_case,
    t,
)

REALS = "f32 bf16 f64 i64 i32 bool"
FLOATS = "f32 bf16 f64"
X = t(2, 3, 4)
INF, NAN = float("inf"), float("nan")


def along(name: str, over: str = "f32", *dims: object, **options: object) -> list[Case]:
    """Over some dimensions, with and without keeping them, and of a tensor without dimensions."""
    return [
        *(c for dim in dims for c in cases(name, X, dim, over=over, **options)),
        *cases(name, X, dims[0], True, **options),
        *cases(name, t(), dims[0] if isinstance(dims[0], int) else [], **options),
    ]


SUMS = [
    *along("aten::sum.dim_IntList", REALS + " c64 u8", [0], [1, -1], [], None, grad=True),
    *cases("aten::sum.dim_IntList", t(2, 1, 3), [1], over="f32 i32", grad=True),
    *cases("aten::sum.dim_IntList", X, [1], dtype=torch.float32, over="bf16 i64"),
    *along("aten::mean.dim", FLOATS + " f16 c64", [0], [1, -1], None, grad=True),
    *cases("aten::mean.dim", X, [1], dtype=torch.float32, over="bf16 i64"),
    *cases("aten::mean", X, over=FLOATS, grad=True),
    *cases("aten::prod.dim_int", X, 1, over=REALS, grad=True),
    *cases("aten::prod.dim_int", X, 1, True),
    *cases("aten::prod", t(2, 3), over=REALS, grad=True),
]
TRUTH = [
    *cases("aten::any", exactly([[0, 1], [1, 1]]), over="f32 i64 bool u8"),
    *cases("aten::any.dim", exactly([[0, 1], [1, 1]]), 1, over="f32 bool u8"),
    *cases("aten::any.dim", exactly([[0, 0], [1, 1]]), -1, True, over="bool"),
    *cases("aten::any.dims", bools(2, 3, 2), [0, 2]),
    *cases("aten::any.dims", bools(2, 3, 2), None, True),
    *cases("aten::equal", t(2, 3), t(2, 3)),
    *cases("aten::equal", exactly([1.0]), exactly([1.0])),
]
EXTREMA = [
    *along("aten::amax", REALS, [0], [1, -1], [], grad=True),
    *along("aten::amin", REALS, [0], [1, -1], grad=True),
    *cases("aten::amax", X),
    *cases("aten::max", X, over=REALS, grad=True),
    *cases("aten::min", X, over=REALS, grad=True),
    *along("aten::max.dim", "f32 f64 i64", 0, -1, grad=True),
    *along("aten::min.dim", "f32 f64 i64", 0, -1, grad=True),
    *cases("aten::max.dim", exactly([[1.0, 3.0, 3.0], [NAN, 1.0, 2.0]]), 1),
    *(
        c
        for name in ("aten::argmax", "aten::argmin")
        for c in (
            *cases(name, X, over="f32 i64"),
            *cases(name, X, 1, over="f32 i64"),
            *cases(name, X, -1, True),
            *cases(name, X, None, True),
            *cases(name, t()),
            *cases(name, exactly([1.0, 3.0, 3.0, 1.0])),
        )
    ),
]
SPREAD = [
    *(
        c
        for name in ("var", "var_mean")
        for c in (
            *cases(f"aten::{name}.correction", X, [1], over="f32 f64", grad=True),
            *cases(f"aten::{name}.correction", X, [0, 2], correction=0, keepdim=True, grad=True),
            *cases(f"aten::{name}.correction", X, correction=2, over="f32 bf16"),
        )
    ),
    *cases("aten::var.correction", X, [1], over="c64"),
    *(
        c
        for order in (2, 1, 0, 3, INF, -INF)
        for c in cases("aten::linalg_vector_norm", X, order, [1], over="f32 bf16", grad=True)
    ),
    *cases("aten::linalg_vector_norm", X, 2, None, True, over="f32 f64 c64"),
    *cases("aten::linalg_vector_norm", X, 2, [0], dtype=torch.float64),
]
EXPONENTIALS = [
    *(
        c
        for name in ("aten::_softmax", "aten::_log_softmax")
        for c in (
            *cases(name, X, -1, False, over=FLOATS, grad=True),
            *cases(name, X, 0, False, grad=True),
            *cases(name, t(), 0, False),
        )
    ),
    *cases(
        "aten::_softmax",
        X,
        1,
        True,
        over="bf16",
        reference=lambda x, d, _: torch.softmax(x.float(), d),
    ),
    *cases(
        "aten::_log_softmax",
        X,
        1,
        True,
        over="bf16",
        reference=lambda x, d, _: torch.log_softmax(x.float(), d),
    ),
    *cases("aten::_softmax_backward_data", X, t(2, 3, 4), -1, torch.float32, grad=True),
    *cases("aten::_softmax_backward_data", X, t(2, 3, 4), 1, torch.bfloat16, over="bf16"),
    *cases("aten::_log_softmax_backward_data", X, t(2, 3, 4), -1, torch.float32),
    *cases("aten::_log_softmax_backward_data", X, t(2, 3, 4), 1, torch.bfloat16, over="bf16"),
    *cases(
        "aten::_softmax_backward_data",
        X,
        t(2, 3, 4),
        1,
        torch.bfloat16,
        reference=lambda g, y, d, _: torch._softmax_backward_data(
            g, y, d, torch.float32
        ).bfloat16(),
    ),
]
RUNNING = [
    *cases("aten::cumsum", X, 1, over=REALS, grad=True),
    *cases("aten::cumsum", X, -1, dtype=torch.int32, over="i32"),
    *cases("aten::cumsum", t(), 0),
    *cases("aten::cumprod", X, 1, over="f32 i64 bool", grad=True),
    *cases("aten::logcumsumexp", X, 1, over="f32 f64", grad=True),
    *cases("aten::cummax", X, 1, over="f32 i64", grad=True),
    *cases("aten::cummin", X, -1, over="f32 i64"),
    *cases("aten::cummax", exactly([1.0, 3.0, 3.0, 1.0, 4.0]), 0),
    *cases("aten::cummin", t(), 0),
]
COUNTS = [
    *cases("aten::histc", t(40), 7, -2.0, 2.5, over="f32 f64"),
    *cases("aten::histc", exactly([-1.0, 0.0, 1.0, 2.0, 3.0, 9.0]), 3, 0, 3),
    *cases("aten::histc", t(4, 5), 5),
    *cases(
        "aten::histc",
        ints(16, high=7, dtype="i32"),
        8,
        0,
        7,
        reference=lambda x, n, low, high: torch.bincount(x, minlength=n).to(x.dtype),
    ),
    *cases("aten::bincount", ints(10, high=5), None, 6),
    *cases("aten::bincount", ints(10, high=5, dtype="i32"), t(10), 6, over="f32 f64 i64"),
]
CASES = [*SUMS, *TRUTH, *EXTREMA, *SPREAD, *EXPONENTIALS, *RUNNING, *COUNTS]
COMPARISON = Comparison(CASES)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_torch(case: Case) -> None:
    COMPARISON.check(case)


def test_every_operator_has_a_case() -> None:
    assert names_without_a_case(CASES, reductions) == []
