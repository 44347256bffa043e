"""Symbols: sizes that are made equal, split into products, or put together of sums as rows are read.

A term is a coefficient and symbols, in the order in which a dimension is made of them, outermost first.
A symbol is free (it may be split, or said to be another term), or rigid: the number of devices along an
axis, or a sum. What is contradictory becomes constant, which is always right and never free.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from flint.ir.mesh import AxisRef
from flint.tools.share.sizes.expression import Expression, Factor

#: A coefficient, and symbols by their numbers.
Term: TypeAlias = tuple[int, tuple[int, ...]]
ONE: Term = (1, ())


class Symbols:
    """All symbols of a workload. `made` says what a symbol was found to be: a term, or None."""

    def __init__(self) -> None:
        self._values: list[int] = []
        self._made: list[Term | None] = []
        self._sums: dict[int, tuple[Term, ...]] = {}
        self._axes: dict[int, AxisRef] = {}
        self._axis_symbols: dict[AxisRef, int] = {}
        self.pinned: set[AxisRef] = set()

    # making ---------------------------------------------------------------------------------------

    def new(self, value: int) -> Term:
        """A new free symbol; the constant 1 (or 0) for a size that is nothing to vary."""
        return (value, ()) if value <= 1 else (1, (self._add(value),))

    def axis(self, ref: AxisRef, size: int) -> Term:
        """The number of devices along an axis."""
        if ref not in self._axis_symbols:
            self._axis_symbols[ref] = symbol = self._add(size)
            self._axes[symbol] = ref
        return 1, (self._axis_symbols[ref],)

    def sum(self, terms: Sequence[Term]) -> Term:
        """A sum of terms: a constant if all of them are constants."""
        terms = [self.expand(t) for t in terms]
        value = sum(map(self.value, terms))
        if all(not t[1] for t in terms):
            return value, ()
        if len({t[1] for t in terms}) == 1:
            return sum(t[0] for t in terms), terms[0][1]
        symbol = self._add(value)
        self._sums[symbol] = tuple(terms)
        return 1, (symbol,)

    def _add(self, value: int) -> int:
        self._values.append(value)
        self._made.append(None)
        return len(self._values) - 1

    # reading --------------------------------------------------------------------------------------

    def expand(self, term: Term) -> Term:
        """The same term of symbols that were not said to be others."""
        coefficient, symbols = term
        made = self._made
        if all(made[s] is None for s in symbols):
            return term
        found: list[int] = []
        for symbol in symbols:
            inner = made[symbol]
            if inner is None:
                found.append(symbol)
                continue
            made[symbol] = inner = self.expand(inner)
            coefficient *= inner[0]
            found += inner[1]
        return coefficient, tuple(found)

    def value(self, term: Term) -> int:
        """The size."""
        return term[0] * math.prod(self._values[s] for s in term[1])

    def is_same(self, one: Term, other: Term) -> bool:
        """Whether two terms are known to be equal."""
        one, other = self.expand(one), self.expand(other)
        return one == other or (one[0] == other[0] and sorted(one[1]) == sorted(other[1]))

    def is_free(self, term: Term) -> bool:
        """Whether it is one symbol that may become anything."""
        return term[0] == 1 and len(term[1]) == 1 and self._is_free(term[1][0])

    def free_symbols(self, term: Term) -> set[int]:
        """Free symbols that a term is made of."""
        found: set[int] = set()
        stack = list(self.expand(term)[1])
        while stack:
            symbol = stack.pop()
            if symbol in self._sums:
                stack += [s for t in self._sums[symbol] for s in self.expand(t)[1]]
            elif symbol not in self._axes:
                found.add(symbol)
        return found

    def _is_free(self, symbol: int) -> bool:
        return self._made[symbol] is None and symbol not in self._sums and symbol not in self._axes

    def _is_in(self, symbol: int, term: Term) -> bool:
        return symbol in self.free_symbols(term) or symbol in self.expand(term)[1]

    def expression(
        self, term: Term, numbers: dict[int, int], kept: dict[Term, Expression]
    ) -> Expression:
        """A term as a polynomial; `numbers` are the variables of free symbols."""
        term = self.expand(term)
        if term not in kept:
            parts = [self._expression(s, numbers, kept) for s in term[1]]
            kept[term] = Expression.product(parts).times(term[0])
        return kept[term]

    def _expression(
        self, symbol: int, numbers: dict[int, int], kept: dict[Term, Expression]
    ) -> Expression:
        if symbol in self._sums:
            return Expression.sum(self.expression(t, numbers, kept) for t in self._sums[symbol])
        factor: Factor | None = self._axes.get(symbol)
        return Expression.factor(numbers[symbol] if factor is None else factor)

    # finding out ------------------------------------------------------------------------------------

    def freeze(self, term: Term) -> None:
        """Make a term constant: all symbols in it, and axes for meshes that are to change."""
        for symbol in self.expand(term)[1]:
            if symbol in self._sums:
                for inner in self._sums[symbol]:
                    self.freeze(inner)
            elif symbol in self._axes:
                self.pinned.add(self._axes[symbol])
            elif self._made[symbol] is None:
                self._made[symbol] = (self._values[symbol], ())

    def equate(self, one: Term, other: Term) -> None:
        """Say that two terms are equal. They are of equal value; if not, both become constant."""
        if self.value(one) != self.value(other):
            self.freeze(one)
            self.freeze(other)
            return
        one, other = self._apart(one, other)
        if not one[1] and not other[1]:
            return
        if not (self._define(one, other) or self._define(other, one)):
            self._refine(one, other)

    def reshape(self, one: Sequence[Term], other: Sequence[Term]) -> bool:
        """Say that lists of dimensions hold the same elements in one order. False if they cannot."""
        left, right = deque(one), deque(other)
        while left and right:
            a, b = [left.popleft()], [right.popleft()]
            size_a, size_b = self.value(a[0]), self.value(b[0])
            while size_a != size_b:
                less, rest = (a, left) if size_a < size_b else (b, right)
                if not rest:
                    return False
                less.append(rest.popleft())
                size_a, size_b = (math.prod(map(self.value, x)) for x in (a, b))
            self._regroup(a, b)
        return all(self.value(t) == 1 for t in (*left, *right))

    def difference(self, one: Term, other: Term) -> Expression:
        """One minus the other, in the symbols as they are known now."""
        numbers = {s: s for s in self.free_symbols(one) | self.free_symbols(other)}
        kept: dict[Term, Expression] = {}
        a, b = (self.expression(t, numbers, kept) for t in (one, other))
        return Expression.sum((a, b.times(-1)))

    def _apart(self, one: Term, other: Term) -> tuple[Term, Term]:
        """Both without what they have in common."""
        (a, left), (b, right) = self.expand(one), self.expand(other)
        if a != b:
            common = math.gcd(a, b)
            a, b = a // common, b // common
        else:
            a = b = 1
        if left and right:
            kept = []
            rest = list(right)
            for symbol in left:
                if symbol in rest:
                    rest.remove(symbol)
                else:
                    kept.append(symbol)
            left, right = tuple(kept), tuple(rest)
        return (a, left), (b, right)

    def _define(self, one: Term, other: Term) -> bool:
        """Let a single free symbol be the other term."""
        if not self.is_free(one) or self._is_in(one[1][0], other):
            return False
        self._made[one[1][0]] = other
        return True

    def _gather_sums(self, term: Term) -> bool:
        """Let sums of terms that have become multiples of one be a multiple of it. Whether there were any."""
        found = False
        for symbol in self.expand(term)[1]:
            terms = [self.expand(t) for t in self._sums.get(symbol, ())]
            if terms and len({t[1] for t in terms}) == 1:
                self._made[symbol] = sum(t[0] for t in terms), terms[0][1]
                del self._sums[symbol]
                found = True
        return found

    def _refine(self, one: Term, other: Term) -> None:
        """Split symbols of two products of equal value until both are made of the same ones."""
        if self._gather_sums(one) | self._gather_sums(other):
            self.equate(one, other)
            return
        if self._match_sums(one, other):
            return
        free = [[s for s in t[1] if self._is_free(s)] for t in (one, other)]
        rigid = [[s for s in t[1] if not self._is_free(s)] for t in (one, other)]
        done = self._carve_all(one[0], rigid[0], free[1]) and self._carve_all(
            other[0], rigid[1], free[0]
        )
        if done:
            self._split(*free)
        else:
            self.freeze(one)
            self.freeze(other)

    def _carve_all(self, coefficient: int, rigid: Iterable[int], free: list[int]) -> bool:
        """Take rigid factors of one side out of free symbols of the other."""
        for symbol in rigid:
            if not self._carve((1, (symbol,)), free):
                return False
        if coefficient == 1 or self._carve((coefficient, ()), free):
            return True
        return all(self._carve((prime, ()), free) for prime in _primes(coefficient))

    def _carve(self, factor: Term, free: list[int]) -> bool:
        value = self.value(factor)
        fitting = [s for s in free if self._values[s] % value == 0 and not self._is_in(s, factor)]
        if not fitting:
            return False
        is_axis = any(
            s in self._axes for s in factor[1]
        )  # as long by chance: nothing makes them equal
        chosen = max(
            fitting, key=lambda s: (self._values[s] == value and not is_axis, self._values[s])
        )
        rest = self.new(self._values[chosen] // value)
        self._made[chosen] = (factor[0] * rest[0], factor[1] + rest[1])
        free.remove(chosen)
        free += rest[1]
        return True

    def _split(self, left: list[int], right: list[int]) -> None:
        """Make products of free symbols equal, by common divisors."""
        while left:
            a = left.pop(0)
            size = self._values[a]
            b = max(right, key=lambda s: self._fit(size, self._values[s]))
            right.remove(b)
            common = math.gcd(size, self._values[b])
            if size == self._values[b]:
                self._made[b] = (1, (a,))
                continue
            shared = self.new(common)[1]
            rests = [self.new(self._values[s] // common)[1] for s in (a, b)]
            self._made[a], self._made[b] = (1, shared + rests[0]), (1, shared + rests[1])
            left[:0], right[:0] = rests[0], rests[1]

    @staticmethod
    def _fit(one: int, other: int) -> tuple[bool, bool, int]:
        return one == other, max(one, other) % min(one, other) == 0, math.gcd(one, other)

    def _match_sums(self, one: Term, other: Term) -> bool:
        """A sum of n equal terms is n of them."""
        if len(one[1]) != 1 or one[1][0] not in self._sums:
            one, other = other, one
        if len(one[1]) != 1 or one[0] != 1 or one[1][0] not in self._sums:
            return False
        terms = [self.expand(t) for t in self._sums[one[1][0]]]
        size, rest = divmod(self.value(other), len(terms))
        if rest or any(self.value(t) != size for t in terms) or other[0] % len(terms):
            return False
        for term in terms:
            self.equate(term, (other[0] // len(terms), other[1]))
        return True

    def _regroup(self, one: list[Term], other: list[Term]) -> None:
        """Match what dimensions are made of in order; what does not divide, in any order."""
        left, right = self._items(one), self._items(other)
        while left and right and left[-1] == right[-1]:
            left.pop()
            right.pop()
        while left and right:
            left, right = self._items(left), self._items(right)
            a, b = left[0], right[0]
            if a == b or self.value(a) == self.value(b):
                self.equate(a, b)
                del left[0], right[0]
            elif not (self._cut(left, b, right) or self._cut(right, a, left)):
                break
        if left or right:
            self.equate(_joined(left), _joined(right))

    def _cut(self, items: list[Term], by: Term, others: list[Term]) -> bool:
        """Split the first item by the first of the others, if it is a multiple."""
        first, size = items[0], self.value(by)
        if self.value(first) % size or not self.is_free(first) or self._is_in(first[1][0], by):
            return False
        rest = self.new(self.value(first) // size)
        self._made[first[1][0]] = (by[0] * rest[0], by[1] + rest[1])
        items[0] = rest
        del others[0]
        return True

    def _items(self, terms: Sequence[Term]) -> list[Term]:
        found: list[Term] = []
        for coefficient, symbols in map(self.expand, terms):
            if coefficient != 1:
                found.append((coefficient, ()))
            found += [(1, (s,)) for s in symbols]
        return found


def joined(terms: Iterable[Term]) -> Term:
    """The product of terms."""
    return _joined(list(terms))


def _joined(terms: Sequence[Term]) -> Term:
    return math.prod(t[0] for t in terms), tuple(s for t in terms for s in t[1])


def _primes(number: int) -> list[int]:
    found, divisor = [], 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            found.append(divisor)
            number //= divisor
        divisor += 1
    return found + [number] * (number > 1)
