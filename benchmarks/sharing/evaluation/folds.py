"""Folds: which families of models are held out together. A family is never on both sides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Fold:
    """Families held out, and the numbers of the captures on each side."""

    families: tuple[str, ...]
    training: tuple[int, ...]
    held_out: tuple[int, ...]


def folds(families: Sequence[str], number: int) -> list[Fold]:
    """`number` folds of about as many captures each; `families[i]` is that of capture i.

    The largest family goes first, each to the fold with fewest captures, ties by name: no chance is
    in it. Raises FlintError FL504 for fewer families than folds.
    """
    counts = Counter(families)
    if not 1 < number <= len(counts):
        raise ValueError(f"{number} folds of {len(counts)} families are not possible")
    held: list[list[str]] = [[] for _ in range(number)]
    sizes = [0] * number
    for family, size in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        smallest = sizes.index(min(sizes))
        held[smallest].append(family)
        sizes[smallest] += size
    return [_fold(families, tuple(sorted(names))) for names in held]


def family_weights(families: Sequence[str]) -> np.ndarray:
    """A weight for each capture, in all 1: each family counts alike, each capture of it alike."""
    counts = Counter(families)
    found = np.array([1.0 / counts[f] for f in families])
    return np.asarray(found / len(counts))


def _fold(families: Sequence[str], held: tuple[str, ...]) -> Fold:
    inside = [i for i, f in enumerate(families) if f in held]
    others = [i for i, f in enumerate(families) if f not in held]
    return Fold(held, tuple(others), tuple(inside))
