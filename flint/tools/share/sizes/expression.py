"""Expressions: polynomials in variables, with whole numbers as coefficients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from flint.ir.mesh import AxisRef

#: A variable by its number, or the number of devices along an axis of the mesh.
Factor: TypeAlias = int | AxisRef
#: A product of factors, in one order for equal products.
Monomial: TypeAlias = tuple[Factor, ...]


@dataclass(frozen=True, slots=True)
class Expression:
    """A sum of products: `terms` are (factors, coefficient), in one order for equal sums."""

    terms: tuple[tuple[Monomial, int], ...]

    @classmethod
    def constant(cls, value: int) -> Expression:
        """A number."""
        return cls((((), value),) if value else ())

    @classmethod
    def factor(cls, factor: Factor) -> Expression:
        """A variable, or the size of an axis."""
        return cls((((factor,), 1),))

    @classmethod
    def _of(cls, terms: Mapping[Monomial, int]) -> Expression:
        kept = [(monomial, c) for monomial, c in terms.items() if c]
        return cls(tuple(sorted(kept, key=lambda term: (-len(term[0]), [*map(_key, term[0])]))))

    @classmethod
    def sum(cls, parts: Iterable[Expression]) -> Expression:
        """The sum of expressions."""
        found: dict[Monomial, int] = {}
        for part in parts:
            for monomial, c in part.terms:
                found[monomial] = found.get(monomial, 0) + c
        return cls._of(found)

    @classmethod
    def product(cls, parts: Iterable[Expression]) -> Expression:
        """The product of expressions."""
        found: dict[Monomial, int] = {(): 1}
        for part in parts:
            spread: dict[Monomial, int] = {}
            for left, a in found.items():
                for right, b in part.terms:
                    key = tuple(sorted(left + right, key=_key))
                    spread[key] = spread.get(key, 0) + a * b
            found = spread
        return cls._of(found)

    def times(self, number: int) -> Expression:
        """So many times it."""
        return Expression._of({monomial: c * number for monomial, c in self.terms})

    @property
    def factors(self) -> frozenset[Factor]:
        """Variables and axes that it is made of."""
        return frozenset(f for monomial, _ in self.terms for f in monomial)

    @property
    def variables(self) -> frozenset[int]:
        """Numbers of the variables that it is made of."""
        return frozenset(f for f in self.factors if isinstance(f, int))

    @property
    def only_grows(self) -> bool:
        """Whether it is zero or more whatever the variables are: no coefficient is negative."""
        return all(c >= 0 for _, c in self.terms)

    def value(self, of: Mapping[Factor, int]) -> int:
        """The number that it is for these values of its factors."""
        return sum(c * math.prod(of[f] for f in monomial) for monomial, c in self.terms)


def _key(factor: Factor) -> tuple[bool, str, int]:
    if isinstance(factor, int):
        return False, "", factor
    return True, str(factor), 0
