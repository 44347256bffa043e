"""Rows of tables by number, one by one and in bags, and the gradients of the tables."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

from flint.frontends.torch_ops.lazy_jax import jnp, lax
from flint.frontends.torch_ops.registry import torch_op
from flint.frontends.torch_ops.tensors.indexing import take
from flint.frontends.torch_ops.types import cast, torch_dtype

if TYPE_CHECKING:
    from jax import Array

Results: TypeAlias = "tuple[Array, Array, Array, Array]"

_MEAN, _MAX = 1, 2  # modes of embedding bags; 0 is the sum


@torch_op("aten::embedding")
def embedding(weight: Array, indices: Array, *_of_gradients: object) -> Array:
    return take(weight, indices, 0)


@torch_op("aten::embedding_dense_backward")
def embedding_dense_backward(
    grad: Array, indices: Array, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Array:
    """The gradient of the table: rows added where they came from, none to the padding row."""
    flat = lax.reshape(indices, (indices.size,))
    rows = lax.reshape(grad, (indices.size, grad.shape[-1]))
    return _table_gradient(rows, flat, num_weights, padding_idx, scale_grad_by_freq)


@torch_op("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
def embedding_bag(
    weight: Array,
    indices: Array,
    offsets: Array,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Results:
    """Sum, mean or maximum of the rows of each bag; then what the gradients need.

    That is the bag of each number, the sizes of the bags, and the rows of the maxima, with the
    shapes that they have on accelerators.
    """
    bags = offsets.shape[0] - include_last_offset
    bag_of = _bag_of(offsets, indices, bags)
    counted = jnp.ones_like(indices) if padding_idx < 0 else _differs(indices, padding_idx)
    sizes = _added(lax.full((bags,), 0, indices.dtype), bag_of, counted)
    stored_sizes = lax.pad(sizes, _zero(sizes), [(0, int(include_last_offset), 0)])
    rows = take(weight, indices, 0)
    if mode == _MAX:
        best, origin = _maxima(rows, indices, bag_of, counted, bags)
        return best, bag_of, stored_sizes, origin
    if per_sample_weights is not None:
        rows = lax.mul(rows, _column(cast(per_sample_weights, torch_dtype(rows)), rows))
    if padding_idx >= 0:
        rows = lax.mul(rows, _column(cast(counted, torch_dtype(rows)), rows))
    total = _added(lax.full((bags, weight.shape[1]), 0, weight.dtype), bag_of, rows)
    if mode == _MEAN:
        total = lax.div(total, _column(_as_divisor(sizes, total), total))
    return total, bag_of, stored_sizes, lax.full((0,), 0, indices.dtype)


@torch_op("aten::_embedding_bag_backward")
def embedding_bag_backward(
    grad: Array, indices: Array, offsets: Array, offset2bag: Array, *rest: Any
) -> Array:
    if not offset2bag.size:  # the CPU leaves it out of sums
        offset2bag = _bag_of(offsets, indices, grad.shape[0])
    of_dense = list(rest)
    del of_dense[5]  # whether the gradient is sparse
    return embedding_bag_dense_backward(grad, indices, offset2bag, *of_dense)


@torch_op("aten::_embedding_bag_dense_backward")
def embedding_bag_dense_backward(
    grad: Array,
    indices: Array,
    offset2bag: Array,
    bag_size: Array,
    maximum_indices: Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Array | None,
    padding_idx: int = -1,
) -> Array:
    if mode == _MAX:
        return _gradient_of_maxima(grad, maximum_indices, bag_size, num_weights)
    if mode == _MEAN:
        sizes = lax.slice(bag_size, (0,), (grad.shape[0],))
        grad = lax.div(grad, _column(_as_divisor(sizes, grad), grad))
    rows = take(grad, offset2bag, 0)
    if per_sample_weights is not None:
        rows = lax.mul(rows, _column(cast(per_sample_weights, torch_dtype(rows)), rows))
    return _table_gradient(rows, indices, num_weights, padding_idx, scale_grad_by_freq)


@torch_op("aten::_embedding_bag_per_sample_weights_backward")
def embedding_bag_weights_backward(
    grad: Array,
    weight: Array,
    indices: Array,
    offsets: Array,
    offset2bag: Array,
    mode: int,
    padding_idx: int = -1,
) -> Array:
    if not offset2bag.size:
        offset2bag = _bag_of(offsets, indices, grad.shape[0])
    products = lax.mul(take(grad, offset2bag, 0), take(weight, indices, 0))
    sums = lax.reduce_sum(products, (1,))
    if padding_idx < 0:
        return sums
    return lax.mul(sums, cast(_differs(indices, padding_idx), torch_dtype(sums)))


def _table_gradient(
    rows: Array, indices: Array, num_weights: int, padding_idx: int, by_frequency: bool
) -> Array:
    if by_frequency:
        ones = lax.full_like(indices, 1)
        counts = _added(lax.full((num_weights,), 0, indices.dtype), indices, ones)
        rows = lax.div(rows, _column(cast(take(counts, indices, 0), torch_dtype(rows)), rows))
    if padding_idx >= 0:
        kept = _column(lax.ne(indices, lax.full_like(indices, padding_idx)), rows)
        rows = lax.select(kept, rows, lax.full_like(rows, 0))
    return _added(lax.full((num_weights, rows.shape[1]), 0, rows.dtype), indices, rows)


def _added(x: Array, index: Array, rows: Array) -> Array:
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(range(1, x.ndim)),
        inserted_window_dims=(0,),
        scatter_dims_to_operand_dims=(0,),
    )
    mode = lax.GatherScatterMode.PROMISE_IN_BOUNDS
    return lax.scatter_add(x, lax.expand_dims(index, (1,)), rows, numbers, mode=mode)


def _bag_of(offsets: Array, indices: Array, bags: int) -> Array:
    """Which bag each number is in: how many bags have started so far, without the first."""
    later = lax.slice(offsets, (1,), (bags,)) if bags > 1 else offsets[:0]
    starts = lax.full((indices.shape[0] + 1,), 0, indices.dtype)  # empty bags may start at the end
    starts = _added(starts, later, lax.full(later.shape, 1, indices.dtype))
    return lax.cumsum(lax.slice(starts, (0,), indices.shape))


def _maxima(
    rows: Array, indices: Array, bag_of: Array, counted: Array, bags: int
) -> tuple[Array, Array]:
    """Maxima of the rows of each bag, and which row of the table gave each, the first one."""
    is_counted = _column(lax.ne(counted, lax.full_like(counted, 0)), rows)
    rows = lax.select(is_counted, rows, lax.full_like(rows, -math.inf))
    shape = (bags, rows.shape[1])
    best = lax.full(shape, -math.inf, rows.dtype).at[bag_of].max(rows)
    places = lax.broadcasted_iota(indices.dtype, rows.shape, 0)
    none = lax.full_like(places, rows.shape[0])
    is_best = lax.bitwise_and(lax.eq(rows, take(best, bag_of, 0)), is_counted)
    first = lax.full(shape, rows.shape[0], indices.dtype)
    first = first.at[bag_of].min(lax.select(is_best, places, none))
    padded = lax.pad(indices, _zero(indices), [(0, 1, 0)])  # empty bags have row 0
    empty = lax.eq(best, lax.full_like(best, -math.inf))
    return lax.select(empty, lax.full_like(best, 0), best), take(padded, first, 0)


def _gradient_of_maxima(grad: Array, origin: Array, sizes: Array, num_weights: int) -> Array:
    columns = lax.broadcasted_iota(origin.dtype, origin.shape, 1)
    sizes = lax.slice(sizes, (0,), (grad.shape[0],))
    filled = lax.gt(sizes, lax.full_like(sizes, 0))
    grad = lax.select(_column(filled, grad), grad, lax.full_like(grad, 0))
    origin = lax.max(origin, lax.full_like(origin, 0))
    table = lax.full((num_weights, grad.shape[1]), 0, grad.dtype)
    return table.at[origin, columns].add(
        grad, mode="promise_in_bounds", wrap_negative_indices=False
    )


def _column(numbers: Array, rows: Array) -> Array:
    """One number for each row, repeated along it."""
    return lax.broadcast_in_dim(numbers, rows.shape, (0,))


def _as_divisor(sizes: Array, like: Array) -> Array:
    return cast(lax.max(sizes, lax.full_like(sizes, 1)), torch_dtype(like))


def _differs(indices: Array, padding_idx: int) -> Array:
    differs = lax.ne(indices, lax.full_like(indices, padding_idx))
    return lax.convert_element_type(differs, indices.dtype)


def _zero(x: Array) -> Array:
    return lax.full((), 0, x.dtype)
