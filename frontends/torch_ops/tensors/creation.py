"""Tensors made from nothing: filled, counted, or with the shape of another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flint.frontends.torch_ops.lazy_jax import jnp, lax
from flint.frontends.torch_ops.registry import torch_op
from flint.frontends.torch_ops.types import Number, cast, jax_dtype, torch_dtype

if TYPE_CHECKING:
    from jax import Array

# filled with one value ------------------------------------------------------------------------


@torch_op("aten::full")
def full(
    size: Sequence[int], fill_value: Number, *, dtype: torch.dtype | None = None, **_: object
) -> Array:
    """One value everywhere, in its own type unless another is given."""
    dtype = dtype or torch_dtype(fill_value)
    if isinstance(fill_value, Number):
        return lax.full(tuple(size), fill_value, jax_dtype(dtype))
    return lax.broadcast(cast(fill_value, dtype), tuple(size))


@torch_op("aten::full_like")
def full_like(
    x: Array, fill_value: Number, *, dtype: torch.dtype | None = None, **_: object
) -> Array:
    """One value everywhere, in the shape of another tensor."""
    return full(x.shape, fill_value, dtype=dtype or torch_dtype(x))


def new_full(
    x: Array,
    size: Sequence[int],
    fill_value: Number,
    *,
    dtype: torch.dtype | None = None,
    **_: object,
) -> Array:
    """One value everywhere, in the type of another tensor."""
    return full(size, fill_value, dtype=dtype or torch_dtype(x))


@torch_op("aten::empty.memory_format")
def zeros(size: Sequence[int], *, dtype: torch.dtype | None = None, **_: object) -> Array:
    """Zeros; also where PyTorch leaves the values open."""
    return full(size, 0, dtype=dtype or torch.get_default_dtype())


@torch_op("aten::empty_permuted", "aten::empty_strided")
def empty_strided(
    size: Sequence[int], order: Sequence[int], /, *, dtype: torch.dtype | None = None, **_: object
) -> Array:
    """Zeros: PyTorch leaves the values open; the order in memory plays no part."""
    return zeros(size, dtype=dtype)


@torch_op("aten::new_empty_strided")
def new_empty_strided(
    x: Array,
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    **_: object,
) -> Array:
    """Zeros: PyTorch leaves the values open; the order in memory plays no part."""
    return new_full(x, size, 0, dtype=dtype)


@torch_op("aten::scalar_tensor")
def scalar_tensor(value: Number, *, dtype: torch.dtype | None = None, **_: object) -> Array:
    """A number as a tensor without dimensions, floating unless a type is given."""
    return full((), value, dtype=dtype or torch.get_default_dtype())


# counted --------------------------------------------------------------------------------------


@torch_op("aten::arange.start_step")
def arange(
    start: float, end: float, step: float = 1, *, dtype: torch.dtype | None = None, **_: object
) -> Array:
    """start, start + step, ... below end."""
    whole = all(isinstance(number, int) for number in (start, end, step))
    wanted = dtype or (torch.int64 if whole else torch.get_default_dtype())
    count = math.ceil((end - start) / step)
    fractions = not whole and not wanted.is_floating_point
    exact = torch.get_default_dtype() if fractions else wanted
    return cast(_line(count, start, step, exact), wanted)


@torch_op("prims::iota")
def iota(length: int, *, start: int, step: int, dtype: torch.dtype, **_: object) -> Array:
    """start, start + step, ...: so many of them."""
    return _line(length, start, step, dtype)


# matrices -------------------------------------------------------------------------------------


@torch_op("aten::tril_indices")
def tril_indices(
    row: int, col: int, offset: int = 0, *, dtype: torch.dtype | None = None, **_: object
) -> Array:
    """Rows and columns of what lies on and below a diagonal."""
    return _index_pairs(np.tril_indices(row, offset, col), dtype)


@torch_op("aten::triu_indices")
def triu_indices(
    row: int, col: int, offset: int = 0, *, dtype: torch.dtype | None = None, **_: object
) -> Array:
    """Rows and columns of what lies on and above a diagonal."""
    return _index_pairs(np.triu_indices(row, offset, col), dtype)


# shared ---------------------------------------------------------------------------------------


def _line(count: int, start: Number, step: Number, dtype: torch.dtype) -> Array:
    numbers = lax.iota(jax_dtype(dtype), count)
    if step != 1:
        numbers = lax.mul(numbers, lax.full_like(numbers, step))
    return numbers if start == 0 else lax.add(numbers, lax.full_like(numbers, start))


def _index_pairs(
    pairs: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]], dtype: torch.dtype | None
) -> Array:
    return jnp.asarray(np.stack(pairs).astype(jax_dtype(dtype or torch.int64)))
