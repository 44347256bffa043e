"""A plan: a mesh, which colours each axis shards, and where weights and optimizer state rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from flint.tools.explore.propose.blank import Blank
from flint.tools.explore.propose.colours import Dims

#: For each dimension of a value the axes that split it, the outermost first.
Spec: TypeAlias = tuple[tuple[str, ...], ...]
#: Weights of fewer elements rest whole: to gather them takes longer than they are large.
SMALL_ELEMENTS = 1 << 16


class AtRest(StrEnum):
    """What is split over the axes of data while it is not used."""

    NOTHING = "nothing"  #: data parallel
    STATE = "state"  #: the optimizer's state (ZeRO-1)
    ALL = "all"  #: weights, gradients and state (ZeRO-3, FSDP)


@dataclass(frozen=True, order=True)
class ShardingPlan:
    """Axes with their sizes, outermost first; for each the colours that it splits, in the order in which a
    value offers them; and the axes over which `rest` is split.
    """

    axes: tuple[tuple[str, int], ...]
    splits: tuple[tuple[int, ...], ...]
    rest: AtRest = AtRest.NOTHING
    rest_axes: tuple[str, ...] = ()

    @property
    def mesh(self) -> str:
        """As `--mesh` takes it."""
        return ",".join(f"{name}={size}" for name, size in self.axes)

    @property
    def devices(self) -> int:
        """Positions of the mesh."""
        return math.prod(size for _, size in self.axes)


def used(plan: ShardingPlan, blank: Blank, dims: Dims) -> Spec:
    """How a value is split while products read or write it."""
    sizes, colours = blank.reading.colours.sizes, blank.reading.colours_of(dims)
    found: list[tuple[str, ...]] = [()] * len(dims)
    left = [sizes[n] for n in dims]
    for (axis, size), ordered in zip(plan.axes, plan.splits, strict=True):
        at = next((at for colour in ordered for at, c in enumerate(colours)
                   if c == colour and left[at] % size == 0), None)  # fmt: skip
        if at is not None and size > 1:
            found[at] = (*found[at], axis)
            left[at] //= size
    return tuple(found)


def resting(plan: ShardingPlan, blank: Blank, dims: Dims) -> Spec:
    """How a weight, or what is like it, is split while nothing reads it."""
    found, sizes = list(used(plan, blank, dims)), blank.reading.colours.sizes
    shape = [sizes[n] for n in dims]
    if math.prod(shape) < SMALL_ELEMENTS:
        return tuple(found)
    size_of = dict(plan.axes)
    for axis in plan.rest_axes:
        if any(axis in entry for entry in found) or size_of[axis] == 1:
            continue
        parts = [math.prod(size_of[a] for a in entry) for entry in found]
        free = [at for at, n in enumerate(dims)
                if blank.reading.colours.of(n) in blank.multiplied
                and shape[at] % (parts[at] * size_of[axis]) == 0]  # fmt: skip
        best = max(free, key=lambda at: (not found[at], shape[at] // parts[at], at), default=None)
        if best is not None:
            found[best] = (*found[best], axis)
    return tuple(found)


def of_argument(plan: ShardingPlan, blank: Blank, number: int) -> Spec:
    """How an argument is split before and after the step."""
    dims = blank.reading.arguments[number]
    return of_value(plan, blank, dims, is_state=number in blank.states)


def of_value(plan: ShardingPlan, blank: Blank, dims: Dims, *, is_state: bool) -> Spec:
    """How an argument of these dimensions is split before and after the step."""
    rests = plan.rest is AtRest.ALL or (plan.rest is AtRest.STATE and is_state)
    if rests and not blank.is_activation(dims):
        return resting(plan, blank, dims)
    return used(plan, blank, dims)


def parts(plan: ShardingPlan, spec: Spec) -> int:
    """Into how many a value of this sharding is split."""
    size_of = dict(plan.axes)
    return math.prod(size_of[a] for entry in spec for a in entry)


def written(spec: Sequence[tuple[str, ...]]) -> str:
    """As JAX writes it: `P('data', None, 'model')`."""
    entries = [repr(a[0]) if len(a) == 1 else repr(a) if a else "None" for a in spec]
    while entries and entries[-1] == "None":
        entries.pop()
    return f"P({', '.join(entries)})"
