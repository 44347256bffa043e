"""What is known of a tensor without its data: all of it, its mean, or the range of its indices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count

import torch

# Larger tensors are not computed for real: counts per expert, offsets and lengths are small.
KNOWN_LIMIT = 16384


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """All elements, as a real tensor in host memory. `made_up` when a policy had a part in them."""

    data: torch.Tensor
    made_up: bool = False


@dataclass(frozen=True, slots=True)
class Even:
    """Elements that are `level` on average, spread evenly: a routing mask of 8 of 64 experts has
    the level 1/8. `made_up` is False where every element is `level` exactly (`torch.zeros`).
    `source` numbers the tensor of classes that a mask was made of, 0 if there is not one.
    """

    level: Fraction
    made_up: bool = True
    source: int = 0


_SOURCES = count(1)


@dataclass(frozen=True, slots=True)
class Classes:
    """Integers of `range(count)`, each of them equally often: the experts chosen by a router.

    `source` tells draws apart.
    """

    count: int
    source: int = field(default_factory=lambda: next(_SOURCES), compare=False)


@dataclass(frozen=True, slots=True)
class Magnitude:
    """Finite numbers, none below zero: norms of gradients."""


Value = Known | Even | Classes | Magnitude


def balanced_counts(total: int, parts: int) -> list[int]:
    """`total` split into `parts` that differ by one at most, larger ones first."""
    each, rest = divmod(total, parts)
    return [each + 1] * rest + [each] * (parts - rest)


def even_counts(level: Fraction, shape: Sequence[int], dtype: torch.dtype) -> Known:
    """A small tensor of integers whose mean is `level` and whose sum is kept exactly."""
    numel = 1
    for size in shape:
        numel *= size
    counts = balanced_counts(round(level * numel), numel) if numel else []
    return Known(torch.tensor(counts).reshape(tuple(shape)).to(dtype), made_up=True)


def settled(level: Fraction, result: torch.Tensor, made_up: bool = True) -> Value:
    """`Even(level)` of the fake tensor `result`, or its elements where these are few."""
    if result.numel() > KNOWN_LIMIT:
        return Even(level, made_up)
    if level.denominator == 1:
        return Known(torch.full(tuple(result.shape), int(level), dtype=result.dtype), made_up)
    if result.dtype == torch.bool:
        return Even(level, made_up)
    return even_counts(level, result.shape, result.dtype)
