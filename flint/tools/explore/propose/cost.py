"""What a plan would cost, before it is captured: products, traffic of memory, and the collectives it implies.

Prices of collectives are Flint's own (`backends/cost/collectives`); products run at a share of the chip's
peak. It orders plans; captures and estimates judge them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from flint.backends.cost.chips.model import peak_flops_per_ns
from flint.backends.cost.collectives.algorithm import CollectiveCall
from flint.backends.cost.collectives.choose import duration_ns
from flint.backends.cost.network.placement import NetworkPlacement
from flint.ir.mesh import AxisRef, Mesh
from flint.ir.op_class import Collective
from flint.tools.explore.propose.blank import Blank
from flint.tools.explore.propose.plan import (
    AtRest,
    ShardingPlan,
    Spec,
    of_value,
    parts,
    resting,
    used,
)
from flint.tools.explore.propose.reading import Dims, Product

if TYPE_CHECKING:
    from flint.cluster.models import Cluster

#: Of the peak, what products reach.
_REACHED = 0.6
#: Of what equations write one by one, what is left after fusion, read and written.
_FUSED = 0.7
#: Of the time of computing, how much communication for weights and gradients hides behind.
_HIDDEN = 0.7


@dataclass(frozen=True, slots=True)
class PlanCost:
    """Nanoseconds of a step, and bytes that a device holds at least and about."""

    compute_ns: float
    blocking_ns: float
    hidden_ns: float
    argument_bytes: int
    about_bytes: int

    @property
    def step_ns(self) -> float:
        """Communication for weights runs beside computing, the rest waits."""
        exposed = max(0.0, self.hidden_ns - _HIDDEN * self.compute_ns)
        return self.compute_ns + self.blocking_ns + exposed


@dataclass
class MeshPrices:
    """Prices of collectives over axes of one mesh."""

    mesh: Mesh
    cluster: Cluster
    _known: dict[tuple[Collective, int, tuple[str, ...]], float] = field(default_factory=dict)

    @cached_property
    def _placement(self) -> NetworkPlacement:
        return NetworkPlacement(self.mesh, self.cluster)

    def ns(self, collective: Collective, num_bytes: float, axes: Iterable[str]) -> float:
        """Time of a collective whose ranks give `num_bytes` each."""
        key = (collective, int(num_bytes), tuple(axes))
        if key not in self._known:
            spans = self._placement.spans([AxisRef(a) for a in key[2]])
            self._known[key] = duration_ns(CollectiveCall(collective, key[1], spans), self.cluster)
        return self._known[key]


@dataclass(frozen=True, slots=True)
class _Value:
    """A value by its colours and lengths: those that are split alike are equal.

    `argument` is 0 for state, 1 for other arguments, None for what is no argument.
    """

    colours: tuple[int, ...]
    shape: tuple[int, ...]
    dims: Dims = field(compare=False)
    argument: int | None = None


@dataclass
class Costs:
    """Costs of plans for one program on one cluster."""

    blank: Blank
    cluster: Cluster
    _networks: dict[str, MeshPrices] = field(default_factory=dict)
    _known: dict[tuple[object, ...], tuple[float, float, float]] = field(default_factory=dict)
    _splits: dict[tuple[object, ...], int] = field(default_factory=dict)

    def of(self, plan: ShardingPlan) -> PlanCost:
        """The cost of a plan."""
        totals = [0.0, 0.0, 0.0]
        for number, (product, count) in enumerate(self._products):
            for at, part in enumerate(self._of_product(number, product, plan)):
                totals[at] += part * count
        largest = 0.0
        for value, written, one in self._written:
            split = self._split_of(value, plan)
            totals[0] += _FUSED * written / split / self._memory_bytes_per_ns
            largest = max(largest, one / split)
        held = sum(size / self._split_of(value, plan) for value, size in self._held)
        about = held + 2 * largest
        about += sum(size / self._split_of(value, plan) for value, size in self._stacked)
        update = self._of_update(plan)
        return PlanCost(totals[0], totals[1], totals[2] + update, int(held), int(about))

    def network(self, plan: ShardingPlan) -> MeshPrices:
        """The prices on a plan's mesh."""
        if plan.mesh not in self._networks:
            self._networks[plan.mesh] = MeshPrices(Mesh.parse(dict(plan.axes)), self.cluster)
        return self._networks[plan.mesh]

    @cached_property
    def _products(self) -> list[tuple[Product, int]]:
        """Products that are alike once, with how often they run."""
        alike: dict[object, tuple[Product, int]] = {}
        reading = self.blank.reading
        for p in self.blank.reading.products:
            shapes = tuple(
                tuple((reading.colours.of(n), reading.colours.sizes[n]) for n in dims)
                for dims in (*p.operands, p.result)
            )
            key = (shapes, len(p.contracted), p.flops)
            first, count = alike.get(key, (p, 0))
            alike[key] = (first, count + p.times)
        return list(alike.values())

    @cached_property
    def _colours(self) -> list[frozenset[int]]:
        of = self.blank.reading.colours.of
        return [
            frozenset(of(n) for dims in (*p.operands, p.result) for n in dims)
            for p, _ in self._products
        ]

    @cached_property
    def _written(self) -> list[tuple[_Value, int, int]]:
        """Bytes that are written in a step, of values that are split alike, and those of one."""
        found: dict[_Value, list[int]] = {}
        for dims, item, times in self.blank.reading.written:
            size = self._size(dims) * item
            entry = found.setdefault(self._value(dims), [0, 0])
            entry[0] += size * times
            entry[1] = max(entry[1], size)
        return [(value, total, one) for value, (total, one) in found.items()]

    @cached_property
    def _held(self) -> list[tuple[_Value, int]]:
        """Bytes of arguments that are split alike."""
        found: dict[_Value, int] = {}
        for n, dims in enumerate(self.blank.reading.arguments):
            kind = 0 if n in self.blank.states else 1
            alike = replace(self._value(dims), argument=kind)
            found[alike] = found.get(alike, 0) + self.blank.argument_bytes(n)
        return list(found.items())

    @cached_property
    def _stacked(self) -> list[tuple[_Value, int]]:
        """Bytes of activations that scans stack."""
        stacks = self.blank.reading.stacked
        return [(self._value(d), self._size(d) * item) for d, item in stacks
                if self.blank.is_activation(d)]  # fmt: skip

    def _value(self, dims: Dims) -> _Value:
        reading = self.blank.reading
        return _Value(reading.colours_of(dims), tuple(reading.colours.sizes[n] for n in dims), dims)

    def _split_of(self, value: _Value, plan: ShardingPlan) -> int:
        """Into how many parts a plan splits a value: looked up by what of the plan it hangs on."""
        kept = tuple(tuple(c for c in s if c in value.colours) for s in plan.splits)
        key = (value, plan.axes, kept, plan.rest, plan.rest_axes)
        if key not in self._splits:
            if value.argument is None:
                self._splits[key] = self._parts(value.dims, plan)
            else:
                is_state = value.argument == 0
                spec = of_value(plan, self.blank, value.dims, is_state=is_state)
                self._splits[key] = parts(plan, spec)
        return self._splits[key]

    @cached_property
    def _memory_bytes_per_ns(self) -> float:
        return float(self.cluster.chip.memory_bandwidth_bytes_per_s.value) / 1e9

    @cached_property
    def _flops_per_ns(self) -> dict[int, float]:
        chip = self.cluster.chip
        return {2: peak_flops_per_ns(chip, "bf16"), 4: peak_flops_per_ns(chip, "f32")}

    def _size(self, dims: Dims) -> int:
        return math.prod(self.blank.reading.colours.sizes[n] for n in dims)

    def _parts(self, dims: Dims, plan: ShardingPlan) -> int:
        rests = plan.rest is not AtRest.NOTHING and self.blank.is_weight(dims)
        return parts(plan, (resting if rests else used)(plan, self.blank, dims))

    def _of_update(self, plan: ShardingPlan) -> float:
        """Weights gathered after an update that ran on parts of them."""
        if plan.rest is not AtRest.STATE:
            return 0.0
        local = sum(
            size / self._split_of(replace(value, argument=0), plan)
            for value, size in self._held
            if value.argument == 1 and self.blank.is_weight(value.dims)
        )
        return self.network(plan).ns(Collective.ALL_GATHER, local, plan.rest_axes)

    def _of_product(
        self, number: int, p: Product, plan: ShardingPlan
    ) -> tuple[float, float, float]:
        """Of one run: computing, communication that waits, and what is for weights."""
        mine = self._colours[number]
        kept = tuple(tuple(c for c in s if c in mine) for s in plan.splits)
        key = (number, plan.axes, kept, plan.rest, plan.rest_axes)
        if key not in self._known:
            self._known[key] = _ProductCost(self, p, plan).found()
        return self._known[key]


@dataclass
class _ProductCost:
    costs: Costs
    p: Product
    plan: ShardingPlan

    def found(self) -> tuple[float, float, float]:
        p, plan, blank = self.p, self.plan, self.costs.blank
        specs = [self._where(d, used(plan, blank, d)) for d in p.operands]
        is_gradient = blank.is_weight(p.result)
        rests = is_gradient and plan.rest is not AtRest.NOTHING
        result = self._where(p.result, (resting if rests else used)(plan, blank, p.result))
        split, waits = 1, 0.0
        for axis, size in plan.axes:
            if size > 1:
                parallel, ns = self._over(axis, specs, result)
                split *= size if parallel else 1
                waits += ns
        gathered = sum(self._gathered(d, n) for n, d in enumerate(p.operands))
        item = max(p.bytes_each[:2])
        work = (
            p.flops
            / split
            / (_REACHED * self.costs._flops_per_ns.get(item, self.costs._flops_per_ns[4]))
        )
        moved = sum(b * self.costs._size(d) / self._split(d)
                    for d, b in zip((*p.operands, p.result), p.bytes_each, strict=True)
                    if p.flops or d is not p.operands[0])  # fmt: skip
        compute = max(work, moved / self.costs._memory_bytes_per_ns)
        return (compute, 0.0, gathered + waits) if is_gradient else (compute, waits, gathered)

    def _where(self, dims: Dims, spec: Spec) -> dict[str, int]:
        """The dimension that each axis splits."""
        return {axis: n for n, entry in zip(dims, spec, strict=True) for axis in entry}

    def _split(self, dims: Dims) -> int:
        return self.costs._parts(dims, self.plan)

    def _bytes(self, dims: Dims, number: int, but: int = 1) -> float:
        return self.costs._size(dims) * self.p.bytes_each[number] * but / self._split(dims)

    def _over(
        self, axis: str, specs: list[dict[str, int]], result: dict[str, int]
    ) -> tuple[bool, float]:
        """Whether an axis shares the product's work, and how long its devices communicate for it."""
        p, network, size = self.p, self.costs.network(self.plan), dict(self.plan.axes)[axis]
        at, out = [s.get(axis) for s in specs], result.get(axis)
        of = self.costs.blank.reading.colours.of
        if not p.flops and out is not None and at[0] is not None and of(at[0]) == of(out):
            return True, 0.0  # what is looked up or added stays where it is
        summed = [any(n == pair[i] for pair in p.contracted) for i, n in enumerate(at)]
        if any(summed):
            both = None in at or any((at[0], at[1]) == pair for pair in p.contracted)
            if both or not p.flops:
                local = self._bytes(p.result, 2, size if out is not None else 1)
                kind = Collective.REDUCE_SCATTER if out is not None else Collective.ALL_REDUCE
                return True, network.ns(kind, local, (axis,))
        keeps = [n is not None and p.kept.get(n) == out and out is not None for n in at]
        ns = sum(network.ns(Collective.ALL_GATHER, self._bytes(p.operands[i], i), (axis,))
                 for i, n in enumerate(at) if n is not None and not keeps[i]
                 and not (any(keeps) and n in p.kept and p.kept[n] == out))  # fmt: skip
        return any(keeps) or out is not None, ns

    def _gathered(self, dims: Dims, number: int) -> float:
        """A weight that rests in parts, gathered for this product."""
        plan, blank = self.plan, self.costs.blank
        if plan.rest is not AtRest.ALL or not blank.is_weight(dims):
            return 0.0
        rest = parts(plan, resting(plan, blank, dims))
        if rest == parts(plan, used(plan, blank, dims)):
            return 0.0
        local = self.costs._size(dims) * self.p.bytes_each[number] / rest
        return self.costs.network(plan).ns(Collective.ALL_GATHER, local, plan.rest_axes)
