"""Numbers that are finite and not below zero, because they are norms: what gradient checks ask for.

A norm that is compared with zero or less has one answer in a run that goes well, and libraries ask
(`norm < 0`) before they step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import torch

from flint.frontends.torch_world.values.kinds import Even, Known, Magnitude, Value, settled

Lookup = Callable[[Any], Value | None]
#: Operators whose results are never below zero, whatever they read.
MAKERS = frozenset(
    ("linalg_vector_norm", "norm", "_foreach_norm", "abs", "square", "exp", "rand", "softplus")
)
#: Those whose results are not, where no tensor is; their numbers are dimensions.
_OF_TENSORS = frozenset(
    ("sqrt", "sum", "mean", "max", "amax", "min", "amin", "stack", "cat", "prod", "reciprocal")
)
#: Those whose results are not, where neither a tensor nor a number is.
_OF_NUMBERS = frozenset(
    (
        *("add", "mul", "div", "clamp", "clamp_min", "clamp_max", "maximum", "minimum", "pow"),
        *("_foreach_mul", "_foreach_div", "_foreach_add"),
    )
)
_BELOW = {"lt": 0, "le": 0, "ge": 1, "gt": 1}


def magnitude_of(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, lookup: Lookup
) -> Any:
    """What is known of a result because of signs: a Value, a list of them, or None."""
    name = name.removesuffix("_")
    if name in MAKERS:
        return _each(result)
    if name in _OF_TENSORS and _all_positive(_only_tensors(args), lookup):
        return _each(result)
    if name in _OF_NUMBERS and _all_positive((*args, *kwargs.values()), lookup):
        return _each(result)
    if name in _BELOW and isinstance(lookup(args[0]), Magnitude):
        bound = _number(args[1], lookup)
        strict = name in ("lt", "ge")
        if bound is not None and (bound < 0 or (bound == 0 and strict)):
            return settled(Fraction(_BELOW[name]), result)
    return None


def _each(result: Any) -> Any:
    if isinstance(result, (list, tuple)):
        return [_each(entry) for entry in result]
    known = isinstance(result, torch.Tensor) and result.dtype.is_floating_point
    return Magnitude() if known else None


def _only_tensors(args: Sequence[Any]) -> list[Any]:
    lists = (list, tuple)
    return [a for a in args if isinstance(a, torch.Tensor) or (isinstance(a, lists) and a)]


def _all_positive(args: Sequence[Any], lookup: Lookup) -> bool:
    """Whether all tensors and numbers are not below zero, and one is a tensor."""
    tensors = False
    for arg in args:
        if isinstance(arg, (list, tuple)):
            if any(isinstance(entry, torch.Tensor) for entry in arg):
                tensors = True
                if not _all_positive(arg, lookup):
                    return False
        elif isinstance(arg, torch.Tensor):
            tensors = True
            number = _number(arg, lookup)
            if not isinstance(lookup(arg), Magnitude) and not _is_positive(number):
                return False
        elif isinstance(arg, (int, float)) and not _is_positive(arg):
            return False
    return tensors


def _is_positive(number: float | None) -> bool:
    return number is not None and number >= 0 and math.isfinite(number)


def _number(given: Any, lookup: Lookup) -> float | None:
    if isinstance(given, (int, float)):
        return float(given)
    value = lookup(given) if isinstance(given, torch.Tensor) else None
    if isinstance(value, Even) and value.level >= 0:
        return float(value.level)
    if isinstance(value, Known) and value.data.numel() == 1:
        return float(value.data.item())
    return None
