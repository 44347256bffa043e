"""Activation functions and their gradients are those of torch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from flint.frontends.torch_ops.nn import activations
from tests.oracle.torch_op_cases import Case, Comparison, cases, names_without_a_case, t

FLOATS = "f32 bf16 f64"
X = t(3, 5, low=-4.0, high=4.0)
G = t(3, 5)


CASES = [
    *cases("aten::relu", X, over=FLOATS + " i64", grad=True),
    *cases("aten::leaky_relu", X, 0.1, over=FLOATS, grad=True),
    *cases("aten::hardtanh", X, -1.5, 2.0, over=FLOATS, grad=True),
    *cases("aten::silu", X, over=FLOATS, grad=True),
    *cases("aten::silu_backward", G, X, over=FLOATS),
    *(
        case
        for how in ("none", "tanh")
        for case in (
            *cases("aten::gelu", X, approximate=how, over=FLOATS, grad=True),
            *cases("aten::gelu_backward", G, X, approximate=how, over=FLOATS),
        )
    ),
    *cases("aten::elu", X, over=FLOATS, grad=True),
    *cases("aten::elu", X, 1.5, 0.7, 2.0, over=FLOATS, grad=True),
]
COMPARISON = Comparison(CASES)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_torch(case: Case) -> None:
    COMPARISON.check(case)


def test_every_operator_has_a_case() -> None:
    assert names_without_a_case(CASES, activations) == []
