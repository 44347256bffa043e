"""A plan: a mesh, which colours each axis shards, and where weights and optimizer state rest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from flint.tools.explore.propose.blank import Blank
from flint.tools.explore.propose.constrained import (
    carried_key,
    operand_key,
    result_key,
)
from flint.tools.explore.propose.reading import Dims

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec

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


# A plan put on a step: shardings of its arguments, and constraints of values inside.


@dataclass(frozen=True)
class PlanShardings:
    """What a plan says of a step: of arguments, of results that replace them, of values by `constrained`'s keys."""

    arguments: tuple[Spec, ...]
    results: Mapping[int, Spec]
    constraints: Mapping[str, Spec]


def shardings_of(plan: ShardingPlan, blank: Blank) -> PlanShardings:
    """The shardings of a plan. A key that would mean two shardings is left to the partitioner."""
    arguments = tuple(of_argument(plan, blank, n) for n in range(len(blank.reading.arguments)))
    found: dict[str, Spec] = {}
    unclear: set[str] = set()

    def note(key: str, spec: Spec) -> None:
        if found.setdefault(key, spec) != spec:
            unclear.add(key)

    for p in blank.reading.products:
        if not p.at:
            continue
        for dims in p.operands:
            if blank.is_weight(dims) and plan.rest is AtRest.ALL:
                note(operand_key(p.at, _shape(blank, dims)), used(plan, blank, dims))
        if not _has_twins(plan, blank, p.result):
            note(result_key(p.at, _shape(blank, p.result)), _of_result(plan, blank, p.result))
    for c in blank.reading.carried:
        if c.at and blank.is_activation(c.dims) and not _has_twins(plan, blank, c.dims):
            note(carried_key(c.at, _shape(blank, c.dims)), used(plan, blank, c.dims))
    results = {number: arguments[n] for number, n in blank.returned.items()}
    inside = {k: s for k, s in found.items() if k not in unclear}
    return PlanShardings(arguments, results, inside)


def _has_twins(plan: ShardingPlan, blank: Blank, dims: Dims) -> bool:
    """Whether an axis splits a colour that a value has twice: which of both, the partitioner sees best."""
    colours, spec = blank.reading.colours_of(dims), used(plan, blank, dims)
    return any(a and colours.count(c) > 1 for c, a in zip(colours, spec, strict=True))


def _shape(blank: Blank, dims: Dims) -> tuple[int, ...]:
    return tuple(blank.reading.colours.sizes[n] for n in dims)


def _of_result(plan: ShardingPlan, blank: Blank, dims: Dims) -> Spec:
    """An activation as it is used, a gradient as it rests."""
    is_gradient = blank.is_weight(dims) and plan.rest is not AtRest.NOTHING
    return (resting if is_gradient else used)(plan, blank, dims)


def partition_spec(spec: Spec) -> PartitionSpec:
    """A sharding as JAX has it."""
    from jax.sharding import PartitionSpec

    return PartitionSpec(*map(entry, spec))


def entry(axes: tuple[str, ...]) -> str | tuple[str, ...] | None:
    """The axes of a dimension as JAX and PyTorch have them."""
    return None if not axes else axes[0] if len(axes) == 1 else axes
