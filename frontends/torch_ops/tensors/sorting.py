"""Order: sorted tensors, the largest k, places in sorted lists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flint.frontends.torch_ops.lazy_jax import jnp, lax
from flint.frontends.torch_ops.registry import register_all, torch_op
from flint.frontends.torch_ops.types import Operand, dimension, is_floating, operands

if TYPE_CHECKING:
    from jax import Array


@torch_op("aten::sort")
def sort(x: Array, dim: int = -1, descending: bool = False) -> tuple[Array, Array]:
    """The numbers along a dimension in order, and where they were; equals keep their order."""
    if not x.ndim:
        return x, lax.full((), 0, jnp.int64)
    axis = dimension(dim, x.ndim)
    places = lax.broadcasted_iota(jnp.int64, x.shape, axis)
    key = _opposite(x) if descending else x
    key, places = lax.sort((key, places), dimension=axis, is_stable=True, num_keys=1)
    return _opposite(key) if descending else key, places


@torch_op("aten::topk")
def topk(
    x: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Array, Array]:
    """The k largest (or smallest) numbers along a dimension, in order, and where they were."""
    if not x.ndim:
        return x, lax.full((), 0, jnp.int64)
    axis = dimension(dim, x.ndim)
    key = _swapped(x if largest else _opposite(x), axis)
    best, places = lax.top_k(key, k)
    best, places = _swapped(best, axis), _swapped(places, axis)
    return best if largest else _opposite(best), lax.convert_element_type(places, jnp.int64)


@torch_op("aten::kthvalue")
def kthvalue(x: Array, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Array, Array]:
    if not x.ndim:
        return x, lax.full((), 0, jnp.int64)
    axis = dimension(dim, x.ndim)
    values, places = sort(x, axis)
    return (
        lax.index_in_dim(values, k - 1, axis, keepdims=keepdim),
        lax.index_in_dim(places, k - 1, axis, keepdims=keepdim),
    )


@torch_op("aten::searchsorted.Tensor", "aten::searchsorted.Scalar")
def searchsorted(
    sorted_sequence: Array,
    values: Operand,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Array | None = None,
) -> Array:
    """Where numbers belong in sorted rows, by comparison with every entry."""
    sequence = sorted_sequence
    if sorter is not None:
        sequence = jnp.take_along_axis(sequence, sorter, axis=-1, mode="promise_in_bounds")
    number = isinstance(values, bool | int | float)
    found = _places(sequence, jnp.asarray(values) if number else values, right or side == "right")
    return lax.convert_element_type(found, jnp.int32 if out_int32 else jnp.int64)


def _opposite(x: Array) -> Array:
    """Numbers whose order is the opposite, without the overflow of minus the least integer."""
    return lax.neg(x) if is_floating(x) else lax.bitwise_not(x)


def _swapped(x: Array, axis: int) -> Array:
    if axis == x.ndim - 1:
        return x
    order = list(range(x.ndim))
    order[axis], order[-1] = order[-1], order[axis]
    return lax.transpose(x, order)


def _places(sequence: Array, values: Array, right: bool) -> Array:
    """How many entries are below each value; of one sequence for all, or one for each row."""
    entries = lax.expand_dims(sequence, (sequence.ndim - 1,)) if sequence.ndim > 1 else sequence
    entries, values = operands(entries, lax.expand_dims(values, (values.ndim,)))
    below = (lax.le if right else lax.lt)(entries, values)
    counted = lax.convert_element_type(below, jnp.int64)
    return lax.reduce_sum(counted, (below.ndim - 1,))


def _median(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    """The lower of two middle numbers, and where it was."""
    size = x.shape[dim] if x.ndim else 1
    return kthvalue(x, (size + 1) // 2, dim, keepdim)


register_all(
    {
        # equal numbers keep their order in any sort here
        "sort.stable": lambda x, *, stable=None, dim=-1, descending=False: sort(x, dim, descending),
        "median.dim": _median,
        "median": lambda x: _median(lax.reshape(x, (x.size,)), 0)[0],
        "bucketize.Tensor bucketize.Scalar": lambda values, boundaries, **options: searchsorted(
            boundaries, values, **options
        ),
    }
)
