"""Products of matrices in groups of uneven sizes: the experts of a mixture."""

from __future__ import annotations

from typing import Any

import torch
from jax import lax

from flint.frontends.torch_ops.registry import torch_op
from flint.frontends.torch_ops.types import jax_dtype


@torch_op("aten::_grouped_mm")
def grouped_mm(
    a: Any, b: Any, offs: Any = None, bias: Any = None, out_dtype: torch.dtype | None = None
) -> Any:
    """One product for each group; `offs` holds where each group ends.

    Groups are along the rows of `a` (2D x 3D), the columns of `b` (3D x 2D), the contracted
    dimension (2D x 2D), or a dimension of their own (3D x 3D).
    """
    wanted = jax_dtype(out_dtype) if out_dtype is not None else a.dtype
    if a.ndim == 3 and b.ndim == 3:
        out = lax.dot_general(a, b, (((2,), (1,)), ((0,), (0,))), preferred_element_type=wanted)
    else:
        out = _ragged(a, b, _sizes(offs), wanted)
    return out if bias is None else out + bias.astype(out.dtype)


def _sizes(ends: Any) -> Any:
    """Sizes of groups from where they end: ends less the ends before."""
    zero = ends.dtype.type(0)
    return ends - lax.pad(ends, zero, [(1, -1, 0)])


def _ragged(a: Any, b: Any, sizes: Any, wanted: Any) -> Any:
    if a.ndim == 2 and b.ndim == 3:  # (m, k) x (g, k, n): rows of a
        return lax.ragged_dot(a, b, sizes, preferred_element_type=wanted)
    if a.ndim == 3:  # (g, m, k) x (k, n): columns of b, which must be the left operand
        numbers = lax.RaggedDotDimensionNumbers((((0,), (2,)), ((), ())), [1], [0])
        found = lax.ragged_dot_general(b, a, sizes, numbers, preferred_element_type=wanted)
        return found.T
    numbers = lax.RaggedDotDimensionNumbers((((1,), (0,)), ((), ())), [1], [])
    return lax.ragged_dot_general(a, b, sizes, numbers, preferred_element_type=wanted)
