"""Copies, look-ups, and what is made from nothing: shapes of results where a profile has none."""

from __future__ import annotations

import math
from dataclasses import replace

from flint.tools.measure.profiles.operators.call import (
    CallEffects,
    Form,
    OperatorCall,
    broadcast,
    lies_as,
    like,
    tensor,
)
from flint.tools.measure.profiles.operators.types import type_of_number


def copy(call: OperatorCall) -> CallEffects:
    """`copy_(target, source)`: the target is written and not read."""
    target, source, *_ = call.given.tensors
    return CallEffects((target, source), (target,), (0,))


def converted(call: OperatorCall) -> CallEffects:
    """`_to_copy(self, dtype, ...)` and `to`."""
    data = call.given.needed(0)
    dtype = type_of_number(_number(call, 1)) or data.dtype
    return CallEffects((data,), (lies_as(like(data, dtype), (data,)),))


def _number(call: OperatorCall, at: int) -> int:
    found = call.given.integer(at)
    return -1 if found is None else found


def filled(call: OperatorCall) -> CallEffects:
    """`fill_`, `zero_` and random numbers in place: the only tensor is written."""
    data = call.given.needed(0)
    return CallEffects((data,), (data,), (0,))


def made_like(call: OperatorCall) -> CallEffects | None:
    """`zeros_like(self, dtype)`; `ones`, `full`, `randn` have a shape; `arange` a length."""
    data = call.given.tensor(0)
    if data is not None and not call.base.startswith("new_"):
        dtype = type_of_number(_number(call, 1)) or data.dtype
        return CallEffects((), (like(data, dtype),))
    at = 1 if data is not None else 0
    shape = call.given.integers(at)
    if call.base == "arange":
        bounds = call.given.integers(0) or (0,)
        end = call.given.integer(1)
        shape = (bounds[0],) if end is None else (max(end - bounds[0], 0),)
    if shape is None:
        return None
    at_dtype = len(call.given) - 4
    dtype = type_of_number(_number(call, at_dtype)) or ("i64" if call.base == "arange" else "f32")
    return CallEffects((), (tensor(shape, data.dtype if data else dtype),))


def embedding(call: OperatorCall) -> CallEffects:
    """(table, indices)."""
    table, indices, *_ = call.given.tensors
    return CallEffects((table, indices), (tensor((*indices.shape, table.shape[-1]), table.dtype),))


def embedding_backward(call: OperatorCall) -> CallEffects | None:
    """(gradient, indices, rows)."""
    gradient, rows = call.given.needed(0), call.given.integer(2)
    if rows is None:
        return None
    made = tensor((rows, gradient.shape[-1]), gradient.dtype)
    return CallEffects(call.given.tensors[:2], (made,))


def index_select(call: OperatorCall) -> CallEffects:
    """(self, dim, indices)."""
    data, dim, indices = call.given.needed(0), call.given.integer(1, 0), call.given.needed(2)
    at = (dim or 0) % len(data.shape)
    shape = (*data.shape[:at], math.prod(indices.shape), *data.shape[at + 1 :])
    return CallEffects((data, indices), (tensor(shape, data.dtype),), (), {"dim": at})


def gather(call: OperatorCall) -> CallEffects:
    """(self, dim, indices): a result of the shape of the indices."""
    data, indices = call.given.needed(0), call.given.needed(2)
    made = tensor(indices.shape, data.dtype)
    return CallEffects((data, indices), (made,), (), {"dim": call.given.integer(1, 0)})


def index(call: OperatorCall) -> CallEffects | None:
    """(self, list of indices): what each names, instead of the first dimensions."""
    data, indices = call.given.needed(0), call.given.list_at(1)
    if not indices or len(indices) > len(data.shape):
        return None
    indices = tuple(replace(t, dtype="i64") for t in indices)
    shape = (*broadcast(indices), *data.shape[len(indices) :])
    return CallEffects((data, *indices), (tensor(shape, data.dtype),))


def put(call: OperatorCall) -> CallEffects:
    """`index_put_(self, list of indices, values, accumulate)`."""
    data, indices, values = call.given.needed(0), call.given.list_at(1), call.given.needed(2)
    inputs = (data, *(replace(t, dtype="i64") for t in indices), values)
    attributes = {"accumulate": bool(call.given.truth(3))}
    writes = (0,) if call.in_place or "impl" in call.base else ()
    return CallEffects(inputs, (like(data),), writes, attributes)


def scatter(call: OperatorCall) -> CallEffects:
    """(self, dim, indices, values)."""
    data, _ = call.given.needed(0), call.given.needed(2)
    writes = (0,) if call.in_place else ()
    return CallEffects(call.given.tensors, (like(data),), writes, {"dim": call.given.integer(1, 0)})


def concatenated(call: OperatorCall) -> CallEffects | None:
    """`cat(list, dim)` and `stack(list, dim)`."""
    parts = call.given.list_at(0)
    if call.base == "stack":
        return CallEffects(parts, (tensor((len(parts), *parts[0].shape), parts[0].dtype),))
    whole = [t for t in parts if t.shape != (0,)] or list(parts)
    rank = len(whole[0].shape)
    at = (call.given.integer(1, 0) or 0) % rank
    if any(len(t.shape) != rank for t in whole):
        return None
    size = sum(t.shape[at] for t in whole)
    shape = (*whole[0].shape[:at], size, *whole[0].shape[at + 1 :])
    return CallEffects(tuple(whole), (tensor(shape, whole[0].dtype),))


def padded(call: OperatorCall) -> CallEffects | None:
    """`constant_pad_nd(self, before and after of the last dimensions first)`."""
    data, edges = call.given.needed(0), call.given.sizes(1)
    if len(edges) > 2 * len(data.shape):
        return None
    shape = list(data.shape)
    for i in range(len(edges) // 2):
        shape[-1 - i] = max(shape[-1 - i] + edges[2 * i] + edges[2 * i + 1], 0)
    return CallEffects((data,), (tensor(shape, data.dtype),))


def repeated(call: OperatorCall) -> CallEffects:
    """`repeat(self, times of each dimension)`."""
    data, times = call.given.needed(0), call.given.sizes(1)
    sizes = (1,) * (len(times) - len(data.shape)) + data.shape
    shape = [s * t for s, t in zip(sizes, times, strict=True)]
    return CallEffects((data,), (tensor(shape, data.dtype),))


def moved(call: OperatorCall) -> CallEffects:
    """The same elements at other places."""
    data = call.given.needed(0)
    return CallEffects((data,), (like(data),))


def grown(call: OperatorCall) -> CallEffects:
    """`slice_backward(gradient, sizes, ...)`: zeros with a part in them."""
    data = call.given.needed(0)
    return CallEffects((data,), (tensor(call.given.sizes(1), data.dtype),))


FORMS: dict[str, Form] = {
    "copy": copy,
    "_to_copy": converted,
    "to": converted,
    **dict.fromkeys(("fill", "zero", "normal", "uniform", "random", "bernoulli", "exponential"), filled),
    **dict.fromkeys(
        ("zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "zeros", "ones", "full",
         "randn", "rand", "arange", "new_zeros", "new_ones", "new_full", "scalar_tensor"),
        made_like,
    ),
    "embedding": embedding,
    "embedding_dense_backward": embedding_backward,
    "index_select": index_select,
    "gather": gather,
    **dict.fromkeys(("index", "_unsafe_index"), index),
    **dict.fromkeys(("index_put", "_index_put_impl", "_unsafe_index_put"), put),
    **dict.fromkeys(("scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy"), scatter),
    **dict.fromkeys(("cat", "stack"), concatenated),
    "constant_pad_nd": padded,
    "repeat": repeated,
    **dict.fromkeys(("clone", "contiguous", "flip", "roll", "tril", "triu", "flatten"), moved),
    **dict.fromkeys(("slice_backward", "select_backward"), grown),
}  # fmt: skip
