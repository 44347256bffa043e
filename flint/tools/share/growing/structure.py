"""A program as roles and splits are read from it: of which variables rows are made, what products contract."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np

from flint.ir.columns import consumers, is_any
from flint.ir.mesh import AxisRef
from flint.ir.op_class import ATTENTION, LAYOUT, OpClass
from flint.ir.program import Collective, Kind, Program, Region, RegionKind
from flint.ir.workload import Workload
from flint.tools.share.sizes import Expression, Sizes
from flint.tools.share.sizes.expression import Factor

#: Flint's own form of a sharding: axes of each dimension, in quotes.
_SHARDING = re.compile(r"\[(?:\{[^{}]*\}(?:, \{[^{}]*\})*)?\]")
_DIMENSION = re.compile(r"\{([^{}]*)\}")
_AXIS = re.compile(r'"([^"]+)"')
#: How often each variable, and each axis, is a factor of something.
Powers: TypeAlias = Counter[Factor]
#: Rows between what is summed and its collective, at most.
_FAR = 6
#: Rows that sum over dimensions of what they read, or look one entry of a dimension up.
_SUMS = frozenset({OpClass.MATMUL, OpClass.REDUCE, OpClass.GATHER})
#: What may lie between a sum on one device and the sum over devices.
_BETWEEN = LAYOUT | {OpClass.CONVERT, OpClass.VALUE, OpClass.ADD, OpClass.REDUCE_PRECISION}


def sharding_of(text: str) -> tuple[tuple[str, ...], ...] | None:
    """Axes by dimension; None for a text of any other form, and for parts of axes."""
    if not _SHARDING.fullmatch(text) or ":(" in text:
        return None
    return tuple(tuple(_AXIS.findall(inner)) for inner in _DIMENSION.findall(text))


def powers(expressions: tuple[Expression, ...]) -> Powers | None:
    """Factors of a product of expressions; None where one of them is a sum."""
    found: Powers = Counter()
    for expression in expressions:
        if len(expression.terms) > 1:
            return None
        for monomial, _ in expression.terms:
            found.update(monomial)
    return found


@dataclass(frozen=True, slots=True)
class Sum:
    """A row that sums over dimensions: a product of matrices, a reduction, or a look-up (of zeros but one).

    `left` and `right` are factors of operands (`right` only of products), `result` those of the result. `over`
    are axes over which the result is summed next.
    """

    row: int
    left: Powers
    right: Powers
    result: Powers
    over: frozenset[str]

    @property
    def contracted(self) -> Powers:
        """Factors of what is summed over; exact where no batch dimension comes twice."""
        both = self.left + self.right
        both.subtract(self.result)
        if not self.right:
            return Counter({f: n for f, n in both.items() if n > 0})
        return Counter({f: n // 2 for f, n in both.items() if n >= 2})

    @property
    def batch(self) -> Powers:
        """Factors of dimensions that both operands and the result have."""
        both = self.left + self.right
        both.subtract(self.result)
        return Counter(
            {f: 1 for f, n in both.items() if n % 2 and f in self.right and f in self.left}
        )

    @property
    def is_product(self) -> bool:
        """Whether two operands are multiplied."""
        return bool(self.right)


class ProgramStructure:
    """The program of a workload, with the variables of its rows."""

    def __init__(self, workload: Workload, sizes: Sizes) -> None:
        self.workload, self.sizes = workload, sizes
        self.program: Program = workload.programs[0]
        self._powers: dict[tuple[Expression, ...], Powers | None] = {}

    def dims(self, row: int) -> tuple[Expression, ...]:
        """What each dimension of a row is made of."""
        return self.sizes.dimension(row)

    def powers(self, row: int) -> Powers | None:
        """Factors of all dimensions of a row; None where one is a sum."""
        dims = self.dims(row)
        if dims not in self._powers:
            self._powers[dims] = powers(dims)
        return self._powers[dims]

    def sharding(self, row: int) -> tuple[tuple[str, ...], ...] | None:
        """Axes of each dimension of an argument, where it says them."""
        return sharding_of(self.program.strings[int(self.program.cause[row])])

    def sharded_dims(self, row: int) -> list[tuple[tuple[str, ...], Expression]]:
        """The dimensions of an argument with their axes; none where it does not say them."""
        sharding, dims = self.sharding(row) or (), self.dims(row)
        return list(zip(sharding, dims, strict=True)) if len(sharding) == len(dims) else []

    @cached_property
    def parameters(self) -> tuple[int, ...]:
        """Rows of arguments."""
        return tuple(np.flatnonzero(self.program.kind == Kind.PARAMETER).tolist())

    @cached_property
    def weights(self) -> tuple[int, ...]:
        """Arguments of floating point numbers, with one dimension or more, none of which is the batch."""
        return tuple(
            r
            for r in self.parameters
            if not self.is_whole(r)
            and self.dims(r)
            and not any(self.batch & e.variables for e in self.dims(r))
        )

    @cached_property
    def batch(self) -> frozenset[int]:
        """Variables of the first dimension of whole-numbered arguments.

        Without such arguments, the one that is the first dimension of an argument and of most rows of two or more.
        """
        if self.inputs:
            return frozenset().union(*(self.dims(r)[0].variables for r in self.inputs)) - self.loops
        first: Counter[frozenset[int]] = Counter()
        for row in range(len(self.program)):
            if len(dims := self.dims(row)) > 1:
                first[dims[0].variables - self.loops] += 1
        best, count = max(first.items(), key=lambda i: i[1], default=(frozenset[int](), 0))
        of_arguments = {self.dims(r)[0].variables for r in self.parameters if self.dims(r)}
        alone = len(best) == 1 and 2 * count > first.total() and best in of_arguments
        return best if alone else frozenset()

    @cached_property
    def inputs(self) -> tuple[int, ...]:
        """Arguments of whole numbers, with one dimension or more: tokens, labels."""
        return tuple(r for r in self.parameters if self.is_whole(r) and self.dims(r))

    @cached_property
    def loops(self) -> frozenset[int]:
        """Variables that are trip counts of loops."""
        return frozenset(v.number for v in self.sizes.variables if v.layers)

    def is_whole(self, row: int) -> bool:
        """Whether a row is of whole numbers."""
        name = self.program.dtypes[int(self.program.dtype[row])]
        return name.lstrip("su").startswith(("int", "i")) or name in ("s8", "s16", "s32", "s64")

    @cached_property
    def monomials(self) -> frozenset[tuple[Factor, ...]]:
        """Products that dimensions of the workload are made of."""
        found = {self.dims(r) for r in range(len(self.program))}
        return frozenset(m for dims in found for e in dims for m, _ in e.terms)

    @cached_property
    def sums(self) -> tuple[Sum, ...]:
        """Products of two operands and reductions whose factors are known."""
        return tuple(self._sums())

    def _sums(self) -> Iterator[Sum]:
        p = self.program
        chosen = is_any(p, _SUMS) & (p.kind == Kind.COMPUTE)
        for row in np.flatnonzero(chosen).tolist():
            is_product = p.op[row] == OpClass.MATMUL
            reads = [r for r in p.dependencies(row).tolist() if is_product or self.dims(r)]
            reads = reads * 2 if is_product and len(reads) == 1 else reads
            if p.op[row] == OpClass.GATHER:
                reads = [r for r in reads if not self.is_whole(r)]
            found = [self.powers(r) for r in (row, *reads)]
            if len(reads) != 1 + is_product or any(f is None for f in found):
                continue
            result, left = found[0], found[1]
            right = found[2] if is_product else Counter()
            assert result is not None and left is not None and right is not None
            yield Sum(row, left, right, result, self._summed_over(row))

    @cached_property
    def within_kernels(self) -> tuple[Powers, ...]:
        """What attention in one kernel sums over: positions, and the size of a head."""
        p = self.program
        found = []
        for row in np.flatnonzero(is_any(p, ATTENTION) & (p.kind == Kind.COMPUTE)).tolist():
            dims, shape = self.dims(row), p.shapes[int(p.shape[row])]
            for place in self._kernel_places(row, shape):
                if (factors := powers((dims[place],))) is not None:
                    found.append(factors)
        return tuple(found)

    def _kernel_places(self, row: int, shape: tuple[int, ...]) -> list[int]:
        """Places of positions and of the size of a head in a kernel's result."""
        _, queries, _, size = self.program.dims[row].tolist()
        if len(shape) != 4 or shape[3] != size:
            return []
        return [*[i for i in (2, 1) if shape[i] == queries][:1], 3]

    @cached_property
    def _readers(self) -> tuple[list[int], list[int]]:
        start, rows = consumers(self.program)
        return start.tolist(), rows.tolist()

    def _summed_over(self, row: int) -> frozenset[str]:
        """Axes of the collectives that add up what a row gives, or a copy of it."""
        p, (start, readers) = self.program, self._readers
        found: set[str] = set()
        seen, front = {row}, [row]
        for _ in range(_FAR):
            reached = {r for f in front for r in readers[start[f] : start[f + 1]]} - seen
            seen |= reached
            front = []
            for r in sorted(reached):
                if p.kind[r] == Kind.COLLECTIVE:
                    if p.collective[r] in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER):
                        found |= {a.name for a in p.groups[int(p.group[r])].axes}
                elif p.op[r] in _BETWEEN:
                    front.append(r)
        return frozenset(found)


def axes_of(factors: Powers) -> frozenset[str]:
    """Names of axes among factors."""
    return frozenset(f.name for f in factors if isinstance(f, AxisRef))


def variables_of(factors: Powers) -> frozenset[int]:
    """Numbers of variables among factors."""
    return frozenset(f for f in factors if isinstance(f, int))


# Which variables are numbers of layers: trip counts of loops along stacked arrays.


def layer_variables(structure: ProgramStructure) -> tuple[int, ...]:
    """Variables that are the trip count of loops over layers, those of most FLOPs first.

    A loop over microbatches stacks as well: a loop in which another stacked one lies is none over layers. Nor
    is one that passes something around the devices of an axis, once less than there are (`rings_of`).
    """
    flops = _flops_of_trips(structure)
    return tuple(sorted(flops, key=lambda v: (-flops[v], v)))


def _flops_of_trips(structure: ProgramStructure) -> dict[int, int]:
    p, sizes = structure.program, structure.sizes
    trips = [sizes.table.entries[t].variables for t in sizes.columns.trips]
    loops = [i for i, r in enumerate(p.regions) if r.kind is RegionKind.LOOP and trips[i]]
    outer = {around for i in loops for around in _around(p.regions, i)} | set(rings_of(p))
    found: dict[int, int] = {}
    for i in loops:
        if i in outer:
            continue
        region = p.regions[i]
        inner = int(p.flops[region.start : region.stop].sum()) * region.trip_count
        for variable in trips[i]:
            found[variable] = found.get(variable, 0) + inner
    return found


def rings_of(program: Program) -> dict[int, tuple[str, int]]:
    """Loops that pass something around an axis: by region, the axis and its devices less the trips.

    They permute along one axis in each iteration, and run as often as there are devices along it, or once less.
    """
    found: dict[int, tuple[str, int]] = {}
    for row in np.flatnonzero(program.collective == Collective.PERMUTE).tolist():
        number, route = int(program.region[row]), program.routes[int(program.route[row])]
        if (
            number < 0
            or len(route.axes) != 1
            or program.regions[number].kind is not RegionKind.LOOP
        ):
            continue
        less = program.mesh.axis_size(route.axes[0]) - program.regions[number].trip_count
        if less in (0, 1):
            found[number] = route.axes[0].name, less
    return found


def ring_axes(program: Program) -> frozenset[str]:
    """Axes around which all permutations go in loops, one step each time: how often follows from their size."""
    rings = rings_of(program)
    inside: set[str] = set()
    outside: set[str] = set()
    for row in np.flatnonzero(program.collective == Collective.PERMUTE).tolist():
        route = program.routes[int(program.route[row])]
        axes = {a.name for a in route.axes}
        is_ring = int(program.region[row]) in rings and route.wrap and not route.pairs
        (inside if is_ring and abs(route.offset) == 1 else outside).update(axes)
    return frozenset(inside - outside)


def with_rings(before: Workload, after: Workload) -> Workload:
    """The workload with trip counts of loops around axes, where nothing else is as long as they run."""
    (one,), (other,) = before.programs, after.programs
    regions = list(other.regions)
    for number, (axis, less) in rings_of(one).items():
        trips = after.mesh.axis_size(axis) - less
        regions[number] = replace(regions[number], trip_count=trips)
    return replace(after, programs=(replace(other, regions=tuple(regions)),))


def _around(regions: tuple[Region, ...], number: int) -> list[int]:
    found, parent = [], regions[number].parent
    while parent >= 0:
        found.append(parent)
        parent = regions[parent].parent
    return found
