"""Numbers that follow from the program: steps of a training state, schedules, small constants.

Small arrays that come from the host keep their numbers, and operations on them are done again in
numpy. Arrays of one number (zeros, ones) are followed at any size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Arrays of more elements are followed only where all of them are equal.
MOST_ELEMENTS = 4096

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """The elements of an array; `made_up` where the policy chose one that they follow from."""

    data: Array
    made_up: bool = False

    @property
    def is_uniform(self) -> bool:
        """Whether all elements are one element in memory."""
        pairs = zip(self.data.strides, self.data.shape, strict=True)
        return self.data.size > 0 and all(stride == 0 or size == 1 for stride, size in pairs)

    @property
    def element(self) -> Array:
        """The one element of a uniform array, with no dimensions."""
        return np.asarray(self.data[(0,) * self.data.ndim])


def known_host_value(value: object) -> Known | None:
    """What is known of a value of the host: a number, or a small array of numbers."""
    if isinstance(value, np.ndarray | np.generic | bool | int | float | complex):
        data = np.asarray(value)
        if data.dtype == object:
            return None
        if data.size <= MOST_ELEMENTS:
            return Known(data.copy())
        if Known(data).is_uniform:
            return Known(np.broadcast_to(data[(0,) * data.ndim].copy(), data.shape))
    return None


def calculated(
    name: str, params: Mapping[str, Any], inputs: Sequence[Known | None], shape: tuple[int, ...]
) -> Known | None:
    """The result of a JAX primitive, None where it is not known. Its dtype is still numpy's."""
    if name == "is_finite" and inputs[0] is None:  # the policy: numbers are finite
        return Known(np.broadcast_to(np.True_, shape), made_up=True)
    if any(value is None for value in inputs):
        return None
    values = [v for v in inputs if v is not None]
    made_up = any(v.made_up for v in values)
    try:
        with np.errstate(all="ignore"):
            found = _calculated(name, params, values, shape)
    except (TypeError, ValueError, IndexError, NotImplementedError, OverflowError):
        return None  # numpy has no such operation on these types: nothing is known, then
    return None if found is None else Known(found, made_up)


def is_followed(name: str) -> bool:
    """Whether `calculated` knows a primitive."""
    return name in _ELEMENTWISE or name in _REDUCTIONS or name in _SHAPES


def _calculated(
    name: str, params: Mapping[str, Any], values: list[Known], shape: tuple[int, ...]
) -> Array | None:
    small = all(v.data.size <= MOST_ELEMENTS for v in values) and np.prod(shape) <= MOST_ELEMENTS
    uniform = bool(values) and all(v.is_uniform for v in values)
    if name in _ELEMENTWISE:
        if uniform and not small:
            element = _ELEMENTWISE[name](params, *(v.element for v in values))
            return np.broadcast_to(np.asarray(element), shape)
        return np.asarray(_ELEMENTWISE[name](params, *(v.data for v in values))) if small else None
    if name in _REDUCTIONS:
        if uniform and not small:
            return _uniform_reduction(name, values[0], shape)
        axes = tuple(params["axes"])
        return np.asarray(_REDUCTIONS[name](values[0].data, axis=axes)) if small else None
    if name in _MOVES and values[0].is_uniform:
        return np.broadcast_to(values[0].element, shape)
    return np.asarray(_SHAPES[name](params, *(v.data for v in values))) if small else None


def _uniform_reduction(name: str, value: Known, shape: tuple[int, ...]) -> Array | None:
    if name in ("reduce_sum", "reduce_prod"):
        return None  # of millions of elements: as exact as the device's own order, that is not
    return np.broadcast_to(value.element, shape)


def _select(params: Mapping[str, Any], which: Array, *cases: Array) -> Array:
    return np.choose(which.astype(np.int64), cases)


def _clamp(params: Mapping[str, Any], low: Array, x: Array, high: Array) -> Array:
    return np.minimum(np.maximum(x, low), high)


def _divided(params: Mapping[str, Any], x: Array, y: Array) -> Array:
    if np.issubdtype(x.dtype, np.integer):
        quotient: Array = np.trunc(x.astype(np.float64) / y.astype(np.float64)).astype(x.dtype)
        return quotient
    return np.asarray(x / y)


def _binary(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda params, x, y: function(x, y)


def _unary(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda params, x: function(x)


def _not(params: Mapping[str, Any], x: Array) -> Array:
    return np.asarray(np.logical_not(x) if x.dtype == np.bool_ else np.invert(x))


def _logical_shift(params: Mapping[str, Any], x: Array, by: Array) -> Array:
    """Shifted right with zeros, and to nothing by as many bits as there are."""
    bits = 8 * x.dtype.itemsize
    plain = x.view(f"u{x.dtype.itemsize}")
    moved = np.right_shift(plain, np.minimum(by, bits - 1).astype(plain.dtype))
    return np.where(by < bits, moved, 0).astype(plain.dtype).view(x.dtype)


def _logistic(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "add": _binary(np.add),
    "add_any": _binary(np.add),
    "sub": _binary(np.subtract),
    "mul": _binary(np.multiply),
    "div": _divided,
    "rem": _binary(np.fmod),
    "max": _binary(np.maximum),
    "min": _binary(np.minimum),
    "pow": _binary(np.power),
    "integer_pow": lambda params, x: np.power(x, params["y"]),
    "eq": _binary(np.equal),
    "ne": _binary(np.not_equal),
    "lt": _binary(np.less),
    "le": _binary(np.less_equal),
    "gt": _binary(np.greater),
    "ge": _binary(np.greater_equal),
    "and": _binary(np.bitwise_and),
    "or": _binary(np.bitwise_or),
    "xor": _binary(np.bitwise_xor),
    "not": _not,
    "shift_left": _binary(np.left_shift),
    "shift_right_arithmetic": _binary(np.right_shift),
    "shift_right_logical": _logical_shift,
    "neg": _unary(np.negative),
    "sign": _unary(np.sign),
    "abs": _unary(np.abs),
    "floor": _unary(np.floor),
    "ceil": _unary(np.ceil),
    "exp": _unary(np.exp),
    "exp2": _unary(np.exp2),
    "expm1": _unary(np.expm1),
    "log": _unary(np.log),
    "log1p": _unary(np.log1p),
    "sin": _unary(np.sin),
    "cos": _unary(np.cos),
    "tan": _unary(np.tan),
    "tanh": _unary(np.tanh),
    "logistic": _unary(_logistic),
    "is_finite": _unary(np.isfinite),
    "sqrt": _unary(np.sqrt),
    "rsqrt": _unary(lambda x: 1 / np.sqrt(x)),
    "square": _unary(np.square),
    "select_n": _select,
    "clamp": _clamp,
    "convert_element_type": lambda params, x: x.astype(params["new_dtype"]),
    "copy": _unary(np.asarray),
    "copy_p": _unary(np.asarray),
    "stop_gradient": _unary(np.asarray),
    "name": _unary(np.asarray),
    "sharding_constraint": _unary(np.asarray),
    "reshard": _unary(np.asarray),
    "optimization_barrier": _unary(np.asarray),
}
_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "reduce_sum": np.sum,
    "reduce_prod": np.prod,
    "reduce_max": np.max,
    "reduce_min": np.min,
    "reduce_and": np.all,
    "reduce_or": np.any,
}


def _broadcast(params: Mapping[str, Any], x: Array, *dynamic: Array) -> Array:
    full = [1] * len(params["shape"])
    for size, dimension in zip(x.shape, params["broadcast_dimensions"], strict=True):
        full[dimension] = size
    return np.broadcast_to(x.reshape(full), params["shape"])


def _slice(params: Mapping[str, Any], x: Array) -> Array:
    strides = params["strides"] or (1,) * x.ndim
    bounds = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return x[tuple(slice(*b) for b in bounds)]


def _iota(params: Mapping[str, Any], *dynamic: Array) -> Array:
    shape, dimension = params["shape"], params["dimension"]
    line = np.arange(shape[dimension]).astype(params["dtype"])
    return np.broadcast_to(
        line.reshape([-1 if i == dimension else 1 for i in range(len(shape))]), shape
    )


def _dynamic_slice(params: Mapping[str, Any], x: Array, *starts: Array) -> Array:
    sizes = params["slice_sizes"]
    begins = [min(max(int(s), 0), n - m) for s, n, m in zip(starts, x.shape, sizes, strict=True)]
    return x[tuple(slice(b, b + m) for b, m in zip(begins, sizes, strict=True))]


def _gather(params: Mapping[str, Any], x: Array, indices: Array) -> Array:
    """One slice, as `x[i]` takes it of an array on several devices; many are not followed."""
    if indices.ndim != 1:
        raise NotImplementedError
    numbers, starts = params["dimension_numbers"], [0] * x.ndim
    for dimension, index in zip(numbers.start_index_map, indices, strict=True):
        starts[dimension] = int(index)
    sliced = _dynamic_slice({"slice_sizes": params["slice_sizes"]}, x, *map(np.asarray, starts))
    return np.squeeze(sliced, axis=tuple(numbers.collapsed_slice_dims))


_SHAPES: dict[str, Callable[..., Any]] = {
    "broadcast_in_dim": _broadcast,
    "reshape": lambda params, x: x.reshape(params["new_sizes"]),
    "squeeze": lambda params, x: np.squeeze(x, axis=tuple(params["dimensions"])),
    "transpose": lambda params, x: np.transpose(x, params["permutation"]),
    "stack": lambda params, *xs: np.stack(xs, axis=params["axis"]),
    "concatenate": lambda params, *xs: np.concatenate(xs, axis=params["dimension"]),
    "slice": _slice,
    "dynamic_slice": _dynamic_slice,
    "gather": _gather,
    "iota": _iota,
    "rev": lambda params, x: np.flip(x, tuple(params["dimensions"])),
}
#: Those of them that a uniform array goes through unchanged.
_MOVES = frozenset(
    (
        *("broadcast_in_dim", "reshape", "squeeze", "transpose", "slice", "rev"),
        *("dynamic_slice", "gather"),
    )
)
