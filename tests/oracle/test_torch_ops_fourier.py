"""Fourier transforms against torch: dimensions, scales, halves, gradients."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("jax")

from flint.frontends.torch_ops.tensors import fourier
from tests.oracle.torch_op_cases import Case, Comparison, cases, names_without_a_case, t

CASES = [
    *[
        case
        for scale in range(3)
        for case in (
            *cases("aten::_fft_c2c", t(3, 8), [1], scale, True, over="c64 c128"),
            *cases("aten::_fft_c2c", t(4, 6, 5), [0, 2], scale, False, over="c64"),
            *cases("aten::_fft_r2c", t(3, 8), [1], scale, True, over="f32 f64"),
            *cases("aten::_fft_r2c", t(4, 6, 5), [0, 1], scale, False),
            *cases("aten::_fft_c2r", t(4, 6, 5), [0, 2], scale, 8, over="c64"),
            *cases("aten::_fft_c2r", t(3, 5), [1], scale, 9, over="c64"),
        )
    ],
    *cases("aten::_fft_c2c", t(3, 4, 5, 2), [0, 1, 2, 3], 0, True, over="c64"),
]
COMPARISON = Comparison(CASES)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_torch(case: Case) -> None:
    COMPARISON.check(case)


def test_every_operator_has_a_case() -> None:
    assert names_without_a_case(CASES, fourier) == []
