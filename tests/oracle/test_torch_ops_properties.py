"""Types, broadcasting and slicing agree with torch for shapes and numbers that nobody chose."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import jax
import numpy as np
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from flint.frontends.torch_ops.tensors.elementwise import add, where
from flint.frontends.torch_ops.tensors.reductions import sum_, var_mean
from flint.frontends.torch_ops.tensors.shapes import (
    as_strided,
    slice_,
    slice_backward,
    slice_scatter,
    split,
)
from flint.frontends.torch_ops.types import cast, jax_dtype, result_type, torch_dtype
from tests.oracle.torch_op_cases import DTYPES, to_jax, to_numpy

QUICK = settings(max_examples=12)
MANY = settings(max_examples=200)
# PyTorch has no rules for types of 8 bits.
PROMOTED = sorted(name for name in DTYPES if not name.startswith("f8"))
BOUNDS = st.one_of(st.none(), st.integers(-7, 7), st.just(2**63 - 1))
SIZES = st.integers(0, 5)


@st.composite
def operands(draw: st.DrawFn) -> Any:
    """A tensor of some type with or without dimensions, or a Python number."""
    if draw(st.booleans()):
        return draw(st.sampled_from([True, 2, 2.5, 1j]))
    dtype = DTYPES[draw(st.sampled_from(PROMOTED))]
    return torch.ones((2,) * draw(st.integers(0, 1)), dtype=dtype)


@MANY
@given(operands(), operands())
@example(torch.ones(2, dtype=torch.bfloat16), torch.ones((), dtype=torch.complex128))
@example(torch.ones(2, dtype=torch.int64), torch.ones((), dtype=torch.complex128))
def test_results_have_the_types_of_torch(x: Any, y: Any) -> None:
    expected = torch.result_type(x, y)
    assume(expected != torch.complex32)  # JAX has no such type
    with jax.enable_x64(True):
        mine = [to_jax(v) if isinstance(v, torch.Tensor) else v for v in (x, y)]
        assert result_type(*mine) == expected


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_types_have_one_counterpart(name: str) -> None:
    dtype = DTYPES[name]
    with jax.enable_x64(True):
        assert jax_dtype(dtype) == to_numpy(torch.ones(1, dtype=dtype)).dtype
        assert torch_dtype(jax.numpy.ones(1, jax_dtype(dtype))) == dtype


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_a_type_is_converted_only_where_it_differs(name: str) -> None:
    with jax.enable_x64(True):
        x = to_jax(torch.ones(2, dtype=DTYPES[name]))
        assert cast(x, DTYPES[name]) is x
        assert cast(x, None) is x


@QUICK
@given(
    st.lists(st.tuples(st.integers(1, 3), st.sampled_from("xyb")), max_size=3), st.integers(0, 2)
)
def test_shapes_are_broadcast(dims: list[tuple[int, str]], cut: int) -> None:
    x = torch.rand([1 if who == "y" else n for n, who in dims])
    y = torch.rand([1 if who == "x" else n for n, who in dims][min(cut, len(dims)) :])
    got = add(to_jax(x), to_jax(y))
    np.testing.assert_array_equal(got, (x + y).numpy())
    chosen = where(to_jax(x > 0.5), to_jax(y), 0.5)
    np.testing.assert_array_equal(chosen, torch.where(x > 0.5, y, 0.5).numpy())


@QUICK
@given(SIZES, BOUNDS, BOUNDS, st.integers(1, 3), st.integers(-2, 1))
def test_slices(size: int, start: int | None, end: int | None, step: int, dim: int) -> None:
    shape = [2, 2]
    shape[dim] = size
    x = torch.rand(shape)
    part = torch.ops.aten.slice.Tensor(x, dim, start, end, step)
    np.testing.assert_array_equal(slice_(to_jax(x), dim, start, end, step), part.numpy())
    into = torch.ops.aten.slice_scatter(x, part * 2, dim, start, end, step)
    mine = slice_scatter(to_jax(x), to_jax(part * 2), dim, start, end, step)
    np.testing.assert_array_equal(mine, into.numpy())
    if start is None or end is None:
        return
    back = torch.ops.aten.slice_backward(part, shape, dim, start, end, step)
    mine = slice_backward(to_jax(part), shape, dim, start, end, step)
    np.testing.assert_array_equal(mine, back.numpy())


@QUICK
@given(st.integers(1, 7), st.integers(1, 4))
def test_parts(size: int, count: int) -> None:
    x = torch.rand(size, 2)
    for mine, theirs in zip(split(to_jax(x), count, 0), x.split(count), strict=True):
        np.testing.assert_array_equal(mine, theirs.numpy())


@QUICK
@given(st.lists(st.integers(1, 3), min_size=1, max_size=3), st.data())
def test_reductions_along_dimensions(shape: list[int], data: st.DataObject) -> None:
    places = st.integers(-len(shape), len(shape) - 1)
    dims = data.draw(st.lists(places, unique_by=lambda d: d % len(shape)))
    keep = data.draw(st.booleans())
    x = torch.rand(shape)
    np.testing.assert_allclose(
        sum_(to_jax(x), dims, keep), x.sum(dims, keep).numpy(), rtol=1e-6, atol=1e-6
    )
    for mine, theirs in zip(
        var_mean(to_jax(x), dims, correction=0, keepdim=keep),
        torch.var_mean(x, dims, correction=0, keepdim=keep),
        strict=True,
    ):
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-5, atol=1e-6)


@QUICK
@given(st.permutations([0, 1, 2]), st.lists(st.integers(1, 3), min_size=3, max_size=3))
def test_strides_of_permuted_tensors(order: list[int], shape: list[int]) -> None:
    x = torch.arange(float(np.prod(shape)))
    view = x.view(shape).permute(order)
    mine = as_strided(to_jax(x), list(view.shape), list(view.stride()))
    np.testing.assert_array_equal(mine, view.numpy())
