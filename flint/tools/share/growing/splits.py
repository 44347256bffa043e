"""Which axes of the mesh split a variable: its size on one device is the whole one over theirs.

Three things tell it: shardings of arguments as Flint writes them (`[{"model"}, {"data"}]`); collectives that put a
dimension together or take it apart; and, without shardings, sums over a dimension whose result is summed over an
axis too. What none tells is whole on each device. Others say what is whole: an argument's dimension without axes, and
sums that are complete on one device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from flint.ir.mesh import AxisRef
from flint.tools.share.growing.structure import (
    Powers,
    ProgramStructure,
    axes_of,
    ring_axes,
    variables_of,
)
from flint.tools.share.sizes import Expression


class How(StrEnum):
    """What told that axes split a variable."""

    SAID = "as said"
    SHARDING = "shardings of arguments"
    COLLECTIVE = "collectives that gather or scatter it"
    SUM = "sums over it that go on over the axis"
    HEADS = "sums over heads that go on over the axis: key-value heads are assumed to be split"
    EQUAL = "the other vocabulary, which is as long on one device"
    RING = "loops around the axis: the sequence is assumed to be split"


@dataclass(frozen=True, slots=True)
class Split:
    """Axes, in the order of the mesh, that split a variable; and what told."""

    axes: tuple[str, ...]
    how: How


@dataclass(frozen=True)
class Splits:
    """Splits of variables by number; others are whole.

    `fixed` are dimensions of arguments that axes split, and that no variable can change: (row, dimension, size,
    axes). `unexplained` are axes over which weights' dimensions are summed, and something that has no variable as well.
    `undecided` are variables of which an axis splits one, and nothing tells which.
    """

    of: Mapping[int, Split]
    fixed: tuple[tuple[int, int, int, tuple[str, ...]], ...]
    unexplained: frozenset[str]
    undecided: tuple[tuple[tuple[int, ...], str], ...] = ()

    def with_equal(self, variables: Iterable[int]) -> Splits:
        """Splits in which variables that nothing tells of are split as the others of these are."""
        told = [self.of[v] for v in variables if v in self.of]
        if not told:
            return self
        new = {v: Split(told[0].axes, How.EQUAL) for v in variables if v not in self.of}
        return replace(self, of={**self.of, **new})

    def axes(self, variable: int) -> tuple[str, ...]:
        """Axes that split a variable."""
        found = self.of.get(variable)
        return found.axes if found else ()


def splits_of(
    structure: ProgramStructure,
    said: Mapping[int, tuple[str, ...]],
    heads: Iterable[int] = (),
    sequence: Iterable[int] = (),
) -> Splits:
    """Splits of all variables; `said` are those that the user gives.

    Without shardings, heads are split rather than queries of each or numbers of a head, and a loop around an axis
    passes parts of a sequence.
    """
    finder = _Finder(structure)
    for number, axes in said.items():
        finder.add({number}, axes, How.SAID)
    finder.by_sharding()
    finder.by_collectives()
    if How.SHARDING not in finder.how.values():
        finder.by_sums()
        if len(tuple(sequence)) == 1:
            finder.add(sequence, ring_axes(structure.program), How.RING)
    undecided = finder.decide(frozenset(heads))
    order = structure.workload.mesh.names
    found = {
        number: Split(tuple(sorted(axes, key=order.index)), finder.how[number])
        for number, axes in sorted(finder.axes.items())
        if axes
    }
    return Splits(found, tuple(finder.fixed), finder.unexplained(), undecided)


class _Finder:
    def __init__(self, structure: ProgramStructure) -> None:
        self.structure = structure
        self.mesh = structure.workload.mesh
        self.axes: dict[int, set[str]] = {}
        self.how: dict[int, How] = {}
        self.fixed: list[tuple[int, int, int, tuple[str, ...]]] = []
        self._summed: list[tuple[frozenset[int], str]] = []
        self._waiting: list[tuple[frozenset[int], tuple[str, ...], How]] = []
        self._whole = _whole_somewhere(structure)

    def add(self, variables: Iterable[int], axes: Iterable[str], how: How) -> None:
        variables = frozenset(variables)
        axes = tuple(a for a in axes if self.mesh.axis_size(a) > 1)
        if not axes or not variables:
            return
        if len(variables) > 1:
            self._waiting.append((variables, axes, how))
            return
        (number,) = variables
        if self.how.get(number) is How.SAID and how is not How.SAID:
            return
        self.axes.setdefault(number, set()).update(axes)
        self.how.setdefault(number, how)

    def by_sharding(self) -> None:
        p = self.structure.program
        for row in self.structure.parameters:
            shape = p.shapes[int(p.shape[row])]
            for place, (axes, dim) in enumerate(self.structure.sharded_dims(row)):
                self._of_dimension(row, place, axes, dim, shape[place])

    def _of_dimension(
        self, row: int, place: int, axes: tuple[str, ...], dim: Expression, size: int
    ) -> None:
        long = tuple(a for a in axes if self.mesh.axis_size(a) > 1)
        if not long:
            return
        if not dim.variables:
            self.fixed.append((row, place, size, long))
        for monomial, _ in dim.terms:
            known = {f.name for f in monomial if isinstance(f, AxisRef)}
            inner = {f for f in monomial if isinstance(f, int)}
            self.add(inner, [a for a in long if a not in known], How.SHARDING)

    def by_collectives(self) -> None:
        """A dimension that is a variable times an axis is whole: the variable is its part."""
        for monomial in self.structure.monomials:
            axes = [f.name for f in monomial if isinstance(f, AxisRef)]
            self.add({f for f in monomial if isinstance(f, int)}, axes, How.COLLECTIVE)

    def by_sums(self) -> None:
        """What is summed over on a device, and then over an axis, is split over it."""
        for one in self.structure.sums:
            contracted = one.contracted
            for axis in sorted(one.over):
                if any(isinstance(f, AxisRef) and f.name == axis for f in contracted):
                    continue
                inner = {f for f in contracted if isinstance(f, int)}
                if one.is_product:
                    self._summed.append((frozenset(inner), axis))
                self.add(self._candidates(inner, axis), (axis,), How.SUM)

    def _candidates(self, variables: set[int], axis: str) -> set[int]:
        """Those that may be split over the axis: not summed over anywhere without a sum over it.

        None where one is known to be: that explains the sum.
        """
        if any(axis in self.axes.get(v, ()) for v in variables):
            return set()
        return {v for v in variables if axis not in self._whole.get(v, ())}

    def unexplained(self) -> frozenset[str]:
        """Axes that split variables of which sums tell alone, and over which other products are summed too.

        With shardings that is the batch, of which each device has one sequence.
        """
        if How.SHARDING in self.how.values():
            return frozenset()
        by_sums = (How.SUM, How.HEADS)
        told = {a for v, axes in self.axes.items() if self.how[v] in by_sums for a in axes}
        return frozenset(
            axis
            for variables, axis in self._summed
            if axis in told and not any(axis in self.axes.get(v, ()) for v in variables)
        )

    def decide(self, heads: frozenset[int]) -> tuple[tuple[tuple[int, ...], str], ...]:
        """Of several variables one is split: one that is known to be, else the only one that can be.

        Gives those of which neither tells.
        """
        left = []
        for variables, axes, how in self._waiting:
            for axis in axes:
                if any(axis in self.axes.get(v, ()) for v in variables):
                    continue
                possible = {v for v in variables if axis not in self._whole.get(v, ())}
                if len(possible) == 1:
                    self.add(possible, (axis,), how)
                elif len(possible & heads) == 1:
                    self.add(possible & heads, (axis,), How.HEADS)
                else:
                    left.append((tuple(sorted(variables)), axis))
        return tuple(
            (variables, axis)
            for variables, axis in dict.fromkeys(left)
            if not any(axis in self.axes.get(v, ()) for v in variables)
        )


def _whole_somewhere(structure: ProgramStructure) -> dict[int, set[str]]:
    """Axes that cannot split a variable: it is whole in an argument, or a sum over it is complete on one device."""
    found: dict[int, set[str]] = {}
    names = set(structure.workload.mesh.names)
    for one in structure.sums:
        if one.is_product:
            _note(found, one.contracted, names - one.over)
    for factors in structure.within_kernels:
        _note(found, factors, names)
    for row in structure.parameters:
        for axes, dim in structure.sharded_dims(row):
            if len(dim.terms) == 1 and not axes:
                _note(found, Counter(dim.terms[0][0]), names)
    return found


def _note(found: dict[int, set[str]], factors: Powers, whole: set[str]) -> None:
    """Variables of factors are not split by axes that are no factors beside them."""
    beside = axes_of(factors)
    for number in variables_of(factors):
        found.setdefault(number, set()).update(whole - beside)
