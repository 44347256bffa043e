"""Activation functions and their gradients are those of torch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from flint.frontends.torch_ops.nn import activations
from tests.oracle.torch_op_cases import Case, Comparison, cases, names_without_a_case, t

FLOATS = "f32 bf16 f64"
X = t(3, 5, low=-4.0, high=4.0)
G = t(3, 5)


def both(name: str, *options: object, **keywords: object) -> list[Case]:
    """A function with its gradient by autograd, and PyTorch's own operator for that gradient."""
    return [
        *cases(f"aten::{name}", X, *options, **keywords, over=FLOATS, grad=True),
        *cases(f"aten::{name}_backward", G, X, *options, **keywords, over=FLOATS),
    ]


CASES = [
    *cases("aten::relu", X, over=FLOATS + " i64", grad=True),
    *cases("aten::relu6", X, over=FLOATS, grad=True),
    *both("threshold", 0.5, -2.0)[:3],
    *cases("aten::threshold_backward", G, X, 0.5, over=FLOATS),
    *both("leaky_relu", 0.1)[:3],
    *cases("aten::leaky_relu_backward", G, X, 0.1, False, over=FLOATS),
    *cases("aten::leaky_relu_backward", G, X, 0.1, True),
    *cases("aten::_prelu_kernel", X, t(1, 5), over=FLOATS, grad=True),
    *cases("aten::_prelu_kernel_backward", G, X, t(1, 5), over=FLOATS),
    *cases("aten::prelu", X, t(5), over=FLOATS, grad=True),
    *cases("aten::prelu", t(2, 3, 4), t(1), grad=True),
    *cases("aten::prelu", t(2, 3, 4), t(3), grad=True),
    *both("hardtanh", -1.5, 2.0),
    *both("hardsigmoid")[:5],
    # torch's factor 1/6 is a float32 number here
    *cases("aten::hardsigmoid_backward", G, X, over="f64", tolerance=(1e-7, 1e-7)),
    *both("hardswish"),
    *both("hardshrink", 0.7)[:3],
    *cases("aten::hardshrink_backward", G, X, 0.7, over=FLOATS),
    *both("softshrink", 0.7),
    *both("silu"),
    *both("gelu"),
    *both("gelu", approximate="tanh"),
    *both("mish"),
    *cases("aten::glu", t(3, 6), over=FLOATS, grad=True),
    *cases("aten::glu", t(4, 3), 0, grad=True),
    *cases("aten::glu_backward", t(3, 3), t(3, 6), -1, over=FLOATS),
    *cases("aten::elu", X, over=FLOATS, grad=True),
    *cases("aten::elu", X, 1.5, 0.7, 2.0, over=FLOATS, grad=True),
    *cases("aten::elu_backward", G, 1.5, 0.7, 2.0, False, X, over=FLOATS),
    *cases("aten::elu_backward", G, 1.5, 0.7, 2.0, True, X, over=FLOATS),
    *cases("aten::celu", X, 1.5, over=FLOATS, grad=True),
    *cases("aten::selu", X, over=FLOATS, grad=True),
    *both("softplus", 2.0, 3.0),
    *cases("aten::log_sigmoid_forward", X, over=FLOATS),
    *cases("aten::log_sigmoid", X, over=FLOATS, grad=True),
    *cases(
        "aten::log_sigmoid_backward",
        G,
        X,
        t(3, 5),
        over=FLOATS,
        reference=lambda g, x, _: torch.ops.aten.log_sigmoid_backward(g, x, torch.exp(-x.abs())),
    ),
]
COMPARISON = Comparison(CASES)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_torch(case: Case) -> None:
    COMPARISON.check(case)


def test_every_operator_has_a_case() -> None:
    assert names_without_a_case(CASES, activations) == []
