"""Views and copies that move numbers around: shapes, slices, joins, padding, windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flint.errors import FlintError
from flint.frontends.torch_ops.lazy_jax import jax, jnp, lax
from flint.frontends.torch_ops.registry import register_all, torch_op
from flint.frontends.torch_ops.types import (
    Number,
    broadcast,
    cast,
    dimension,
    result_type,
    torch_dtype,
)

if TYPE_CHECKING:
    from jax import Array


@torch_op("aten::squeeze.dims")
def squeeze_dims(x: Array, dim: int | Sequence[int]) -> Array:
    dims = {dimension(d, x.ndim) for d in ([dim] if isinstance(dim, int) else dim)}
    return _reshaped(x, [size for d, size in enumerate(x.shape) if size != 1 or d not in dims])


@torch_op("aten::unsqueeze")
def unsqueeze(x: Array, dim: int) -> Array:
    axis = dim % (x.ndim + 1)
    return _reshaped(x, (*x.shape[:axis], 1, *x.shape[axis:]))


@torch_op("aten::expand")
def expand(x: Array, size: Sequence[int], *, implicit: bool = False) -> Array:
    """With dimensions of size 1 repeated, and new ones in front; -1 keeps a size."""
    kept = (*(1,) * (len(size) - x.ndim), *x.shape)
    return broadcast(x, [old if new == -1 else new for old, new in zip(kept, size, strict=True)])


@torch_op("aten::as_strided", "aten::as_strided_copy")
def as_strided(
    x: Array, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Array:
    """The same numbers in another shape and order, if every number stays and is there once.

    Raises:
        FlintError: FL228, the strides describe overlapping or omitted numbers.
    """
    order = sorted(range(len(size)), key=lambda d: (-stride[d], size[d] == 1))
    dense = 1
    for d in reversed(order):
        fits = size[d] == 1 or stride[d] == dense
        if not fits or storage_offset:
            raise _no_plain_view(x, size, stride)
        dense *= size[d]
    if dense != x.size:
        raise _no_plain_view(x, size, stride)
    in_memory = _reshaped(x, [size[d] for d in order])
    return _transposed(in_memory, [order.index(d) for d in range(len(size))])


@torch_op("aten::slice.Tensor", "aten::slice_copy.Tensor")
def slice_(
    x: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Array:
    """A part of a dimension; bounds count from its end if negative, and stop at its end."""
    axis = dimension(dim, x.ndim)
    first, last, _ = slice(start, end, step).indices(x.shape[axis])
    if (first, last, step) == (0, x.shape[axis], 1):
        return x
    return lax.slice_in_dim(x, first, max(first, last), step, axis)


@torch_op("aten::slice_backward")
def slice_backward(
    grad: Array, input_sizes: Sequence[int], dim: int, start: int, end: int, step: int
) -> Array:
    return _spread(grad, input_sizes[dim], dim, start, end, step)


@torch_op("aten::slice_scatter")
def slice_scatter(
    x: Array,
    src: Array,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Array:
    """A tensor with a part of a dimension replaced by another."""
    axis = dimension(dim, x.ndim)
    src = cast(src, torch_dtype(x))
    first, _, _ = slice(start, end, step).indices(x.shape[axis])
    if src.shape == x.shape or not src.size:
        return src if src.size else x
    if step == 1:
        return lax.dynamic_update_slice_in_dim(x, src, first, axis)
    inside = _spread(lax.full_like(src, 1, dtype=jnp.bool_), x.shape[axis], axis, start, end, step)
    return lax.select(inside, _spread(src, x.shape[axis], axis, start, end, step), x)


@torch_op("aten::select_backward")
def select_backward(grad: Array, input_sizes: Sequence[int], dim: int, index: int) -> Array:
    axis = dimension(dim, len(input_sizes))
    at = index % input_sizes[axis]
    return _spread(lax.expand_dims(grad, (axis,)), input_sizes[axis], axis, at, at + 1, 1)


@torch_op("aten::split_copy.Tensor")
def split(x: Array, split_size: int, dim: int = 0) -> tuple[Array, ...]:
    """Parts of a dimension of one size; the last may be smaller."""
    size = x.shape[dim]
    starts = range(0, size, split_size) if size else [0]
    return tuple(slice_(x, dim, start, start + split_size) for start in starts)


@torch_op("aten::diagonal")
def diagonal(x: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    moved = _last_two(x, dim1, dim2)
    *batch, rows, columns = moved.shape
    first_row, first_column = max(-offset, 0), max(offset, 0)
    length = max(min(rows - first_row, columns - first_column), 0)
    if not length:
        return lax.full((*batch, 0), 0, x.dtype)
    flat = _reshaped(moved, (*batch, rows * columns))
    first = first_row * columns + first_column
    last = first + (length - 1) * (columns + 1) + 1
    return lax.slice_in_dim(flat, first, last, columns + 1, axis=flat.ndim - 1)


@torch_op("aten::cat")
def cat(tensors: Sequence[Any], dim: int = 0) -> Array:
    common = result_type(*tensors)
    # Tensors of shape (0,) may be joined with any others: they were PyTorch's first empty ones.
    joined = [cast(x, common) for x in tensors if x.shape != (0,)]
    if len(joined) < 2:
        return joined[0] if joined else cast(tensors[0], common)
    return lax.concatenate(joined, dimension(dim, joined[0].ndim))


def stack(tensors: Sequence[Any], dim: int = 0) -> Array:
    """One after another along a new dimension."""
    axis = dim % (tensors[0].ndim + 1)
    return cat([lax.expand_dims(x, (axis,)) for x in tensors], axis)


@torch_op("aten::repeat")
def repeat(x: Array, repeats: Sequence[int]) -> Array:
    missing = len(repeats) - x.ndim
    counts = (*(1,) * -missing, *repeats)
    sizes = (*(1,) * missing, *x.shape)
    if all(count == 1 for count in counts):
        return _reshaped(x, sizes)
    shape = [n for pair in zip(counts, sizes, strict=True) for n in pair]
    places = [2 * d + 1 for d in range(max(missing, 0), len(sizes))]
    spread = lax.broadcast_in_dim(x, shape, places)
    return _reshaped(spread, [n * count for n, count in zip(sizes, counts, strict=True)])


def replication_pad(x: Array, padding: Sequence[int]) -> Array:
    """The outermost numbers repeated around."""
    for axis, (low, high) in enumerate(_pairs(padding), x.ndim - len(padding) // 2):
        edge = list(x.shape)
        parts = [x]
        if low:
            edge[axis] = low
            parts.insert(0, broadcast(slice_(x, axis, 0, 1), edge))
        if high:
            edge[axis] = high
            parts.append(broadcast(slice_(x, axis, -1, None), edge))
        x = _joined(parts, axis)
    return x


@torch_op("aten::unfold")
def unfold(x: Array, dimension: int, size: int, step: int) -> Array:
    """Windows of a dimension, their insides in a new last dimension."""
    axis = dimension % max(x.ndim, 1)
    if not x.ndim:
        return lax.full((size,), x, x.dtype) if size else lax.full((0,), 0, x.dtype)
    count = (x.shape[axis] - size) // step + 1
    places = [slice_(x, axis, i, i + (count - 1) * step + 1, step) for i in range(size)]
    if step == size:
        whole = slice_(x, axis, 0, count * size)
        split_up = _reshaped(whole, (*x.shape[:axis], count, size, *x.shape[axis + 1 :]))
        rest = (d for d in range(split_up.ndim) if d != axis + 1)
        return _transposed(split_up, [*rest, axis + 1])
    return stack(places, -1)


def _reshaped(x: Array, size: Sequence[int]) -> Array:
    shape = list(size)
    if -1 in shape:
        known = math.prod(n for n in shape if n != -1)
        shape[shape.index(-1)] = x.size // max(known, 1)
    return x if x.shape == tuple(shape) else lax.reshape(x, shape)


def _transposed(x: Array, order: Sequence[int]) -> Array:
    return x if list(order) == list(range(x.ndim)) else lax.transpose(x, tuple(order))


def _joined(parts: list[Array], axis: int) -> Array:
    parts = [part for part in parts if part.shape[axis]]
    return parts[0] if len(parts) == 1 else lax.concatenate(parts, axis)


def _pairs(pad: Sequence[int]) -> list[tuple[int, int]]:
    """PyTorch lists the last dimension first; here they are in the order of the dimensions."""
    return list(zip(pad[::2], pad[1::2], strict=True))[::-1]


def _spread(
    part: Array, size: int, dim: int, start: int | None, end: int | None, step: int
) -> Array:
    """A part of a dimension at its places in the whole one, zeros elsewhere."""
    axis = dimension(dim, part.ndim)
    first, _, _ = slice(start, end, step).indices(size)
    taken = part.shape[axis]
    if not taken:
        return lax.full([size if d == axis else n for d, n in enumerate(part.shape)], 0, part.dtype)
    after = size - first - (taken - 1) * step - 1
    edges = [(0, 0, 0)] * part.ndim
    edges[axis] = (first, after, step - 1)
    return lax.pad(part, lax.full((), 0, part.dtype), edges)


def _last_two(x: Array, dim1: int, dim2: int) -> Array:
    d1, d2 = dim1 % x.ndim, dim2 % x.ndim
    return _transposed(x, [*(d for d in range(x.ndim) if d not in (d1, d2)), d1, d2])


def _no_plain_view(x: Array, size: Sequence[int], stride: Sequence[int]) -> FlintError:
    return FlintError(
        "FL228",
        f"as_strided of shape {list(size)} and strides {list(stride)} does not just reorder the "
        f"{x.size} numbers of its argument, {list(x.shape)}",
        help="use view, permute, slice or unfold instead",
    )


def _flip(x: Array, dims: Sequence[int]) -> Array:
    axes = tuple(dimension(d, x.ndim) for d in dims) if x.ndim else ()
    return lax.rev(x, axes) if axes else x


def _select(x: Array, dim: int, index: int) -> Array:
    return lax.index_in_dim(x, index, dimension(dim, x.ndim), keepdims=False)


def _select_scatter(x: Array, src: Array, dim: int, index: int) -> Array:
    axis = dimension(dim, x.ndim)
    at = index % x.shape[axis]
    return slice_scatter(x, lax.expand_dims(src, (axis,)), axis, at, at + 1)


def _narrow(x: Array, dim: int, start: int, length: int) -> Array:
    first = start % x.shape[dim] if start < 0 else start
    return slice_(x, dim, first, first + length)


def _split_with_sizes(x: Array, sizes: Sequence[int], dim: int = 0) -> tuple[Array, ...]:
    ends = np.cumsum(sizes).tolist()
    return tuple(slice_(x, dim, end - n, end) for end, n in zip(ends, sizes, strict=True))


def _constant_pad(x: Array, pad: Sequence[int], value: Number = 0) -> Array:
    """Negative amounts cut."""
    if not any(pad):
        return x
    edges = [(0, 0, 0)] * (x.ndim - len(pad) // 2) + [(low, high, 0) for low, high in _pairs(pad)]
    return lax.pad(x, lax.full((), value, x.dtype), edges)


def _replication_pad_backward(grad: Array, x: Array, padding: Sequence[int]) -> Array:
    abstract = jax.ShapeDtypeStruct(x.shape, grad.dtype)
    (result,) = jax.linear_transpose(lambda y: replication_pad(y, padding), abstract)(grad)
    return result


_REPLICATION = " ".join(f"replication_pad{n}d_backward" for n in (1, 2, 3))
register_all(
    {
        "view view_copy _reshape_copy": lambda x, size, stride=None: _reshaped(x, size),
        "permute permute_copy": lambda x, dims: _transposed(
            x, [dimension(d, x.ndim) for d in dims]
        ),
        "flip": _flip,
        "select.int select_copy.int": _select,
        "select_scatter": _select_scatter,
        "narrow_copy": _narrow,
        "split_with_sizes": _split_with_sizes,
        "unbind_copy.int": lambda x, dim=0: tuple(_select(x, dim, i) for i in range(x.shape[dim])),
        "constant_pad_nd": _constant_pad,
        _REPLICATION: _replication_pad_backward,
    }
)
