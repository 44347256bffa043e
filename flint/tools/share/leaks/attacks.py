"""Attacks on a shared workload by somebody who has captures of public models.

Look-up of hashes is `anonymity.py`; here are those that also recognise what was changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flint.ir.arrays import Float64s
from flint.tools.share.leaks.calibration import EQUAL, FamilyAccuracy, Threshold, member_distances
from flint.tools.share.leaks.distances import shares, structure_distances
from flint.tools.share.leaks.fingerprints import Fingerprint, View
from flint.tools.share.leaks.known import Entry, Known


@dataclass(frozen=True, slots=True)
class FamilyGuess:
    """The nearest known workload by shares of neighbourhoods, and the nearest of another family.

    Distances are shares of rows (0 to 1) whose neighbourhood of depth 2 differs. `accuracy` is the
    attack's own on the known workloads. Families that tie with the first are in `tied`.
    """

    view: View
    nearest: Entry
    distance: float
    second: Entry
    second_distance: float
    tied: tuple[str, ...]
    accuracy: FamilyAccuracy


@dataclass(frozen=True, slots=True)
class Membership:
    """Whether the workload is one of the known ones: of the same model, or mesh and options too.

    The distance is that of op-class neighbourhoods (0 to 1) and of totals (powers of two, at most
    1), summed. `candidates` are the known workloads within the threshold, nearest first.
    """

    distance: float
    threshold: Threshold
    candidates: tuple[Entry, ...]

    @property
    def is_member(self) -> bool:
        """Whether the attack claims it."""
        return bool(self.candidates)

    @property
    def models(self) -> tuple[str, ...]:
        """Distinct models of the candidates, nearest first."""
        return tuple(dict.fromkeys(e.model for e in self.candidates))


@dataclass(frozen=True, slots=True)
class Memberships:
    """The claims that it is a known workload, and that it is of a known model."""

    workload: Membership
    model: Membership


def guess_family(of: Fingerprint, known: Known, view: View) -> FamilyGuess:
    """Nearest neighbour on neighbourhoods of one view (`COUNTED`)."""
    distances = structure_distances(known.shares[view], shares(of.histograms[view]))
    order = np.argsort(distances, kind="stable").tolist()
    first = order[0]
    family = known.entries[first].family
    second = next(i for i in order if known.entries[i].family != family)
    tied = [i for i in order if distances[i] <= distances[first] + EQUAL]
    return FamilyGuess(
        view,
        known.entries[first],
        float(distances[first]),
        known.entries[second],
        float(distances[second]),
        tuple(sorted({known.entries[i].family for i in tied} - {family})),
        known.measured.families[view],
    )


def guess_membership(of: Fingerprint, totals: Float64s, known: Known) -> Memberships:
    """The distance to the nearest known workload against the thresholds of `known`."""
    own = shares(of.histograms[View.OPS])
    distances = member_distances(known.shares[View.OPS], known.totals, own, totals)
    measured = known.measured
    return Memberships(
        _membership(distances, known.entries, measured.workloads),
        _membership(distances, known.entries, measured.models),
    )


def _membership(distances: Float64s, entries: Sequence[Entry], threshold: Threshold) -> Membership:
    inside = np.flatnonzero(distances <= threshold.distance + EQUAL)
    order = inside[np.argsort(distances[inside], kind="stable")]
    found = tuple(entries[i] for i in order.tolist())
    return Membership(float(distances.min()), threshold, found)
