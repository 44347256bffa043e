"""New tensors have the values, shapes and types of torch; lists and assertions are understood."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from flint.frontends.torch_ops.tensors import creation, foreach, identities
from tests.oracle.torch_op_cases import (
    Case,
    Comparison,
    bools,
    cases,
    exactly,
    names_without_a_case,
    t,
)

X = t(2, 3)
OPEN = {"undefined": (0,)}  # values that PyTorch leaves open

FILLED = [
    *cases("aten::full", [2, 3], 1.5),
    *cases("aten::full", [2, 3], 2),
    *cases("aten::full", [2], True),
    *cases("aten::full", [2], 1j),
    *cases("aten::full", [], 0, dtype=torch.bfloat16, device="cpu", pin_memory=False),
    *cases("aten::full_like", X, 7, over="f32 bf16 i64"),
    *cases("aten::full_like", X, 1.5, dtype=torch.float64),
    *cases("aten::empty.memory_format", [2, 3], dtype=torch.bfloat16, **OPEN),
    *cases("aten::empty_permuted", [2, 3], [1, 0], dtype=torch.int64, **OPEN),
    *cases("aten::empty_strided", [2, 3], [1, 2], **OPEN),
    *cases("aten::new_empty_strided", X, [4, 1], [1, 1], **OPEN),
    *cases("aten::scalar_tensor", 2),
    *cases("aten::scalar_tensor", -3.3895313892515355e38, dtype=torch.bfloat16),
    *cases("aten::scalar_tensor", True, dtype=torch.bool),
]
COUNTED = [
    *cases("aten::arange.start_step", 0, 16, dtype=torch.float32),
    *cases("aten::arange.start_step", 1, 8, 3),
    *cases("aten::arange.start_step", 5, 0, -2),
    *cases("aten::arange.start_step", 0.5, 2.0, 0.25),
    *cases("aten::arange.start_step", 0.5, 4.5, 1.0, dtype=torch.int64),
    *cases("aten::arange.start_step", 3, 3),
    *cases("prims::iota", 5, start=2, step=3, dtype=torch.int32, device="cpu", requires_grad=False),
    *cases("aten::tril_indices", 4, 4, -1),
    *cases("aten::triu_indices", 3, 4, 1, dtype=torch.int32),
]
PAIR, OTHER, POSITIVE = [X, t(3)], [t(3), t(3)], [t(2, 3, low=0.1), t(3, low=0.1)]


def each(names: str, *lists: object, **options: object) -> list[Case]:
    return [c for name in names.split() for c in cases(f"aten::_foreach_{name}", *lists, **options)]


LISTS = [
    *each("abs ceil cos erf exp expm1 floor neg sigmoid sign sin tanh trunc", PAIR),
    *each("log log1p reciprocal rsqrt sqrt", POSITIVE),
    *each("add.List sub.List mul.List div.List maximum.List minimum.List", PAIR, OTHER),
    *each("add.List", PAIR, OTHER, alpha=2),
    *each("add.Scalar sub.Scalar mul.Scalar div.Scalar pow.Scalar", POSITIVE, 2.5),
    *each("maximum.Scalar minimum.Scalar clamp_max.Scalar clamp_min.Scalar", PAIR, 0.5),
    *each("add.ScalarList sub.ScalarList mul.ScalarList div.ScalarList", PAIR, [2, 0.5]),
    *each("maximum.ScalarList minimum.ScalarList", PAIR, [0.5, 1.0]),
    *each("clamp_max.ScalarList clamp_min.ScalarList", PAIR, [0.5, 1.0]),
    *each("clamp_max.List clamp_min.List copy", PAIR, OTHER),
    *each("mul.Tensor div.Tensor add.Tensor", PAIR, t()),
    *each("pow.List", POSITIVE, OTHER),
    *each("pow.ScalarList", POSITIVE, [2.0, 0.5]),
    *each("pow.ScalarAndTensor", 2, PAIR),
    *each("lerp.Scalar", PAIR, OTHER, 0.3),
    *each("lerp.List", PAIR, OTHER, OTHER),
    *each("lerp.ScalarList", PAIR, OTHER, [0.3, 0.7]),
    *each("addcmul.Scalar", PAIR, OTHER, OTHER, 0.5),
    *each("addcmul.ScalarList", PAIR, OTHER, OTHER, [0.5, 2.0]),
    *each("addcdiv.Scalar", PAIR, OTHER, POSITIVE[1:] * 2, -0.5),
    *each("addcdiv.ScalarList", PAIR, OTHER, POSITIVE[1:] * 2, [0.5, 2.0]),
    *each("norm.Scalar", PAIR, 2),
]
CHECKS = [
    *cases("aten::_assert_async", exactly(True)),
    *cases("aten::_assert_async.msg", exactly(True), "message"),
    *cases("aten::_functional_assert_async.msg", bools(1), "m", t(0), reference=lambda *_: None),
    *cases("aten::_assert_scalar", True, "message"),
    *cases("aten::_assert_tensor_metadata", X, None, None, torch.float32),
    *cases("aten::sym_constrain_range", 3, min=1, reference=lambda *_, **__: None),
    *cases("aten::sym_constrain_range_for_size", 3, min=1, reference=lambda *_, **__: None),
]
CASES = [*FILLED, *COUNTED, *LISTS, *CHECKS]
COMPARISON = Comparison(CASES)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_torch(case: Case) -> None:
    COMPARISON.check(case)


def test_every_operator_has_a_case() -> None:
    # these say where a value lies: what they give is tested where programs are partitioned
    placing = [f"flint::{name}.default" for name in ("constrain", "gather_again", "identity")]
    assert sorted(names_without_a_case(CASES, creation, foreach, identities)) == placing
