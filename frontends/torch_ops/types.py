"""Types of tensors between PyTorch and JAX, and PyTorch's rules of which type a result has."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from flint.frontends.torch_ops.lazy_jax import jnp, lax

if TYPE_CHECKING:
    from jax import Array

#: A number among the arguments of an operator (`Scalar` in PyTorch's schemas).
Number: TypeAlias = bool | int | float | complex
#: An operand that may be either: overloads for tensors and for numbers share a function.
Operand: TypeAlias = "Array | Number"

#: PyTorch's types of which JAX has the same, under the same name except `bool`.
_TYPES = (
    *(torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.bfloat16, torch.float16, torch.float32, torch.float64),
    *(torch.complex64, torch.complex128),
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
    torch.float8_e8m0fnu,
)
_NAMES = {dtype: str(dtype).removeprefix("torch.") for dtype in _TYPES}
_BY_NAME = {name: dtype for dtype, name in _NAMES.items()}
_WRAPPED = {bool: torch.bool, int: torch.int64, float: torch.float32, complex: torch.complex64}


@cache
def jax_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """JAX's type of the same numbers."""
    name = _NAMES[dtype]
    return np.dtype(np.bool_ if name == "bool" else getattr(jnp, name))


def torch_dtype(x: Any) -> torch.dtype:
    """PyTorch's type of a JAX array, or of a Python number by PyTorch's rules."""
    return _WRAPPED[type(x)] if type(x) in _WRAPPED else _BY_NAME[np.dtype(x.dtype).name]


def result_type(*operands: Any) -> torch.dtype:
    """The type of an elementwise result, as `torch.result_type` has it for any number of operands.

    Tensors of dimensions decide; a tensor without dimensions counts only if its kind (bool,
    integer, floating, complex) is higher, and a Python number only if its kind is higher still.
    """
    ranks: list[torch.dtype | None] = [None, None, None]
    for operand in operands:
        wrapped = type(operand) in _WRAPPED
        rank = 2 if wrapped else 0 if operand.ndim else 1
        dtype, before = torch_dtype(operand), ranks[rank]
        ranks[rank] = dtype if before is None else torch.promote_types(before, dtype)
    result: torch.dtype | None = None
    for dtype_of_rank in ranks:
        if dtype_of_rank is not None:
            result = dtype_of_rank if result is None else _combined(result, dtype_of_rank)
    assert result is not None, "no operands"
    return result


def _combined(higher: torch.dtype, lower: torch.dtype) -> torch.dtype:
    if higher.is_complex or _kind(lower) <= _kind(higher):
        return higher
    if not higher.is_floating_point:
        return lower
    found = higher.to_complex()  # the kind is that of the lower, the width of the higher
    return torch.complex64 if found == torch.complex32 else found  # JAX has no halves


def _kind(dtype: torch.dtype) -> int:
    if dtype.is_complex:
        return 3
    return 2 if dtype.is_floating_point else int(dtype != torch.bool)


def is_floating(x: Any) -> bool:
    """Whether numbers are floating or complex, and not integers or truth values."""
    return _kind(torch_dtype(x)) >= 2


def cast(x: Any, dtype: torch.dtype | None) -> Array:
    """A JAX array of a type (None keeps it), converted only where the type differs.

    Like PyTorch, everything but zero is True, and complex numbers lose their imaginary part.
    """
    wanted = None if dtype is None else jax_dtype(dtype)
    if type(x) in _WRAPPED:
        return jnp.asarray(np.asarray(x, wanted or jax_dtype(_WRAPPED[type(x)])))
    if wanted is None or x.dtype == wanted:
        return x
    if dtype == torch.bool:
        return lax.ne(x, lax.full_like(x, 0))
    if jnp.iscomplexobj(x) and dtype is not None and not dtype.is_complex:
        x = lax.real(x)
    return lax.convert_element_type(x, wanted)


def floating(x: Any) -> Array:
    """The array itself, or as float32 if it holds integers or truth values."""
    return x if is_floating(x) else cast(x, torch.get_default_dtype())


def scaled(x: Array, factor: Number) -> Array:
    """The array times a number, in its own type."""
    return x if factor == 1 else lax.mul(x, lax.full_like(x, factor))


def broadcast(x: Array, shape: Sequence[int]) -> Array:
    """The array with dimensions added in front and dimensions of size 1 repeated, in one step."""
    if x.shape == tuple(shape):
        return x
    added = len(shape) - x.ndim
    return lax.broadcast_in_dim(x, tuple(shape), tuple(range(added, len(shape))))


def operands(*values: Any, dtype: torch.dtype | None = None) -> list[Array]:
    """Arrays and numbers made equal in type (by PyTorch's rules, or `dtype`) and shape."""
    common = dtype or result_type(*values)
    arrays = [cast(value, common) for value in values]
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    return [broadcast(array, shape) for array in arrays]


def dimension(dim: int, rank: int) -> int:
    """A dimension counted from the front; tensors without dimensions have 0 and -1 nevertheless."""
    return dim % max(rank, 1)


def dimensions(dims: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Dimensions counted from the front, sorted; None and an empty list mean all of them."""
    if dims is None or (not isinstance(dims, int) and not dims):
        return tuple(range(rank))
    listed = (dims,) if isinstance(dims, int) else dims
    return tuple(sorted({dimension(dim, rank) for dim in listed})) if rank else ()
