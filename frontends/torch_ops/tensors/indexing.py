"""Numbers taken from and put to places that other tensors name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from flint.errors import FlintError
from flint.frontends.torch_ops.lazy_jax import jnp, lax
from flint.frontends.torch_ops.registry import register_all, torch_op
from flint.frontends.torch_ops.types import (
    Number,
    broadcast,
    cast,
    dimension,
    is_floating,
    torch_dtype,
)

if TYPE_CHECKING:
    from jax import Array

Index = Sequence[Any]

# Indices of valid programs are in bounds: nothing has to be computed to make sure.
_IN_BOUNDS = "promise_in_bounds"


@torch_op("aten::index.Tensor")
def index(x: Array, indices: Index) -> Array:
    """x[indices]: None keeps a dimension; indices may count from the end."""
    return _at(x, indices).get(mode=_IN_BOUNDS, wrap_negative_indices=False)


@torch_op("aten::index_put", "aten::_index_put_impl")
def index_put(
    x: Array, indices: Index, values: Array, accumulate: bool = False, unsafe: bool = False
) -> Array:
    values = cast(values, torch_dtype(x))
    if _is_mask(indices):
        return _masked_put(x, indices, values, accumulate)
    place = _at(x, indices)
    if accumulate and x.dtype != jnp.bool_:
        return place.add(values, mode=_IN_BOUNDS, wrap_negative_indices=False)
    return place.set(values, mode=_IN_BOUNDS, wrap_negative_indices=False)


@torch_op("aten::index_select")
def index_select(x: Array, dim: int, index: Array) -> Array:
    if not x.ndim:
        return x
    return take(x, lax.reshape(index, (index.size,)), dimension(dim, x.ndim))


@torch_op("aten::index_reduce")
def index_reduce(
    x: Array, dim: int, index: Array, source: Array, reduce: str, *, include_self: bool = True
) -> Array:
    axis = dimension(dim, x.ndim)
    shape = [1] * source.ndim
    shape[axis] = index.size
    places = broadcast(lax.reshape(index, shape), source.shape)
    return scatter_reduce(x, axis, places, source, reduce, include_self=include_self)


@torch_op("aten::gather")
def gather(x: Array, dim: int, index: Array, *, sparse_grad: bool = False) -> Array:
    """y[i, j, ...] = x[i, index[i, j, ...], ...], with the index at `dim`."""
    if not x.ndim or not index.ndim:
        x, index, shape = _at_least_1d(x), _at_least_1d(index), index.shape
        return lax.reshape(gather(x, 0, index), shape)
    axis = dimension(dim, x.ndim)
    others = tuple(d for d in range(x.ndim) if d != axis)
    x = _cut(x, [x.shape[d] if d == axis else n for d, n in enumerate(index.shape)])
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(),
        collapsed_slice_dims=(axis,),
        start_index_map=(axis,),
        operand_batching_dims=others,
        start_indices_batching_dims=others,
    )
    starts = lax.expand_dims(index, (index.ndim,))
    return lax.gather(x, starts, numbers, (1,) * x.ndim, mode=_IN_BOUNDS)


def _scatter(
    x: Array, dim: int, index: Array, source: Array | Number, *, reduce: str = "replace"
) -> Array:
    """x with y[i, index[i, j, ...], ...] combined with source[i, j, ...], or with one number."""
    if isinstance(source, Number):
        source = lax.full(index.shape, source, x.dtype)
    how = {"replace": lax.scatter, "add": lax.scatter_add, "multiply": lax.scatter_mul}
    return _scattered(how[reduce], x, dim, index, source)


def _put(x: Array, index: Array, source: Array, accumulate: bool = False) -> Array:
    flat = lax.reshape(x, (x.size,))
    return lax.reshape(index_put(flat, [index], source, accumulate), x.shape)


register_all(
    {
        "scatter.src scatter.value scatter.reduce scatter.value_reduce": _scatter,
        "scatter_add": lambda x, dim, index, source: _scatter(x, dim, index, source, reduce="add"),
        "put": _put,
    }
)


@torch_op("aten::scatter_reduce.two")
def scatter_reduce(
    x: Array, dim: int, index: Array, src: Array, reduce: str, *, include_self: bool = True
) -> Array:
    combine = {
        "sum": lax.scatter_add,
        "mean": lax.scatter_add,
        "prod": lax.scatter_mul,
        "amax": lax.scatter_max,
        "amin": lax.scatter_min,
    }[reduce]
    if not include_self:
        start = lax.full(index.shape, _neutral(reduce, x), x.dtype)
        x = _scattered(lax.scatter, x, dim, index, start)
    combined = _scattered(combine, x, dim, index, src)
    if reduce != "mean":
        return combined
    ones = lax.full(index.shape, 1, x.dtype)
    count = _scattered(lax.scatter_add, lax.full_like(x, int(include_self)), dim, index, ones)
    count = count if include_self else lax.max(count, lax.full_like(count, 1))
    return lax.div(combined, count) if is_floating(x) else jnp.floor_divide(combined, count)


@torch_op("aten::masked_scatter")
def masked_scatter(x: Array, mask: Array, source: Array) -> Array:
    """x with the numbers of source, in their order, where the mask holds."""
    shape = jnp.broadcast_shapes(x.shape, mask.shape)
    x, mask = broadcast(x, shape), broadcast(mask, shape)
    counted = lax.cumsum(cast(lax.reshape(mask, (mask.size,)), torch.int64))
    place = lax.max(lax.sub(counted, lax.full_like(counted, 1)), lax.full_like(counted, 0))
    place = lax.min(place, lax.full_like(place, source.size - 1))
    taken = take(lax.reshape(source, (source.size,)), place, 0)
    return lax.select(mask, lax.reshape(taken, shape), x)


@torch_op("aten::masked_select", "aten::nonzero", "aten::unique_consecutive")
@torch_op("aten::_unique2", "aten::unique_dim", "aten::repeat_interleave.Tensor")
def of_unknown_size(*args: object, **kwargs: object) -> NoReturn:
    """Refuse what has as many results as the numbers say.

    Raises:
        FlintError: FL228, always.
    """
    _depends_on_data("masked_select, nonzero and unique")


def take(x: Array, index: Array, axis: int) -> Array:
    """Slices of a dimension, with the dimensions of the index in its place."""
    rank = index.ndim
    offsets = [*range(axis), *range(axis + rank, x.ndim - 1 + rank)]
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(offsets), collapsed_slice_dims=(axis,), start_index_map=(axis,)
    )
    sizes = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    return lax.gather(x, lax.expand_dims(index, (rank,)), numbers, sizes, mode=_IN_BOUNDS)


def _at(x: Array, indices: Index) -> Any:
    if _is_mask(indices):
        _depends_on_data("an index that is a mask")
    places = [
        slice(None) if index is None else _from_front(index, x.shape[d])
        for d, index in enumerate(indices)
    ]
    return x.at[tuple(places)]


def _from_front(index: Array, size: int) -> Array:
    """Places that count from the end if negative, all counted from the start."""
    if jnp.issubdtype(index.dtype, jnp.unsignedinteger):
        return index
    from_end = lax.lt(index, lax.full_like(index, 0))
    return lax.select(from_end, lax.add(index, lax.full_like(index, size)), index)


def _is_mask(indices: Index) -> bool:
    return any(i is not None and i.dtype in (jnp.bool_, jnp.uint8) for i in indices)


def _masked_put(x: Array, indices: Index, values: Array, accumulate: bool) -> Array:
    """Values that are the same wherever the one mask holds."""
    masks = [(d, i) for d, i in enumerate(indices) if i is not None]
    if len(masks) != 1:
        _depends_on_data("several masks in one index")
    before, mask = masks[0]
    after = x.ndim - before - mask.ndim
    # dimensions of values: those before, one of the unknown size, those after
    known = values.ndim <= after or values.shape[values.ndim - 1 - after] == 1
    if not known or (before and values.ndim > after + 1):
        _depends_on_data("values for as many places as a mask has")
    if values.ndim > after:
        values = lax.reshape(values, values.shape[values.ndim - after :])
    mask = lax.broadcast_in_dim(
        cast(mask, torch.bool), x.shape, tuple(range(before, before + mask.ndim))
    )
    values = broadcast(values, x.shape)
    return lax.select(mask, lax.add(x, values) if accumulate else values, x)


def _at_least_1d(x: Array) -> Array:
    return x if x.ndim else lax.reshape(x, (1,))


def _cut(x: Array, shape: Sequence[int]) -> Array:
    return x if x.shape == tuple(shape) else lax.slice(x, (0,) * x.ndim, tuple(shape))


def _scattered(
    combine: Callable[..., Array], x: Array, dim: int, index: Array, src: Array
) -> Array:
    if not x.ndim:
        flat = _scattered(combine, _at_least_1d(x), 0, _at_least_1d(index), _at_least_1d(src))
        return lax.reshape(flat, ())
    if not index.size:
        return x
    index = _at_least_1d(index)
    axis = dimension(dim, x.ndim)
    src = _cut(cast(_at_least_1d(src), torch_dtype(x)), index.shape)
    whole = tuple(x.shape[d] if d == axis else n for d, n in enumerate(index.shape))
    if whole != x.shape:
        inside = tuple(slice(0, n) for n in whole)
        part = _scattered(combine, _cut(x, whole), axis, index, src)
        return x.at[inside].set(part)
    others = tuple(d for d in range(x.ndim) if d != axis)
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=(),
        inserted_window_dims=(axis,),
        scatter_dims_to_operand_dims=(axis,),
        operand_batching_dims=others,
        scatter_indices_batching_dims=others,
    )
    starts = lax.expand_dims(index, (index.ndim,))
    return combine(x, starts, src, numbers, mode=_IN_BOUNDS)


def _neutral(reduce: str, x: Array) -> Any:
    if reduce in ("sum", "mean", "prod"):
        return int(reduce == "prod")
    if is_floating(x):
        return -jnp.inf if reduce == "amax" else jnp.inf
    limits = jnp.iinfo(x.dtype)
    return limits.min if reduce == "amax" else limits.max


def _depends_on_data(what: str) -> NoReturn:
    raise FlintError(
        "FL228",
        f"{what}: the size of the result depends on numbers that are not known before a run",
        help="use where, masks of a fixed size, or torch.nonzero_static",
    )
