"""The product of dimensions, without what conditions forbid: a condition ends a branch early."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from flint.errors import FlintError
from flint.tools.explore.point import Pairs
from flint.tools.explore.space.conditions import Condition
from flint.tools.explore.space.dimension import SpaceDimension
from flint.tools.explore.space.expression import Value
from flint.tools.explore.space.names import Scope

#: Values that a walk tries while conditions forbid nearly all: some seconds.
MOST_FORBIDDEN = 1_000_000


@dataclass
class Walk:
    """One walk through a product; `left_out` counts, by condition, what it forbade so far.

    It raises FlintError FL862 where conditions forbid more than `MOST_FORBIDDEN` values one by one.
    """

    dimensions: Sequence[SpaceDimension]
    conditions: Sequence[Condition]
    scope: Scope
    fixed: Pairs
    left_out: Counter[str] = field(default_factory=Counter)
    _forbidden: int = field(default=0, init=False)

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        """A value for each dimension, the last one changing fastest."""
        return self._fill(0, (), self.scope.fixed(self.fixed))

    @property
    def size(self) -> int:
        """Combinations before conditions."""
        return math.prod(len(d.values) for d in self.dimensions)

    def parts(self) -> list[Walk]:
        """A walk for each group of conditions that have no dimension in common with others."""
        groups: list[tuple[set[int], list[Condition]]] = []
        for condition in self.conditions:
            apart = [g for g in groups if not g[0] & self._named(condition)]
            joined = [g for g in groups if g not in apart]
            at = self._named(condition).union(*(g[0] for g in joined))
            groups = [*apart, (at, [*(c for g in joined for c in g[1]), condition])]
        return [
            replace(
                self,
                dimensions=[self.dimensions[i] for i in sorted(at)],
                conditions=[c for c in self.conditions if c in some],
                left_out=Counter(),
            )
            for at, some in groups
        ]

    @cached_property
    def _meanings(self) -> list[list[dict[str, Value]]]:
        of = self.scope.of
        return [[of(d.field, d.name, v) for v in d.values] for d in self.dimensions]

    @cached_property
    def _points_below(self) -> list[int]:
        sizes = [len(d.values) for d in self.dimensions]
        return [math.prod(sizes[at + 1 :]) for at in range(len(sizes))]

    def _named(self, condition: Condition) -> set[int]:
        """The dimensions that a condition depends on; the first one stands for none."""
        wanted = set(condition.names)
        return {i for i, m in enumerate(self._meanings) if wanted & m[0].keys()} or {0}

    @cached_property
    def _due(self) -> list[list[Condition]]:
        """For each dimension, the conditions whose last name it gives."""
        due: list[list[Condition]] = [[] for _ in self.dimensions]
        for condition in self.conditions:
            due[max(self._named(condition))].append(condition)
        return due

    def _fill(
        self, at: int, chosen: tuple[str, ...], names: dict[str, Value]
    ) -> Iterator[tuple[str, ...]]:
        if at == len(self.dimensions):
            yield chosen
            return
        for value, meaning in zip(self.dimensions[at].values, self._meanings[at], strict=True):
            names.update(meaning)
            failed = next((c for c in self._due[at] if not c.holds(names)), None)
            if failed is None:
                yield from self._fill(at + 1, (*chosen, value), names)
            else:
                self.left_out[failed.text] += self._points_below[at]
                self._forbidden += 1
                if self._forbidden > MOST_FORBIDDEN:
                    raise _too_many(failed)


def _too_many(condition: Condition) -> FlintError:
    return FlintError(
        "FL862",
        f"'{condition.text}' and other conditions forbid more than {MOST_FORBIDDEN:,} combinations, one by one",
        help="give the wanted values in --mesh and --sweep instead of forbidding the others",
    )
