"""How good the attacks are, measured on the known workloads themselves, each left out in turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flint.ir.arrays import Float64s, Int64s, Mask
from flint.tools.share.leaks.distances import size_distances, structure_distances

#: Share of known workloads that membership may wrongly name members, where ties allow it.
WANTED_FALSE_POSITIVES = 0.05
#: Distances closer than this are equal: sums of shares round.
EQUAL = 1e-9


@dataclass(frozen=True, slots=True)
class Share:
    """How often an attack is right, over so many workloads; None where it could not be tried."""

    right: float | None
    workloads: int


@dataclass(frozen=True, slots=True)
class FamilyAccuracy:
    """How often the nearest neighbour is of the same family.

    `one_left_out`: among all other known workloads; the same model on another mesh may be one of
    them. `model_left_out`: among those of other models, over workloads whose family has another
    model. `code_left_out`: among those of other source code, over workloads whose family somebody
    else wrote too. Ties count by the share of tied neighbours that are right. `largest_family` is
    what naming the largest family always would reach.
    """

    one_left_out: Share
    model_left_out: Share
    code_left_out: Share
    largest_family: float


@dataclass(frozen=True, slots=True)
class Threshold:
    """Distance up to which a workload counts as a member, and how many non-members do then."""

    distance: float
    false_positive_rate: float


def family_accuracy(
    shares: Float64s, families: Sequence[str], models: Sequence[str], codes: Sequence[str]
) -> FamilyAccuracy:
    """The accuracy of nearest neighbours among shares (workloads, buckets)."""
    family = _numbered(families)
    distances = np.stack([structure_distances(shares, one) for one in shares])
    return FamilyAccuracy(
        _left_out(distances, family, np.arange(len(shares))),
        _left_out(distances, family, _numbered(models)),
        _left_out(distances, family, _numbered(codes)),
        max(Counter(families).values()) / len(families),
    )


def _left_out(distances: Float64s, family: Int64s, groups: Int64s) -> Share:
    """Workloads of the same group left out, over those whose family is in another group."""
    found = []
    for i, away in enumerate(distances):
        others, same = groups != groups[i], family == family[i]
        if (others & same).any():
            found.append(_right(away, others, same))
    return Share(float(np.mean(found)) if found else None, len(found))


def member_distances(
    shares: Float64s, totals: Float64s, one: Float64s, of_one: Float64s
) -> Float64s:
    """For each known workload how far one is from being it: of structure and of totals, summed."""
    return structure_distances(shares, one) + size_distances(totals, of_one)


def member_threshold(shares: Float64s, totals: Float64s, groups: Sequence[object]) -> Threshold:
    """The largest distance at which few known workloads pass for one of another group.

    Of each the nearest of another group is taken: groups are workloads themselves, or models. Where
    more than `WANTED_FALSE_POSITIVES` have a twin the threshold is 0, and the rate that it has is
    told.
    """
    group = _numbered(groups)
    nearest = []
    for i in range(len(shares)):
        distances = member_distances(shares, totals, shares[i], totals[i])
        nearest.append(float(distances[group != group[i]].min()))
    ordered = np.sort(nearest)
    allowed = [d for d in ordered if np.mean(ordered <= d + EQUAL) <= WANTED_FALSE_POSITIVES]
    distance = float(max(allowed, default=0.0))
    return Threshold(distance, float(np.mean(ordered <= distance + EQUAL)))


def _right(distances: Float64s, others: Mask, same: Mask) -> float:
    least = distances[others].min()
    tied = others & (distances <= least + EQUAL)
    return float(same[tied].mean())


def _numbered(names: Sequence[object]) -> Int64s:
    numbers = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[n] for n in names], dtype=np.int64)
