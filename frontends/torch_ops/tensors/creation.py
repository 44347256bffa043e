"""Tensors made from nothing: filled, counted, or with the shape of another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flint.frontends.torch_ops.lazy_jax import jnp, lax
from flint.frontends.torch_ops.registry import register_all, torch_op
from flint.frontends.torch_ops.types import Number, cast, jax_dtype, scaled, torch_dtype

if TYPE_CHECKING:
    from jax import Array


def _full(size: Sequence[int], fill_value: Number, dtype: torch.dtype) -> Array:
    if isinstance(fill_value, Number):
        return lax.full(tuple(size), fill_value, jax_dtype(dtype))
    return lax.broadcast(cast(fill_value, dtype), tuple(size))


def _zeros(
    size: Sequence[int], *_: object, dtype: torch.dtype | None = None, **__: object
) -> Array:
    return _full(size, 0, dtype or torch.get_default_dtype())


@torch_op("aten::arange.start_step")
def arange(
    start: float, end: float, step: float = 1, *, dtype: torch.dtype | None = None, **_: object
) -> Array:
    whole = all(isinstance(number, int) for number in (start, end, step))
    wanted = dtype or (torch.int64 if whole else torch.get_default_dtype())
    count = math.ceil((end - start) / step)
    fractions = not whole and not wanted.is_floating_point
    exact = torch.get_default_dtype() if fractions else wanted
    return cast(_line(count, start, step, exact), wanted)


def _line(count: int, start: Number, step: Number, dtype: torch.dtype) -> Array:
    numbers = scaled(lax.iota(jax_dtype(dtype), count), step)
    return numbers if start == 0 else lax.add(numbers, lax.full_like(numbers, start))


def _index_pairs(
    pairs: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]], dtype: torch.dtype | None
) -> Array:
    return jnp.asarray(np.stack(pairs).astype(jax_dtype(dtype or torch.int64)))


@torch_op("prims::iota")
def iota(length: int, *, start: int, step: int, dtype: torch.dtype, **_: object) -> Array:
    return _line(length, start, step, dtype)


register_all(
    {
        "full": lambda size, value, *, dtype=None, **_: _full(
            size, value, dtype or torch_dtype(value)
        ),
        "full_like": lambda x, value, *, dtype=None, **_: _full(
            x.shape, value, dtype or torch_dtype(x)
        ),
        "scalar_tensor": lambda value, *, dtype=None, **_: _full(
            (), value, dtype or torch.get_default_dtype()
        ),
        # PyTorch leaves these values open; the order in memory plays no part
        "empty.memory_format empty_permuted empty_strided": _zeros,
        "new_empty_strided": lambda x, size, _, *, dtype=None, **__: _full(
            size, 0, dtype or torch_dtype(x)
        ),
        "tril_indices": lambda row, column, offset=0, *, dtype=None, **_: _index_pairs(
            np.tril_indices(row, offset, column), dtype
        ),
        "triu_indices": lambda row, column, offset=0, *, dtype=None, **_: _index_pairs(
            np.triu_indices(row, offset, column), dtype
        ),
    }
)
