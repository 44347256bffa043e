"""Elementwise operators compute what torch computes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from flint.frontends.torch_ops.tensors import elementwise
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

NUMBERS = "f32 bf16 f16 f64 i32 i64 u8 c64"
REALS = "f32 bf16 f64 i64 bool"
FLOATS = "f32 bf16 f64"
INTS = "i64 i32 u8 bool"
INF, NAN = float("inf"), float("nan")
ODD = exactly([0.0, -0.0, 1.5, -2.5, 0.5, -0.5, 2.5, NAN, INF, -INF, 3e38], "f32")
POSITIVE = t(2, 3, low=0.1, high=4.0)
UNIT = t(2, 3, low=-0.9, high=0.9)


def unary(names: str, argument: object, over: str = FLOATS, **options: object) -> list[Case]:
    return [c for name in names.split() for c in cases(name, argument, over=over, **options)]


def binary(names: str, over: str, x: object = t(2, 3), y: object = t(3), **more: object) -> list:
    return [c for name in names.split() for c in cases(name, x, y, over=over, **more)]


ARITHMETIC = [
    *binary("aten::add.Tensor aten::mul.Tensor", NUMBERS + " bool", grad=True),
    *binary("aten::sub.Tensor", NUMBERS, grad=True),
    *cases("aten::add.Tensor", t(2, 3), t(3), alpha=2, over="f32 bf16 i64", grad=True),
    *cases("aten::sub.Tensor", t(2, 3), t(3), alpha=0.5, grad=True),
    *binary("aten::add.Scalar aten::sub.Scalar aten::mul.Scalar", "f32 bf16 i64", y=2),
    *binary("aten::div.Scalar", "f32 bf16 i64", y=2),
    *binary("aten::add.Scalar aten::mul.Scalar", "f32 i64 bool", y=2.5),
    *binary("aten::mul.Scalar", "f32 c64", y=2.5j),
    # a type promotes by its kind: of dimensions before scalars, of tensors before numbers
    *cases("aten::add.Tensor", t(2, 3, dtype="bf16"), t(dtype="f32")),
    *cases("aten::add.Tensor", t(2, 3, dtype="bf16"), t(3, dtype="f32")),
    *cases("aten::add.Tensor", t(2, 3, dtype="bf16"), t(3, dtype="f16")),
    *cases("aten::add.Tensor", t(2, 3, dtype="i32"), t(dtype="f64")),
    *cases("aten::add.Tensor", t(2, 3, dtype="i32"), t(dtype="i64")),
    *cases("aten::add.Tensor", t(dtype="i32"), t(dtype="i64")),
    *cases("aten::add.Tensor", t(2, dtype="u8"), t(2, dtype="i8")),
    *cases("aten::mul.Tensor", t(2, 3, dtype="c64"), t(3, dtype="bf16")),
    *cases("aten::mul.Tensor", t(2, 3, dtype="f64"), t(dtype="c64")),
    *cases("aten::mul.Tensor", t(2, 3, dtype="i64"), 1.5),
    *cases("aten::mul.Tensor", bools(2, 3), t(dtype="i32")),
    *binary("aten::div.Tensor", "f32 bf16 f64 i64 u8 c64", y=POSITIVE, grad=True),
    *binary(
        "aten::div.Tensor_mode", "f32 bf16 i64 i32", y=exactly([2, -3, 2]), rounding_mode="floor"
    ),
    *binary("aten::div.Tensor_mode", "f32 bf16 i64", y=exactly([2, -3, 2]), rounding_mode="trunc"),
    *binary("aten::div.Tensor_mode", "f32 i64", y=2, rounding_mode="floor"),
    *binary("aten::div.Scalar_mode", "f32 i64 u8", y=2, rounding_mode="floor"),
    *binary("aten::div.Scalar_mode", "i64", y=-2, rounding_mode="floor"),
    *binary("aten::div.Scalar_mode", "f32 i64", y=2, rounding_mode=None),
    *binary("aten::fmod.Tensor aten::remainder.Tensor", "f32 f64 i64", y=exactly([2, -3, 1])),
    *binary("aten::fmod.Scalar aten::remainder.Scalar", "f32 i64 u8", y=2),
    *binary("aten::remainder.Scalar", "f32 i64", y=-2),
    *cases("aten::remainder.Scalar_Tensor", 7, exactly([2, -3, 4]), over="f32 i64"),
    *cases("aten::lerp.Scalar", t(2, 3), t(3), 0.3, over=FLOATS, grad=True),
    *cases("aten::lerp.Tensor", t(2, 3), t(3), t(), over="f32 f64", grad=True),
    *cases("aten::addcmul", t(2, 3), t(3), t(2, 1), value=0.5, over=FLOATS, grad=True),
    *cases("aten::addcmul", t(2, 3), t(3), t(2, 1), over="i64"),
    *cases("aten::addcdiv", t(2, 3), t(3), POSITIVE, value=0.5, over=FLOATS, grad=True),
    *cases("aten::addcdiv", t(2, 3), t(3), POSITIVE),
    *binary("aten::hypot aten::atan2", "f32 f64", grad=True),
    *unary("aten::neg", t(2, 3), "f32 bf16 i64 c64"),
]
POWERS = [
    *(
        c
        for exponent in (2, 3, -1, -2, 0, 1, 0.5, -0.5, 2.7, 7)
        for c in cases(
            "aten::pow.Tensor_Scalar", POSITIVE, exponent, over="f32 bf16 f64", grad=True
        )
    ),
    *cases("aten::pow.Tensor_Scalar", t(2, 3), 2, over="i64 c64"),
    *cases("aten::pow.Tensor_Scalar", t(2, 3), 5, over="i64"),
    *cases("aten::pow.Tensor_Scalar", POSITIVE, 2.0, over="i64"),
    *cases("aten::pow.Tensor_Tensor", POSITIVE, t(3), over=FLOATS, grad=True),
    *cases("aten::pow.Tensor_Tensor", t(2, 3), ints(3, low=0, high=4), over="i64"),
    *cases("aten::pow.Scalar", 2, t(2, 3), over="f32 bf16"),
    *cases("aten::pow.Scalar", 2, ints(2, 3, high=5), over="i64"),
    *unary("aten::sqrt aten::rsqrt aten::reciprocal", POSITIVE, "f32 bf16 f64 i64", grad=True),
]
FUNCTIONS = [
    *unary("aten::exp aten::sin aten::cos", t(2, 3), "f32 bf16 f64 i64 c64", grad=True),
    *unary("aten::exp2 aten::expm1", t(2, 3), grad=True),
    *unary("aten::log", POSITIVE, "f32 bf16 f64 i64 c64", grad=True),
    *unary("aten::log2 aten::log10 aten::log1p", POSITIVE, grad=True),
    *unary("aten::tan aten::sinh aten::cosh", UNIT, "f32 f64 i64", grad=True),
    *unary("aten::tanh aten::sigmoid", t(2, 3), "f32 bf16 f64 i64 c64", grad=True),
    *unary("aten::atan", t(2, 3), "f32 f64", grad=True),
    *unary("aten::asin aten::acos", UNIT, "f32 f64", grad=True),
    *unary("aten::atanh", UNIT, "f32 f64", grad=True),
    *unary("aten::asinh", t(2, 3), "f32 f64", grad=True),
    *unary("aten::acosh", t(2, 3, low=1.1, high=4.0), "f32 f64", grad=True),
    *unary("aten::erf aten::erfc", t(2, 3), grad=True),
    *unary("aten::erfinv", UNIT, "f32", grad=True),
    *unary("aten::erfinv", UNIT, "f64", tolerance=(1e-6, 1e-6)),
    *unary("aten::lgamma", POSITIVE, "f32 f64", grad=True),
    *unary("aten::digamma", POSITIVE, "f32 f64", grad=True),
    *unary("aten::special_i0e aten::special_i1e", t(2, 3), "f32 f64"),
    *cases("aten::sigmoid_backward", t(2, 3), t(2, 3), over=FLOATS + " c64"),
    *cases("aten::tanh_backward", t(2, 3), t(2, 3), over=FLOATS + " c64"),
]
SIGNS = [
    *unary("aten::abs", t(2, 3), "f32 bf16 i64 c64", grad=True),
    *unary("aten::sign", t(2, 3), "f32 bf16 i64 bool"),
    *unary("aten::signbit", t(2, 3), "f32 bf16 i64"),
    *unary("aten::signbit", exactly([0.0, -0.0, INF, -INF])),
    *binary("aten::copysign.Tensor", "f32 bf16 i64"),
    *binary("aten::copysign.Scalar", "f32 i64", y=-1),
    *binary("aten::nextafter", "f32 f64"),
    *unary("aten::floor aten::ceil aten::trunc aten::round", t(2, 3), "f32 bf16 i64"),
    *unary("aten::floor aten::ceil aten::trunc aten::round", ODD, "f32"),
    *cases("aten::round.decimals", t(2, 3), decimals=2, over="f32 f64"),
    *cases("aten::round.decimals", t(2, 3), decimals=0, over="f32"),
]
_COMPARED = (exactly([[1, 2, 3], [3, 1, 2]]), exactly([1, 1, 3]))
COMPARISONS = [
    *(
        c
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
        for c in (
            *cases(f"aten::{name}.Tensor", *_COMPARED, over="f32 bf16 i64"),
            *cases(f"aten::{name}.Tensor", ODD, exactly([0.0] * 11)),
            *cases(f"aten::{name}.Tensor", t(2, 3, dtype="i64"), t(2, 3)),
            *cases(f"aten::{name}.Scalar", _COMPARED[0], 2, over="f32 bf16 i64"),
            *cases(f"aten::{name}.Scalar", _COMPARED[0], 1.5, over="i64"),
        )
    ),
    *cases("aten::eq.Tensor", bools(2, 3), bools(2, 3)),
    *unary("aten::isnan aten::isinf", ODD, "f32"),
    *unary("aten::isnan aten::isinf", t(2, 3), "i64 bool"),
]
_BITS = {"over": "i64 i32 u8 bool"}
LOGIC = [
    *binary("aten::logical_and aten::logical_or aten::logical_xor", "f32 i64 bool"),
    *unary("aten::logical_not", exactly([0, 1, 2]), "f32 i64 bool"),
    *(
        c
        for name in ("bitwise_and", "bitwise_or", "bitwise_xor")
        for c in (
            *cases(f"aten::{name}.Tensor", t(2, 3), t(3), **_BITS),
            *cases(f"aten::{name}.Scalar", t(2, 3), 3, over="i64 u8"),
        )
    ),
    *unary("aten::bitwise_not", t(2, 3), INTS),
    *(
        c
        for way, scalar in (("bitwise_left_shift", "Tensor_Scalar"), ("__lshift__", "Scalar"))
        for name in (way, way.replace("left", "right").replace("lsh", "rsh"))
        for c in (
            *cases(f"aten::{name}.Tensor", ints(2, 3, low=-9, high=9), ints(3, high=3)),
            *cases(f"aten::{name}.{scalar}", ints(2, 3, high=9, dtype="u8"), 2),
        )
    ),
]
CHOICES = [
    *cases("aten::where.self", bools(2, 1), t(3), t(2, 3), over="f32 bf16 i64", grad=True),
    *cases("aten::where.self", bools(2, 3), t(), t(2, 3, dtype="bf16")),
    *cases("aten::where.self", bools(2, 3), t(2, 3, dtype="i64"), t(3)),
    *binary("aten::maximum aten::minimum", "f32 bf16 i64 bool", grad=True),
    *binary("aten::maximum aten::minimum aten::fmax aten::fmin", "f32", x=ODD, y=t(11)),
    *binary("aten::fmax aten::fmin", "f32 i64", grad=True),
    *cases("aten::clamp", t(2, 3), -1, 1, over="f32 bf16 i64", grad=True),
    *cases("aten::clamp", t(2, 3), -1.0, None, over="f32 i64", grad=True),
    *cases("aten::clamp", t(2, 3), None, 0.5, over="f32 bf16"),
    *cases("aten::clamp", t(2, 3), 0.0, INF, over="f32 bf16"),
    *cases("aten::clamp.Tensor", t(2, 3), t(3, low=-2, high=-1), t(3, low=1, high=2), over="f32"),
    *cases("aten::clamp.Tensor", t(2, 3), None, t(3), over="f32 i64"),
]
COMPLEX = [
    *unary("aten::_conj aten::_conj_physical", t(2, 3), "c64"),
    *unary("aten::view_as_real", t(2, 3), "c64 c128", grad=True),
    *unary("aten::angle", t(2, 3), "f32 c64 i64"),
    *cases("aten::complex", t(2, 3), t(2, 3), over="f32 f64", grad=True),
    *cases("aten::polar", POSITIVE, t(2, 3), over="f32 f64", grad=True),
    *unary("aten::view_as_complex", t(2, 3, 2), "f32 f64", grad=True),
]
_TYPES = ("bool", "uint8", "int32", "int64", "bfloat16", "float16", "float32", "float64")
CONVERSIONS = [
    *(
        c
        for name in _TYPES
        for c in cases(
            "aten::_to_copy", t(2, 3, low=0), dtype=getattr(torch, name), over="f32 i64 bool bf16"
        )
    ),
    *cases("aten::_to_copy", t(2, 3), dtype=torch.complex64, over="f32 c128"),
    *cases("aten::_to_copy", t(2, 3), device="cpu", over="f32"),
    *cases("prims::convert_element_type", t(2, 3), torch.bfloat16, over="f32 i64"),
    *unary("aten::alias aten::clone", t(2, 3), "f32 i64"),
    *unary("aten::lift_fresh aten::lift_fresh_copy aten::lift", t(2, 3), "f32"),
    *cases("aten::copy", t(2, 3), t(3, dtype="f64"), over="f32 bf16 i64"),
    *cases("aten::view.dtype", t(2, 4), torch.int32, over="f32 i64"),
    *cases("aten::view.dtype", t(2, 4), torch.float64, over="f32", tolerance=(0, 0)),
    *cases("aten::view.dtype", t(2, 4), torch.uint8, over="f32 i32"),
]
CASES = [
    *ARITHMETIC,
    *POWERS,
    *FUNCTIONS,
    *SIGNS,
    *COMPARISONS,
    *LOGIC,
    *CHOICES,
    *COMPLEX,
    *CONVERSIONS,
]
COMPARISON = Comparison(CASES)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_torch(case: Case) -> None:
    COMPARISON.check(case)


def test_every_operator_has_a_case() -> None:
    assert names_without_a_case(CASES, elementwise) == []
