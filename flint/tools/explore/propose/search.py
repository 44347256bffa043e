"""Which plans there are for a number of devices, and the best of them by what they would cost.

Of every mesh all sets of colours are priced: a program has few, and what a product costs hangs only on
those that it has, so that each is priced once for each choice of them.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flint.errors import FlintError
from flint.text import format_bytes, plural
from flint.tools.explore.propose.blank import Blank
from flint.tools.explore.propose.cost import Costs, PlanCost
from flint.tools.explore.propose.plan import AtRest, ShardingPlan
from flint.tools.explore.space.meshes import divisors_of

if TYPE_CHECKING:
    from flint.cluster.models import Cluster

#: Colours of which all sets are priced: 127 sets.
_MOST_COLOURS = 7
#: Sets of one length of the inner axis that are priced in all ways.
_MOST_SETS = 12
#: No axis beside the data's is longer.
_LONGEST = 64
#: Plans of one length of the inner axis, and of one set of colours on it, among those that are captured.
_OF_ONE_LENGTH, _OF_ONE_SET = 6, 2


@dataclass(frozen=True)
class PricedPlan:
    """A plan and what it would cost."""

    plan: ShardingPlan
    cost: PlanCost


@dataclass(frozen=True)
class Found:
    """The plans to capture, best first, with what was left out."""

    chosen: tuple[PricedPlan, ...]
    priced: int
    too_large: int
    least_bytes: int


def search(
    blank: Blank,
    cluster: Cluster,
    devices: int,
    *,
    capacity: int,
    tries: int,
    rests: Sequence[AtRest],
) -> Found:
    """The best plans on `devices`, data parallel, ZeRO-1 and fully sharded always among them.

    Raises FlintError FL930 for a program that nothing can split, FL931 for devices that divide nothing
    of it, FL933 for arguments that no plan makes small enough.
    """
    batch = blank.batch
    if batch is None and not blank.candidates:
        raise FlintError(
            "FL930",
            "nothing in the program can be split over devices",
            help="its arguments have no dimension that products, convolutions or look-ups share",
        )
    costs = Costs(blank, cluster)
    known: dict[ShardingPlan, PlanCost] = {}

    def priced_as(plan: ShardingPlan) -> PlanCost:
        return known[plan] if plan in known else known.setdefault(plan, costs.of(plan))

    for plan in plans_of(blank, cluster, devices, rests, lambda p: _order(priced_as(p), capacity)):
        priced_as(plan)
    if not known:
        raise _divides_nothing(blank, devices)
    priced = [PricedPlan(plan, cost) for plan, cost in known.items()]
    fit = [p for p in priced if p.cost.argument_bytes <= capacity]
    least = min(p.cost.argument_bytes for p in priced)
    if not fit:
        enough = devices << max(math.ceil(math.log2(least / max(capacity, 1))), 0)
        raise FlintError(
            "FL933",
            f"no sharding fits: arguments alone take {format_bytes(least)} of each device, "
            f"{format_bytes(least - capacity)} more than it has for them",
            help=f"take about {enough} devices, or a chip with more memory",
        )
    fit.sort(key=lambda p: (_order(p.cost, capacity), p.plan))
    return Found(tuple(_chosen(fit, tries)), len(priced), len(priced) - len(fit), least)


def _order(cost: PlanCost, capacity: int) -> float:
    """Its time; what is about too large comes later, by how much it is."""
    return cost.step_ns * max(1.0, cost.about_bytes / capacity) ** 2


def _chosen(fit: list[PricedPlan], tries: int) -> list[PricedPlan]:
    """The best of each length and set, beside the two plans that everybody starts with."""
    chosen = [p for p in fit if is_plain(p.plan)]
    taken: Counter[object] = Counter()
    for p in fit:
        inner = p.plan.axes[-1][1]
        limits = {inner: _OF_ONE_LENGTH, (inner, p.plan.splits[-1]): _OF_ONE_SET}
        if len(chosen) >= tries:
            break
        if p not in chosen and all(taken[key] < most for key, most in limits.items()):
            taken.update(limits.keys())
            chosen.append(p)
    return sorted(chosen, key=fit.index)


def is_plain(plan: ShardingPlan) -> bool:
    """Whether all devices share the batch alone: data parallel, ZeRO-1 or fully sharded."""
    return [name for name, size in plan.axes if size > 1] == ["data"]


def _divides_nothing(blank: Blank, devices: int) -> FlintError:
    lengths = sorted({blank.length(c) for c in (blank.batch, *blank.candidates) if c is not None})
    said = ", ".join(map(str, lengths[:8]))
    return FlintError(
        "FL931",
        f"no mesh of {plural(devices, 'device')} divides what the program can split",
        help=f"its dimensions have lengths {said}: take devices whose factors divide them, or pad",
    )


def plans_of(
    blank: Blank,
    cluster: Cluster,
    devices: int,
    rests: Sequence[AtRest],
    order: Callable[[ShardingPlan], float],
) -> Iterator[ShardingPlan]:
    """Plans: meshes, sets of colours of the inner axis, and where weights rest.

    All sets are tried in one way for each length of the inner axis; the best by `order` in all ways.
    """
    node = cluster.network[0].size or devices
    for model in (d for d in divisors_of(devices) if d <= _LONGEST):
        ways = [
            (axes, splits, rest, over)
            for axes, splits in _outer(blank, devices // model, node // math.gcd(node, model))
            for rest, over in _rests(rests, axes)
        ]
        sets = list(_sets(blank, model)) if model > 1 else [()]
        for at, (axes, splits, rest, over) in enumerate(reversed(ways)):
            plans = [
                ShardingPlan((*axes, ("model", model)), (*splits, s), rest, over) for s in sets
            ]
            yield from plans
            if at == 0 and len(sets) > _MOST_SETS:
                sets = [p.splits[-1] for p in sorted(plans, key=order)[:_MOST_SETS]]


def _rests(
    rests: Sequence[AtRest], axes: tuple[tuple[str, int], ...]
) -> Iterator[tuple[AtRest, tuple[str, ...]]]:
    names = tuple(name for name, _ in axes)
    over = tuple(n for n in names if n != "replica" and dict(axes)[n] > 1)
    for rest in rests:
        if rest is AtRest.NOTHING and "replica" not in names:
            yield rest, ()
        elif rest is not AtRest.NOTHING and over:
            yield rest, over


def _sets(blank: Blank, size: int) -> Iterator[tuple[int, ...]]:
    """Sets of colours that an axis of this size divides; those with least work are taken first."""
    fit = [c for c in blank.candidates if blank.length(c) % size == 0][:_MOST_COLOURS]
    weights = {c for n, d in enumerate(blank.reading.arguments) if not blank.is_activation(d)
               for c in blank.reading.colours_of(d)}  # fmt: skip
    order = sorted(fit, key=lambda c: (c not in weights, blank.flops[c], c))
    for count in range(1, len(order) + 1):
        yield from itertools.combinations(order, count)


def _outer(
    blank: Blank, devices: int, inside: int
) -> Iterator[tuple[tuple[tuple[str, int], ...], tuple[tuple[int, ...], ...]]]:
    """Axes of the data: one, one within groups of nodes, and one of sequences where the batch is short."""
    batch = blank.batch
    if batch is None:
        if devices == 1:
            yield (("data", 1),), ((),)
        return
    shared = math.gcd(blank.length(batch), devices)
    if shared == devices:
        yield (("data", devices),), ((batch,),)
        for size in {inside, 4 * inside}:
            if 1 < size < devices and devices % size == 0:
                yield (("replica", devices // size), ("data", size)), ((batch,), (batch,))
        return
    for sequence in _sequences(blank, devices // shared):
        yield (("data", shared), ("context", devices // shared)), ((batch,), (sequence,))


def _sequences(blank: Blank, size: int) -> list[int]:
    """Colours that activations have and weights have not."""
    weights = {c for d in blank.reading.arguments if not blank.is_activation(d)
               for c in blank.reading.colours_of(d)}  # fmt: skip
    return [c for c in blank.candidates if c not in weights and blank.length(c) % size == 0][:2]
