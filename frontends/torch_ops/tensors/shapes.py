"""Views and copies that move numbers around: shapes, slices, joins, padding, windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from flint.errors import FlintError
from flint.frontends.torch_ops.registry import torch_op
from flint.frontends.torch_ops.types import (
    broadcast,
    cast,
    dimension,
    result_type,
    torch_dtype,
)

# shapes ---------------------------------------------------------------------------------------


@torch_op("aten::view", "aten::_unsafe_view", "aten::reshape", "aten::view_copy")
def view(x: Any, size: Sequence[int]) -> Array:
    """The same numbers in another shape; one size may be -1."""
    return _reshaped(x, size)


@torch_op("aten::_reshape_alias", "aten::_reshape_copy")
def reshape_alias(x: Any, size: Sequence[int], stride: Any = None) -> Array:
    """The same numbers in another shape."""
    return _reshaped(x, size)


@torch_op("aten::view_as", "aten::reshape_as")
def view_as(x: Any, other: Any) -> Array:
    """The same numbers in the shape of another tensor."""
    return _reshaped(x, other.shape)


@torch_op("aten::flatten.using_ints")
def flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Array:
    """Neighbouring dimensions as one."""
    first, last = dimension(start_dim, x.ndim), dimension(end_dim, x.ndim)
    return _reshaped(
        x, (*x.shape[:first], math.prod(x.shape[first : last + 1]), *x.shape[last + 1 :])
    )


@torch_op("aten::unflatten.int")
def unflatten(x: Any, dim: int, sizes: Sequence[int]) -> Array:
    """One dimension as several; one size may be -1."""
    axis = dimension(dim, x.ndim)
    known = -math.prod(sizes)
    parts = [x.shape[axis] // known if size == -1 else size for size in sizes]
    return _reshaped(x, (*x.shape[:axis], *parts, *x.shape[axis + 1 :]))


@torch_op("aten::squeeze", "aten::squeeze_copy")
def squeeze(x: Any) -> Array:
    """Without any dimension of size 1."""
    return _reshaped(x, [size for size in x.shape if size != 1])


@torch_op("aten::squeeze.dim", "aten::squeeze.dims", "aten::squeeze_copy.dim")
@torch_op("aten::squeeze_copy.dims")
def squeeze_dims(x: Any, dim: int | Sequence[int]) -> Array:
    """Without those of the dimensions that have size 1."""
    dims = {dimension(d, x.ndim) for d in ([dim] if isinstance(dim, int) else dim)}
    return _reshaped(x, [size for d, size in enumerate(x.shape) if size != 1 or d not in dims])


@torch_op("aten::unsqueeze", "aten::unsqueeze_copy")
def unsqueeze(x: Any, dim: int) -> Array:
    """With a new dimension of size 1."""
    axis = dim % (x.ndim + 1)
    return _reshaped(x, (*x.shape[:axis], 1, *x.shape[axis:]))


@torch_op("aten::expand", "aten::expand_copy")
def expand(x: Any, size: Sequence[int], *, implicit: bool = False) -> Array:
    """With dimensions of size 1 repeated, and new ones in front; -1 keeps a size."""
    kept = (*(1,) * (len(size) - x.ndim), *x.shape)
    return broadcast(x, [old if new == -1 else new for old, new in zip(kept, size, strict=True)])


@torch_op("aten::expand_as")
def expand_as(x: Any, other: Any) -> Array:
    """Repeated to the shape of another tensor."""
    return broadcast(x, other.shape)


@torch_op("aten::broadcast_tensors")
def broadcast_tensors(tensors: Sequence[Any]) -> tuple[Array, ...]:
    """All repeated to one common shape."""
    shape = np.broadcast_shapes(*(x.shape for x in tensors))
    return tuple(broadcast(x, shape) for x in tensors)


@torch_op("aten::as_strided", "aten::as_strided_copy")
def as_strided(
    x: Any, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Array:
    """The same numbers in another shape and order, if every number stays and is there once.

    Raises:
        FlintError: FL228, the strides describe overlapping or left out numbers.
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


# order of dimensions --------------------------------------------------------------------------


@torch_op("aten::permute", "aten::permute_copy")
def permute(x: Any, dims: Sequence[int]) -> Array:
    """Dimensions in another order."""
    return _transposed(x, [dimension(d, x.ndim) for d in dims])


@torch_op("aten::transpose.int", "aten::transpose_copy.int", "aten::swapaxes", "aten::swapdims")
def transpose(x: Any, dim0: int, dim1: int) -> Array:
    """Two dimensions exchanged."""
    order = list(range(x.ndim))
    if x.ndim:
        order[dim0], order[dim1] = order[dim1], order[dim0]
    return _transposed(x, order)


@torch_op("aten::t", "aten::t_copy", "aten::numpy_T")
def t(x: Any) -> Array:
    """Dimensions in the opposite order."""
    return _transposed(x, range(x.ndim)[::-1])


@torch_op("aten::mT")
def matrix_transpose(x: Any) -> Array:
    """The last two dimensions exchanged."""
    return transpose(x, -2, -1)


@torch_op("aten::mH", "aten::adjoint")
def adjoint(x: Any) -> Array:
    """The last two dimensions exchanged, and the complex conjugate."""
    return transpose(lax.conj(x) if jnp.iscomplexobj(x) else x, -2, -1)


@torch_op("aten::movedim.intlist", "aten::movedim.int")
def movedim(x: Any, source: int | Sequence[int], destination: int | Sequence[int]) -> Array:
    """Some dimensions moved to other places, the rest in their order."""
    sources, targets = ([d] if isinstance(d, int) else d for d in (source, destination))
    places = dict(zip((d % x.ndim for d in targets), (d % x.ndim for d in sources), strict=True))
    rest = iter(d for d in range(x.ndim) if d not in places.values())
    return _transposed(x, [places[d] if d in places else next(rest) for d in range(x.ndim)])


@torch_op("aten::flip")
def flip(x: Any, dims: Sequence[int]) -> Array:
    """In the opposite order along dimensions."""
    axes = tuple(dimension(d, x.ndim) for d in dims) if x.ndim else ()
    return lax.rev(x, axes) if axes else x


@torch_op("aten::rot90")
def rot90(x: Any, k: int = 1, dims: Sequence[int] = (0, 1)) -> Array:
    """Turned k times by 90 degrees in the plane of two dimensions."""
    first, second = (d % x.ndim for d in dims)
    turns = k % 4
    if turns == 2:
        return lax.rev(x, (first, second))
    if turns == 0:
        return x
    turned = transpose(x, first, second)
    return lax.rev(turned, (first if turns == 1 else second,))


@torch_op("aten::roll")
def roll(x: Any, shifts: int | Sequence[int], dims: int | Sequence[int] = ()) -> Array:
    """Moved along dimensions; what leaves at the end comes back at the start."""
    shift_list = [shifts] if isinstance(shifts, int) else list(shifts)
    dim_list = [dims] if isinstance(dims, int) else list(dims)
    if not dim_list:
        return _reshaped(roll(_reshaped(x, (-1,)), shift_list, [0]), x.shape)
    for shift, dim in zip(shift_list, dim_list, strict=True):
        axis = dimension(dim, x.ndim)
        cut = (-shift) % max(x.shape[axis], 1) if x.ndim else 0
        if cut:
            front = lax.slice_in_dim(x, 0, cut, axis=axis)
            x = lax.concatenate([lax.slice_in_dim(x, cut, None, axis=axis), front], axis)
    return x


@torch_op("aten::pixel_shuffle")
def pixel_shuffle(x: Any, upscale_factor: int) -> Array:
    """Channels as finer rows and columns."""
    *batch, channels, height, width = x.shape
    r, n = upscale_factor, len(batch)
    parts = _reshaped(x, (*batch, channels // (r * r), r, r, height, width))
    order = [*range(n), n, n + 3, n + 1, n + 4, n + 2]
    return _reshaped(
        _transposed(parts, order), (*batch, channels // (r * r), height * r, width * r)
    )


@torch_op("aten::pixel_unshuffle")
def pixel_unshuffle(x: Any, downscale_factor: int) -> Array:
    """Finer rows and columns as channels."""
    *batch, channels, height, width = x.shape
    r, n = downscale_factor, len(batch)
    parts = _reshaped(x, (*batch, channels, height // r, r, width // r, r))
    order = [*range(n), n, n + 2, n + 4, n + 1, n + 3]
    return _reshaped(_transposed(parts, order), (*batch, channels * r * r, height // r, width // r))


@torch_op("aten::channel_shuffle", "aten::native_channel_shuffle")
def channel_shuffle(x: Any, groups: int) -> Array:
    """Channels of all groups taken in turn."""
    n, channels, *space = x.shape
    parts = _reshaped(x, (n, groups, channels // groups, *space))
    return _reshaped(_transposed(parts, [0, 2, 1, *range(3, parts.ndim)]), x.shape)


# slices ---------------------------------------------------------------------------------------


@torch_op("aten::slice.Tensor", "aten::slice_copy.Tensor")
def slice_(
    x: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Array:
    """A part of a dimension; bounds count from its end if negative, and stop at its end."""
    axis = dimension(dim, x.ndim)
    first, last, _ = slice(start, end, step).indices(x.shape[axis])
    if (first, last, step) == (0, x.shape[axis], 1):
        return x
    return lax.slice_in_dim(x, first, max(first, last), step, axis)


@torch_op("aten::slice_backward")
def slice_backward(
    grad: Any, input_sizes: Sequence[int], dim: int, start: int, end: int, step: int
) -> Array:
    """The gradient through `slice`: zeros around and between."""
    return _spread(grad, input_sizes[dim], dim, start, end, step)


@torch_op("aten::slice_scatter")
def slice_scatter(
    x: Any,
    src: Any,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Array:
    """A tensor with another in place of a part of a dimension."""
    axis = dimension(dim, x.ndim)
    src = cast(src, torch_dtype(x))
    first, _, _ = slice(start, end, step).indices(x.shape[axis])
    if src.shape == x.shape or not src.size:
        return src if src.size else x
    if step == 1:
        return lax.dynamic_update_slice_in_dim(x, src, first, axis)
    inside = _spread(lax.full_like(src, 1, dtype=jnp.bool_), x.shape[axis], axis, start, end, step)
    return lax.select(inside, _spread(src, x.shape[axis], axis, start, end, step), x)


@torch_op("aten::select.int", "aten::select_copy.int")
def select(x: Any, dim: int, index: int) -> Array:
    """One place of a dimension, which disappears."""
    return lax.index_in_dim(x, index, dimension(dim, x.ndim), keepdims=False)


@torch_op("aten::select_backward")
def select_backward(grad: Any, input_sizes: Sequence[int], dim: int, index: int) -> Array:
    """The gradient through `select`: zeros around."""
    axis = dimension(dim, len(input_sizes))
    at = index % input_sizes[axis]
    return _spread(lax.expand_dims(grad, (axis,)), input_sizes[axis], axis, at, at + 1, 1)


@torch_op("aten::select_scatter")
def select_scatter(x: Any, src: Any, dim: int, index: int) -> Array:
    """A tensor with another in one place of a dimension."""
    axis = dimension(dim, x.ndim)
    at = index % x.shape[axis]
    return slice_scatter(x, lax.expand_dims(src, (axis,)), axis, at, at + 1)


@torch_op("aten::narrow", "aten::narrow_copy")
def narrow(x: Any, dim: int, start: int, length: int) -> Array:
    """`length` places of a dimension."""
    first = start % x.shape[dim] if start < 0 else start
    return slice_(x, dim, first, first + length)


@torch_op("aten::split_with_sizes", "aten::split_with_sizes_copy", "aten::unsafe_split_with_sizes")
@torch_op("aten::split.sizes")
def split_with_sizes(x: Any, split_sizes: Sequence[int], dim: int = 0) -> tuple[Array, ...]:
    """Parts of a dimension, of these sizes."""
    ends = np.cumsum(split_sizes)
    return tuple(
        slice_(x, dim, int(end) - size, int(end))
        for end, size in zip(ends, split_sizes, strict=True)
    )


@torch_op("aten::split.Tensor", "aten::unsafe_split.Tensor", "aten::split_copy.Tensor")
def split(x: Any, split_size: int, dim: int = 0) -> tuple[Array, ...]:
    """Parts of a dimension of one size; the last may be smaller."""
    size = x.shape[dim]
    starts = range(0, size, split_size) if size else [0]
    return tuple(slice_(x, dim, start, start + split_size) for start in starts)


@torch_op("aten::chunk", "aten::unsafe_chunk")
def chunk(x: Any, chunks: int, dim: int = 0) -> tuple[Array, ...]:
    """A dimension in at most so many equal parts; the last may be smaller."""
    return split(x, max(1, -(-x.shape[dim] // chunks)), dim)


@torch_op("aten::tensor_split.sections")
def tensor_split(x: Any, sections: int, dim: int = 0) -> tuple[Array, ...]:
    """A dimension in exactly so many parts; the first ones are larger by one if need be."""
    each, larger = divmod(x.shape[dim], sections)
    return split_with_sizes(x, [each + (i < larger) for i in range(sections)], dim)


@torch_op("aten::tensor_split.indices")
def tensor_split_indices(x: Any, indices: Sequence[int], dim: int = 0) -> tuple[Array, ...]:
    """A dimension cut before these places."""
    starts, ends = [0, *indices], [*indices, x.shape[dim]]
    return tuple(slice_(x, dim, start, end) for start, end in zip(starts, ends, strict=True))


@torch_op("aten::unbind.int", "aten::unbind_copy.int")
def unbind(x: Any, dim: int = 0) -> tuple[Array, ...]:
    """Every place of a dimension."""
    return tuple(select(x, dim, index) for index in range(x.shape[dim]))


@torch_op("aten::diagonal", "aten::diagonal_copy")
def diagonal(x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    """The diagonal of two dimensions, as a new last one."""
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


@torch_op("aten::diagonal_backward")
def diagonal_backward(
    grad: Any, input_sizes: Sequence[int], offset: int, dim1: int, dim2: int
) -> Array:
    """The gradient through `diagonal`: zeros beside it."""
    d1, d2 = dim1 % len(input_sizes), dim2 % len(input_sizes)
    placed = _on_diagonal(grad, input_sizes[d1], input_sizes[d2], offset)
    return _from_last_two(placed, d1, d2)


@torch_op("aten::diag_embed")
def diag_embed(x: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Array:
    """Matrices with the last dimension on their diagonal."""
    size = x.shape[-1] + abs(offset)
    placed = _on_diagonal(x, size, size, offset)
    return _from_last_two(placed, dim1 % placed.ndim, dim2 % placed.ndim)


# joins and repeats ----------------------------------------------------------------------------


@torch_op("aten::cat", "aten::concat", "aten::concatenate")
def cat(tensors: Sequence[Any], dim: int = 0) -> Array:
    """One after another along a dimension, in one type."""
    common = result_type(*tensors)
    # Tensors of shape (0,) may be joined with any others: they were PyTorch's first empty ones.
    joined = [cast(x, common) for x in tensors if x.shape != (0,)]
    if len(joined) < 2:
        return joined[0] if joined else cast(tensors[0], common)
    return lax.concatenate(joined, dimension(dim, joined[0].ndim))


@torch_op("aten::stack")
def stack(tensors: Sequence[Any], dim: int = 0) -> Array:
    """One after another along a new dimension."""
    axis = dim % (tensors[0].ndim + 1)
    return cat([lax.expand_dims(x, (axis,)) for x in tensors], axis)


@torch_op("aten::repeat", "aten::tile")
def repeat(x: Any, repeats: Sequence[int]) -> Array:
    """The whole tensor again and again along every dimension."""
    missing = len(repeats) - x.ndim
    counts = (*(1,) * -missing, *repeats)
    sizes = (*(1,) * missing, *x.shape)
    if all(count == 1 for count in counts):
        return _reshaped(x, sizes)
    shape = [n for pair in zip(counts, sizes, strict=True) for n in pair]
    places = [2 * d + 1 for d in range(max(missing, 0), len(sizes))]
    spread = lax.broadcast_in_dim(x, shape, places)
    return _reshaped(spread, [n * count for n, count in zip(sizes, counts, strict=True)])


@torch_op("aten::repeat_interleave.self_int")
def repeat_interleave(
    x: Any, repeats: int, dim: int | None = None, *, output_size: int | None = None
) -> Array:
    """Every place of a dimension several times in a row."""
    if dim is None:
        x, dim = _reshaped(x, (-1,)), 0
    axis = dimension(dim, x.ndim)
    shape = (*x.shape[: axis + 1], repeats, *x.shape[axis + 1 :])
    spread = lax.broadcast_in_dim(x, shape, [d for d in range(len(shape)) if d != axis + 1])
    return _reshaped(spread, (*x.shape[:axis], -1, *x.shape[axis + 1 :]))


# triangles ------------------------------------------------------------------------------------


@torch_op("aten::tril")
def tril(x: Any, diagonal: int = 0) -> Array:
    """Zeros above a diagonal."""
    rows, columns = _rows_and_columns(x)
    kept = lax.ge(lax.add(rows, lax.full_like(rows, diagonal)), columns)
    return lax.select(broadcast(kept, x.shape), x, lax.full_like(x, 0))


@torch_op("aten::triu")
def triu(x: Any, diagonal: int = 0) -> Array:
    """Zeros below a diagonal."""
    rows, columns = _rows_and_columns(x)
    kept = lax.le(lax.add(rows, lax.full_like(rows, diagonal)), columns)
    return lax.select(broadcast(kept, x.shape), x, lax.full_like(x, 0))


# padding --------------------------------------------------------------------------------------


@torch_op("aten::constant_pad_nd")
def constant_pad(x: Any, pad: Sequence[int], value: Any = 0) -> Array:
    """One value around; negative amounts cut."""
    edges = [(0, 0, 0)] * (x.ndim - len(pad) // 2) + [(low, high, 0) for low, high in _pairs(pad)]
    if not any(pad):
        return x
    return lax.pad(x, lax.full((), value, x.dtype), edges)


@torch_op("aten::reflection_pad1d", "aten::reflection_pad2d", "aten::reflection_pad3d")
def reflection_pad(x: Any, padding: Sequence[int]) -> Array:
    """The numbers inside mirrored around; the outermost stay single."""
    for axis, (low, high) in enumerate(_pairs(padding), x.ndim - len(padding) // 2):
        size = x.shape[axis]
        before = lax.rev(slice_(x, axis, 1, low + 1), (axis,))
        after = lax.rev(slice_(x, axis, size - 1 - high, size - 1), (axis,))
        x = _joined([before, x, after], axis)
    return x


@torch_op("aten::replication_pad1d", "aten::replication_pad2d", "aten::replication_pad3d")
def replication_pad(x: Any, padding: Sequence[int]) -> Array:
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


@torch_op(
    "aten::reflection_pad1d_backward",
    "aten::reflection_pad2d_backward",
    "aten::reflection_pad3d_backward",
)
def reflection_pad_backward(grad: Any, x: Any, padding: Sequence[int]) -> Array:
    """The gradient through `reflection_pad`."""
    return _transposed_map(lambda y: reflection_pad(y, padding), x.shape, grad)


@torch_op(
    "aten::replication_pad1d_backward",
    "aten::replication_pad2d_backward",
    "aten::replication_pad3d_backward",
)
def replication_pad_backward(grad: Any, x: Any, padding: Sequence[int]) -> Array:
    """The gradient through `replication_pad`."""
    return _transposed_map(lambda y: replication_pad(y, padding), x.shape, grad)


# windows --------------------------------------------------------------------------------------


@torch_op("aten::unfold", "aten::unfold_copy")
def unfold(x: Any, dimension: int, size: int, step: int) -> Array:
    """Windows of a dimension, their insides in a new last dimension."""
    axis = dimension % max(x.ndim, 1)
    if not x.ndim:
        return lax.full((size,), x, x.dtype) if size else lax.full((0,), 0, x.dtype)
    count = (x.shape[axis] - size) // step + 1
    places = [slice_(x, axis, i, i + (count - 1) * step + 1, step) for i in range(size)]
    if step == size:
        whole = slice_(x, axis, 0, count * size)
        split_up = _reshaped(whole, (*x.shape[:axis], count, size, *x.shape[axis + 1 :]))
        return movedim(split_up, axis + 1, -1)
    return stack(places, -1)


@torch_op("aten::unfold_backward")
def unfold_backward(grad: Any, input_sizes: Sequence[int], dim: int, size: int, step: int) -> Array:
    """The gradient through `unfold`: windows added where they overlap."""
    return _transposed_map(lambda y: unfold(y, dim, size, step), input_sizes, grad)


@torch_op("aten::im2col")
def im2col(
    x: Any,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Array:
    """The windows of images as columns, one for each position."""
    padded = constant_pad(x, [padding[1], padding[1], padding[0], padding[0]])
    spans = [
        range(0, padded.shape[d - 2] - dilation[d] * (kernel_size[d] - 1), stride[d])
        for d in (0, 1)
    ]
    parts = []
    for i, j in np.ndindex(*kernel_size):
        part = padded
        for axis, offset, span, spread in zip(
            (x.ndim - 2, x.ndim - 1), (i, j), spans, dilation, strict=True
        ):
            part = slice_(part, axis, offset * spread, offset * spread + span[-1] + 1, span.step)
        parts.append(part)
    columns = stack(parts, -3)
    rows = x.shape[-3] * math.prod(kernel_size)
    return _reshaped(columns, (*x.shape[:-3], rows, len(spans[0]) * len(spans[1])))


@torch_op("aten::col2im")
def col2im(
    x: Any,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Array:
    """Images from the columns of their windows, added where they overlap."""
    channels = x.shape[-2] // math.prod(kernel_size)
    return _transposed_map(
        lambda y: im2col(y, kernel_size, dilation, padding, stride),
        (*x.shape[:-2], channels, *output_size),
        x,
    )


# shared ---------------------------------------------------------------------------------------


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


def _spread(part: Array, size: int, dim: int, start: Any, end: Any, step: int) -> Array:
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


def _from_last_two(x: Array, d1: int, d2: int) -> Array:
    rest = iter(range(x.ndim - 2))
    last = {d1: x.ndim - 2, d2: x.ndim - 1}
    return _transposed(x, [last[d] if d in last else next(rest) for d in range(x.ndim)])


def _on_diagonal(x: Array, rows: int, columns: int, offset: int) -> Array:
    first = max(-offset, 0) * columns + max(offset, 0)
    *batch, length = x.shape
    after = rows * columns - first - (length - 1) * (columns + 1) - 1
    if not length:
        return lax.full((*batch, rows, columns), 0, x.dtype)
    edges = [(0, 0, 0)] * len(batch) + [(first, after, columns)]
    return _reshaped(lax.pad(x, lax.full((), 0, x.dtype), edges), (*batch, rows, columns))


def _rows_and_columns(x: Array) -> list[Array]:
    return [lax.broadcasted_iota(jnp.int32, x.shape[-2:], axis) for axis in (0, 1)]


def _transposed_map(linear: Any, shape: Sequence[int], cotangent: Array) -> Array:
    """What the transpose of a linear function of a tensor of `shape` gives."""
    abstract = jax.ShapeDtypeStruct(tuple(shape), cotangent.dtype)
    (result,) = jax.linear_transpose(linear, abstract)(cotangent)
    return result


def _no_plain_view(x: Array, size: Sequence[int], stride: Sequence[int]) -> FlintError:
    return FlintError(
        "FL228",
        f"as_strided of shape {list(size)} and strides {list(stride)} is no reordering of "
        f"the {x.size} numbers of its argument, {list(x.shape)}",
        help="say it with view, permute, slice or unfold instead",
    )
