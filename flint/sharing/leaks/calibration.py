"""How good the attacks are, measured on the known workloads themselves, each left out in turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flint.sharing.leaks.distances import Floats, size_distances, structure_distances

#: Share of known workloads that membership may wrongly name members, where ties allow it.
WANTED_FALSE_POSITIVES = 0.05
#: Distances closer than this are equal: sums of shares round.
EQUAL = 1e-9

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class FamilyAccuracy:
    """How often the nearest neighbour is of the same family.

    `one_left_out`: of all other known workloads; the same model on another mesh may be among them.
    `model_left_out`: of those of other models, over the `models_apart` workloads whose family has
    another model; None where there are none. Ties count by the share of tied neighbours that are right. `largest_family`: what
    naming the largest family always would reach.
    """

    one_left_out: float
    model_left_out: float | None
    models_apart: int
    largest_family: float


@dataclass(frozen=True, slots=True)
class Threshold:
    """Distance up to which a workload counts as a member, and how many non-members do then."""

    distance: float
    false_positive_rate: float


def family_accuracy(
    shares: Floats, families: Sequence[str], models: Sequence[str]
) -> FamilyAccuracy:
    """The accuracy of nearest neighbours among shares (workloads, buckets)."""
    family, model = _numbered(families), _numbered(models)
    alone, apart = [], []
    for i in range(len(shares)):
        distances = structure_distances(shares, shares[i])
        others = np.arange(len(shares)) != i
        alone.append(_right(distances, others, family == family[i]))
        others = model != model[i]
        if (others & (family == family[i])).any():
            apart.append(_right(distances, others, family == family[i]))
    return FamilyAccuracy(
        float(np.mean(alone)),
        float(np.mean(apart)) if apart else None,
        len(apart),
        max(Counter(families).values()) / len(families),
    )


def member_distances(shares: Floats, totals: Floats, one: Floats, of_one: Floats) -> Floats:
    """For each known workload how far one is from being it: of structure and of totals, summed."""
    return structure_distances(shares, one) + size_distances(totals, of_one)


def member_threshold(shares: Floats, totals: Floats) -> Threshold:
    """The largest distance at which few known workloads pass for another known one.

    Of each the nearest other is taken. Where more than `WANTED_FALSE_POSITIVES` have a twin the
    threshold is 0, and the rate that it has is told.
    """
    nearest = []
    for i in range(len(shares)):
        distances = member_distances(shares, totals, shares[i], totals[i])
        nearest.append(float(np.delete(distances, i).min()))
    ordered = np.sort(nearest)
    allowed = [d for d in ordered if np.mean(ordered <= d + EQUAL) <= WANTED_FALSE_POSITIVES]
    distance = float(max(allowed, default=0.0))
    return Threshold(distance, float(np.mean(ordered <= distance + EQUAL)))


def _right(distances: Floats, others: Bools, same: Bools) -> float:
    least = distances[others].min()
    tied = others & (distances <= least + EQUAL)
    return float(same[tied].mean())


def _numbered(names: Sequence[str]) -> NDArray[np.int64]:
    numbers = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[n] for n in names], dtype=np.int64)
