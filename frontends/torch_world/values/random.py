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

    Runs outside of all modes.
    """
    written = [
        a.alias_info is not None and a.alias_info.is_write for a in schema_of(func).arguments
    ]
    given: list[Any] = []
    for arg, is_written in zip(args, written, strict=False):
        if isinstance(arg, torch.Tensor) and not is_written:
            value = lookup(arg)
            if not isinstance(value, Known):
                return None
            arg = value.data
        elif isinstance(arg, torch.Tensor):
            arg = torch.empty(tuple(arg.shape), dtype=arg.dtype)
        given.append(arg)
    named = {key: arg for key, arg in kwargs.items() if key not in ("device", "pin_memory")}
    real = func(*given, **named)
    assert isinstance(real, torch.Tensor) and real.shape == result.shape, "as the fake one"
    return real
