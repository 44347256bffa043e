"""A plan put on a step: shardings of its arguments, and constraints of values inside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flint.tools.explore.propose.blank import Blank
from flint.tools.explore.propose.colours import Dims
from flint.tools.explore.propose.constrained import (
    carried_key,
    operand_key,
    result_key,
)
from flint.tools.explore.propose.plan import AtRest, ShardingPlan, Spec, of_argument, resting, used

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec


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

    return PartitionSpec(*(None if not a else a[0] if len(a) == 1 else a for a in spec))
