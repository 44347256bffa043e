"""Operators element by element, and on lists of tensors: shapes of results."""

from __future__ import annotations

from flint.tools.measure.profiles.operators.arguments import GivenTensor
from flint.tools.measure.profiles.operators.call import (
    CallEffects,
    OperatorCall,
    broadcast,
    lies_as,
    tensor,
)
from flint.tools.measure.profiles.operators.types import promoted

#: Operators whose results are truth values.
_COMPARING = frozenset(
    ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "logical_not", "isin")
    + ("logical_and", "logical_or", "logical_xor")
)
#: Operators that make floating point of whole numbers.
_FLOATING = frozenset(
    ("div", "sqrt", "rsqrt", "exp", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "tanh")
    + ("sigmoid", "reciprocal", "erf", "expm1", "atan", "atan2")
)


def element_by_element(call: OperatorCall) -> CallEffects | None:
    """Operands are stretched to one shape; `where` reads its condition, too."""
    tensors = call.given.tensors
    if not tensors:
        return None
    if call.in_place:
        return CallEffects(tensors, (tensors[0],), (0,))
    valued = tensors[1:] if call.base == "where" and len(tensors) > 1 else tensors
    made = tensor(broadcast(tensors), _result_type(call, valued))
    return CallEffects(tensors, (lies_as(made, tensors),))


def _result_type(call: OperatorCall, valued: tuple[GivenTensor, ...]) -> str:
    if call.base in _COMPARING:
        return "i1"
    if call.base == "masked_fill":
        return valued[0].dtype
    found = promoted([(t.dtype, bool(t.shape)) for t in valued])
    whole = found.startswith(("i", "ui"))
    return "f32" if whole and call.base in _FLOATING else found


def on_lists(call: OperatorCall) -> CallEffects | None:
    """`_foreach_add_(first, second, ...)`: the first list is changed, or one like it is made."""
    first = call.given.list_at(0)
    if not first:
        return None
    tensors = call.given.tensors
    if call.in_place:
        return CallEffects(tensors, (), tuple(range(len(first))))
    return CallEffects(tensors, tuple(tensor(t.shape, t.dtype) for t in first))


def fused_optimizer(call: OperatorCall) -> CallEffects | None:
    """Parameters, gradients and states as lists: all but the gradients are changed."""
    lists = [call.given.list_at(i) for i in range(len(call.given))]
    if not lists or not lists[0]:
        return None
    inputs = tuple(t for some in lists for t in some)
    writes: list[int] = []
    at = 0
    for number, some in enumerate(lists):
        if number != 1:
            writes += range(at, at + len(some))
        at += len(some)
    return CallEffects(inputs, (), tuple(writes))
