"""Views, slices, joins, padding and windows are those of torch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from flint.errors import FlintError
from flint.frontends.torch_ops.tensors import shapes
from tests.oracle.torch_op_cases import Case, Comparison, cases, names_without_a_case, t, to_jax

END = 2**63 - 1
X = t(2, 3, 4)
GRAD = {"grad": True}


def padded(shape: tuple[int, ...], pad: list[int]) -> list[int]:
    """The shape with padding, which lists the last dimension first."""
    added = [low + high for low, high in zip(pad[::2], pad[1::2], strict=True)][::-1]
    return [
        n + more for n, more in zip(shape, [0] * (len(shape) - len(added)) + added, strict=True)
    ]


SHAPES = [
    *(
        c
        for name in ("view", "view_copy", "_reshape_copy")
        for size in ([6, 4], [2, -1], [1, 2, 3, 4])
        for c in cases(f"aten::{name}", X, size, grad=size == [6, 4])
    ),
    *cases("aten::view", X, [24], over="bf16 i64 bool c64"),
    *cases("aten::view", t(), [1, 1]),
    *cases("aten::view", t(0, 3), [3, 0]),
    *(
        c
        for copy in ("", "_copy")
        for c in (
            *cases(f"aten::as_strided{copy}", X, [6, 4], [4, 1]),
            *cases(f"aten::as_strided{copy}", X, [3, 1, 8], [1, 1, 3]),
            *cases(f"aten::permute{copy}", X, [2, 0, -2], over="f32 i64", **GRAD),
        )
    ),
    *cases("aten::squeeze.dims", t(1, 2, 1, 3), [0, 1, 2], **GRAD),
    *cases("aten::unsqueeze", t(2, 3), 1, **GRAD),
    *cases("aten::unsqueeze", t(2, 3), -1),
    *cases("aten::expand", t(3, 1), [2, -1, 4], over="f32 bf16 i64", **GRAD),
    *cases("aten::expand", t(), [2]),
]
ORDER = [*cases("aten::flip", X, [0, -1], over="f32 i64", **GRAD), *cases("aten::flip", X, [])]
SLICES = [
    *(
        c
        for bounds in ((0, 1, END), (1, -2, None), (2, 0, 3, 2), (2, 1, 100, 2), (0, 2, 1))
        for name in ("aten::slice.Tensor", "aten::slice_copy.Tensor")
        for c in cases(name, X, *bounds, grad=True)
    ),
    *cases("aten::slice.Tensor", X, 1, None, None),
    *cases("aten::slice_backward", t(2, 2, 4), [2, 3, 4], 1, 1, END, 1, over="f32 bf16"),
    *cases("aten::slice_backward", t(2, 3, 2), [2, 3, 4], 2, 1, END, 2),
    *cases("aten::slice_backward", t(2, 3, 0), [2, 3, 4], 2, 1, 1, 1),
    *cases("aten::slice_scatter", X, t(2, 2, 4), 1, 1, END, over="f32 bf16 i64", **GRAD),
    *cases("aten::slice_scatter", X, t(2, 3, 2), 2, 1, END, 2, **GRAD),
    *cases("aten::slice_scatter", X, t(2, 3, 4), 2, 0, END),
    *cases("aten::slice_scatter", X, t(2, 2, 4), 1, -2, None),
    *cases("aten::slice_scatter", X, t(2, 0, 4), 1, 3, END),
    *(
        c
        for name in ("aten::select.int", "aten::select_copy.int")
        for c in (*cases(name, X, 1, -1, **GRAD), *cases(name, X, -1, 0, over="i64"))
    ),
    *cases("aten::select_backward", t(2, 4), [2, 3, 4], 1, -1, over="f32 bf16"),
    *cases("aten::select_scatter", X, t(2, 4), 1, -1, over="f32 i64", **GRAD),
    *cases("aten::narrow_copy", X, 1, 1, 2),
    *cases("aten::split_with_sizes", X, [1, 3], 2, **GRAD),
    *cases("aten::split_copy.Tensor", X, 2),
    *cases("aten::unbind_copy.int", X, -1),
]
DIAGONALS = [
    *(
        c
        for offset in (0, 1, -1, 3, 5)
        for c in cases("aten::diagonal", t(2, 3, 4), offset, 1, 2, grad=True)
    ),
    *cases("aten::diagonal", X, 0, 2, 0),
]
JOINS = [
    *cases("aten::cat", [t(2, 1), t(2, 3)], -1, over="f32 bf16 i64", grad=True),
    *cases("aten::cat", [t(2, dtype="i64"), t(3, dtype="bf16")]),
    *cases("aten::cat", [t(0), t(2, 3)], 1),
    *cases("aten::cat", [t(2, 3)]),
    *cases("aten::repeat", t(2, 3), [2, 1, 3], over="f32 i64", **GRAD),
    *cases("aten::repeat", t(2, 3), [1, 1]),
    *cases("aten::repeat", t(), [2]),
]
PADDING = [
    *cases("aten::constant_pad_nd", X, [1, 2, 0, 1], 7, over="f32 bf16 i64", **GRAD),
    *cases("aten::constant_pad_nd", X, [-1, 1], **GRAD),
    *cases("aten::constant_pad_nd", X, [0, 0]),
    *(
        c
        for n, x, pad in (
            (1, t(2, 3, 4), [1, 2]),
            (2, t(2, 3, 4), [1, 2, 0, 2]),
            (3, t(2, 2, 3, 4), [1, 2, 0, 2, 1, 1]),
        )
        for c in cases(f"aten::replication_pad{n}d_backward", t(*padded(x.shape, pad)), x, pad)
    ),
]
WINDOWS = [
    *cases("aten::unfold", t(2, 9), 1, 3, 2, **GRAD),
    *cases("aten::unfold", t(7, 2), 0, 3, 3, over="f32 i64", **GRAD),
    *cases("aten::unfold", t(), 0, 1, 1),
]
CASES = [*SHAPES, *ORDER, *SLICES, *DIAGONALS, *JOINS, *PADDING, *WINDOWS]
COMPARISON = Comparison(CASES)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_torch(case: Case) -> None:
    COMPARISON.check(case)


def test_every_operator_has_a_case() -> None:
    assert names_without_a_case(CASES, shapes) == []


@pytest.mark.parametrize(
    ("size", "stride"), [([2, 3], [1, 1]), ([3], [2]), ([2, 2], [2, 2])], ids=str
)
def test_strides_that_are_no_reordering_are_refused(size: list[int], stride: list[int]) -> None:
    with pytest.raises(FlintError, match="does not just reorder the 4 numbers") as refused:
        shapes.as_strided(to_jax(torch.zeros(4)), size, stride)
    assert refused.value.code == "FL228"
