"""Random numbers that are drawn on the host: these are real, as everything there is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch

from flint.frontends.torch_private import OpOverload, schema_of
from flint.frontends.torch_world.values.kinds import KNOWN_LIMIT, Known, Value

#: Indices are drawn up to this many, as a shuffled data set is read; numbers up to KNOWN_LIMIT.
INDEX_LIMIT = 2**24
Lookup = Callable[[torch.Tensor], Value | None]


@cache
def draws(func: OpOverload) -> bool:
    """Whether an operator draws random numbers and nothing else."""
    name: str = schema_of(func).name
    is_random = torch.Tag.nondeterministic_seeded in func.tags
    return bool(is_random and name.startswith("aten::") and "dropout" not in name)


def is_drawn(result: object) -> bool:
    """Whether a result is not too large to be drawn for real."""
    if not isinstance(result, torch.Tensor):
        return False
    return bool(result.numel() <= (KNOWN_LIMIT if result.dtype.is_floating_point else INDEX_LIMIT))


def drawn(
    func: OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    result: torch.Tensor,
    lookup: Lookup,
) -> torch.Tensor | None:
    """What a real tensor holds after `func`; None where it depends on what is not known.

    Runs outside all modes.
    """
    schema = schema_of(func)
    written = {a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write}
    names = [a.name for a in schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    only_shape = schema.name.endswith("_like")
    for name, arg in given.items():
        if not isinstance(arg, torch.Tensor):
            continue
        value = lookup(arg)
        if name in written or only_shape:
            given[name] = torch.empty(tuple(arg.shape), dtype=arg.dtype)
        elif isinstance(value, Known):
            given[name] = value.data
        else:
            return None
    for name in ("device", "pin_memory"):
        given.pop(name, None)
    real = _called(func, names, given)
    assert isinstance(real, torch.Tensor) and real.shape == result.shape, "as the fake one"
    return real


def _called(func: OpOverload, names: Sequence[str], given: Mapping[str, Any]) -> Any:
    """A call by name; operators take `self` by position alone."""
    first = names[0] if names and names[0] in given else None
    rest = {name: value for name, value in given.items() if name != first}
    return func(given[first], **rest) if first is not None else func(**rest)
