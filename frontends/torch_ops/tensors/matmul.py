"""Products of matrices and vectors. A result has the type of its operands, as PyTorch's kernels
give it: bfloat16 products are one `dot_general` of bfloat16, without conversions around it. Products in groups of uneven sizes are the experts of a mixture.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flint.frontends.torch_ops.lazy_jax import jnp, lax
from flint.frontends.torch_ops.registry import register_all, torch_op
from flint.frontends.torch_ops.types import Number, cast, jax_dtype

if TYPE_CHECKING:
    from jax import Array


_Dims = Sequence[int]


def _dot(
    a: Array, b: Array, contract: tuple[int, int], batch: int = 0, dtype: torch.dtype | None = None
) -> Array:
    """One `dot_general` over one dimension of each operand, and `batch` leading ones."""
    same = tuple(range(batch))
    numbers = (((contract[0],), (contract[1],)), (same, same))
    wanted = None if dtype is None else jax_dtype(dtype)
    return lax.dot_general(a, b, numbers, preferred_element_type=wanted)


def _plus(added: Array, product: Array, beta: Number, alpha: Number) -> Array:
    """beta * added + alpha * product; with beta 0 even NaN is not added."""
    product = _scaled(product, alpha)
    return product if beta == 0 else _scaled(added, beta).astype(product.dtype) + product


def _scaled(x: Array, factor: Number) -> Array:
    return x if factor == 1 else x * jnp.asarray(factor, x.dtype)


def _mm(a: Array, b: Array, out_dtype: torch.dtype | None = None) -> Array:
    return _dot(a, b, (1, 0), dtype=out_dtype)


def _bmm(a: Array, b: Array, out_dtype: torch.dtype | None = None) -> Array:
    return _dot(a, b, (2, 1), batch=1, dtype=out_dtype)


def _sum_of_bmm(a: Array, b: Array) -> Array:
    return lax.dot_general(a, b, (((0, 2), (0, 1)), ((), ())))


def _added_to(product: Callable[..., Array]) -> Callable[..., Array]:
    """beta * the first argument + alpha * the product of the rest."""
    return lambda added, *of, beta=1, alpha=1, **dtype: _plus(
        added, product(*of, **dtype), beta, alpha
    )


def _trilinear(
    a: Array, b: Array, c: Array, expand1: _Dims, expand2: _Dims, expand3: _Dims, sumdim: _Dims,
    unroll_dim: int = 1,
) -> Array:  # fmt: skip
    """The sum over some dimensions of a product of three, each without the dimensions it is given as new."""
    names = "abcdefghijklm"[: a.ndim + len(expand1)]
    first, second, third, left = (
        "".join(n for d, n in enumerate(names) if d not in without)
        for without in (expand1, expand2, expand3, sumdim)
    )
    return jnp.einsum(f"{first},{second},{third}->{left}", a, b, c)


register_all(
    {
        "_trilinear": _trilinear,
        "mm mm.dtype": _mm,
        "bmm bmm.dtype": _bmm,
        "addmm addmm.dtype addmv": _added_to(_mm),
        "baddbmm baddbmm.dtype": _added_to(_bmm),
        "addbmm": _added_to(_sum_of_bmm),
    }
)


@torch_op("aten::_scaled_mm")
def scaled_mm(
    a: Array,
    b: Array,
    scale_a: Array,
    scale_b: Array,
    bias: Array | None = None,
    scale_result: Array | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Array:
    """A product of 8-bit floats, with scales of tensors, of rows and columns, or of blocks."""
    if _blocks(scale_a, a.shape) or _blocks(scale_b, b.shape):
        a, b = _unscaled(a, scale_a), _unscaled(b, scale_b)
        out = _dot(a, b, (1, 0), dtype=torch.float32)
    else:
        out = _dot(a, b, (1, 0), dtype=torch.float32) * scale_a * scale_b
    if bias is not None:
        out = out + bias.astype(jnp.float32)
    if scale_result is not None and jnp.dtype(a.dtype).itemsize == 1 and out_dtype is None:
        out = out * scale_result
    return out.astype(a.dtype) if out_dtype is None else cast(out, out_dtype)


def _blocks(scale: Array, shape: tuple[int, ...]) -> bool:
    """Whether there is more than one scale along the contracted dimension or within rows."""
    return math.prod(scale.shape) not in (1, shape[0]) and scale.shape != (1, shape[1])


def _unscaled(x: Array, scale: Array) -> Array:
    """The numbers that blocks of 8-bit floats stand for."""
    rows, columns = (n // s for n, s in zip(x.shape, scale.shape, strict=True))
    whole = jnp.repeat(jnp.repeat(scale, rows, 0), columns, 1)
    return x.astype(jnp.float32) * whole.astype(jnp.float32)


@torch_op("aten::linalg_cholesky_ex")
def linalg_cholesky_ex(
    a: Array, *, upper: bool = False, check_errors: bool = False
) -> tuple[Array, Array]:
    """The Cholesky factor, and 0 for each matrix: nothing fails."""
    lower = lax.linalg.cholesky(a)
    factor = lower.mT.conj() if upper else lower
    return factor, jnp.zeros(a.shape[:-2], jnp.int32)


@torch_op("aten::linalg_solve_triangular")
def linalg_solve_triangular(
    a: Array, b: Array, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Array:
    """x of a x = b, or of x a = b, where `a` is triangular."""
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b))
    return lax.linalg.triangular_solve(
        a, b, left_side=left, lower=not upper, unit_diagonal=unitriangular
    )


@torch_op("aten::_grouped_mm")
def grouped_mm(
    a: Array,
    b: Array,
    offs: Array | None = None,
    bias: Array | None = None,
    out_dtype: torch.dtype | None = None,
) -> Array:
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


def _sizes(ends: Array) -> Array:
    """Sizes of groups from where they end: ends less the ends before."""
    zero = ends.dtype.type(0)
    return ends - lax.pad(ends, zero, [(1, -1, 0)])


def _ragged(a: Array, b: Array, sizes: Array, wanted: np.dtype[Any]) -> Array:
    if a.ndim == 2 and b.ndim == 3:  # (m, k) x (g, k, n): rows of a
        return lax.ragged_dot(a, b, sizes, preferred_element_type=wanted)
    if a.ndim == 3:  # (g, m, k) x (k, n): columns of b, which must be the left operand
        numbers = lax.RaggedDotDimensionNumbers((((0,), (2,)), ((), ())), [1], [0])
        found = lax.ragged_dot_general(b, a, sizes, numbers, preferred_element_type=wanted)
        return found.T
    numbers = lax.RaggedDotDimensionNumbers((((1,), (0,)), ((), ())), [1], [])
    return lax.ragged_dot_general(a, b, sizes, numbers, preferred_element_type=wanted)


@torch_op("transformers::grouped_mm_fallback")
def grouped_mm_of_transformers(x: Array, weight: Array, offs: Array) -> Array:
    """What Hugging Face's experts call where PyTorch's grouped product does not take their type."""
    return grouped_mm(x, weight, offs)


@torch_op("transformers::grouped_mm_fallback_backward")
def grouped_mm_of_transformers_backward(
    x: Array, weight: Array, offs: Array, gradient: Array
) -> tuple[Array, Array]:
    """The gradients of rows and of the weights of groups."""
    return grouped_mm(gradient, weight.mT, offs), grouped_mm(x.T, gradient, offs)
