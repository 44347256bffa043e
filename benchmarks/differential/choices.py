"""Where a random program's choices come from: a seed, or a list that was written down before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """A sequence of small numbers. The first of several options is the simplest.

    With `given`, those are taken instead of random ones, and where they end the simplest option: so
    a list with smaller numbers, or fewer, is a simpler program. `made` is what was taken.
    """

    def __init__(self, seed: int | None = None, given: Sequence[int] = ()) -> None:
        self.random = None if seed is None else Random(seed)
        self.given = given
        self.made: list[int] = []

    def index(self, weights: Sequence[float]) -> int:
        """A position in `weights`, as often as its weight says."""
        at = len(self.made)
        if self.random is not None:
            found = self.random.choices(range(len(weights)), weights)[0]
        else:
            found = min(self.given[at], len(weights) - 1) if at < len(self.given) else 0
        self.made.append(found)
        return found

    def one_of(self, options: Sequence[T], weights: Sequence[float] = ()) -> T:
        """One of several, each as likely if no weights are given."""
        return options[self.index(weights or [1] * len(options))]

    def chance(self, likely: float) -> bool:
        """Yes, with this probability. No is simpler."""
        return bool(self.index((1 - likely, likely)))

    def order(self, options: Sequence[T]) -> list[T]:
        """All of them in some order."""
        left = list(options)
        return [left.pop(self.index([1] * len(left))) for _ in options]


def shrunk(
    made: Sequence[int], fails: Callable[[Sequence[int]], bool], most_tries: int
) -> list[int]:
    """A shorter and smaller list that still fails: pieces set to zero, then numbers made smaller."""
    best = list(made)
    tries = 0

    def smaller(candidate: list[int]) -> bool:
        nonlocal best, tries
        if candidate == best or tries >= most_tries:
            return False
        tries += 1
        if fails(candidate):
            best = candidate
            return True
        return False

    size = len(best)
    while size:
        for start in range(0, len(best), size):
            end = start + size
            smaller([0 if start <= at < end else n for at, n in enumerate(best)])
        size //= 2
    for at, number in enumerate(list(best)):
        for less in range(1, number):
            if smaller([*best[:at], less, *best[at + 1 :]]):
                break
    while best and not best[-1]:
        best.pop()
    return best
