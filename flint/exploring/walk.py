"""The product of dimensions, without what conditions forbid: a condition ends a branch early."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from flint.exploring.conditions import Condition
from flint.exploring.dimension import Dimension
from flint.exploring.expression import Value
from flint.exploring.names import Scope
from flint.exploring.point import Pairs


@dataclass
class Walk:
    """One walk through a product; `left_out` counts, by condition, what it forbade so far."""

    dimensions: Sequence[Dimension]
    conditions: Sequence[Condition]
    scope: Scope
    fixed: Pairs
    left_out: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        of = self.scope.of
        self._meanings = [[of(d.field, d.name, v) for v in d.values] for d in self.dimensions]
        self._points_below = [
            math.prod(len(d.values) for d in self.dimensions[at + 1 :])
            for at in range(len(self.dimensions))
        ]
        self._due = self._when_due()

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        """A value for each dimension, the last one changing fastest."""
        return self._fill(0, (), self.scope.fixed(self.fixed))

    def _when_due(self) -> list[list[Condition]]:
        """For each dimension, the conditions whose last name it gives."""
        due: list[list[Condition]] = [[] for _ in self.dimensions]
        for condition in self.conditions:
            wanted = set(condition.names)
            last = (at for at, m in enumerate(self._meanings) if wanted & m[0].keys())
            due[max(last, default=0)].append(condition)
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
