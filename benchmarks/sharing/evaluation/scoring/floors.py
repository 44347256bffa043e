"""Distances of real workloads from real ones: what no generator can be asked to go below."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

#: Random halves over which the floor is a mean.
HALVES = 10


def halves(families: Sequence[str], seed: int) -> list[tuple[list[int], list[int]]]:
    """Random halves of the numbers of captures; each family with two or more is in both."""
    rng = np.random.default_rng(seed)
    return [_halved(families, rng) for _ in range(HALVES)]


def _halved(families: Sequence[str], rng: np.random.Generator) -> tuple[list[int], list[int]]:
    one: list[int] = []
    other: list[int] = []
    for family in sorted(set(families)):
        rows = rng.permutation([i for i, f in enumerate(families) if f == family]).tolist()
        middle = (len(rows) + int(rng.integers(2))) // 2
        one += rows[:middle]
        other += rows[middle:]
    return (sorted(one), sorted(other)) if one and other else (sorted(one + other),) * 2
