"""The leak report: what still identifies in a workload that is to be shared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flint.ir.arrays import Float64s
from flint.ir.workload import Workload
from flint.tools.share.leaks.fingerprints import (
    Fingerprint,
    View,
    fingerprint_of,
    shares,
    structure_distances,
    together,
)
from flint.tools.share.leaks.known import (
    EQUAL,
    FamilyAccuracy,
    Known,
    KnownEntry,
    Threshold,
    log_totals,
    member_distances,
    public_models,
)
from flint.tools.share.leaks.shape_attack import ShapeGuess, guess_by_shapes
from flint.tools.share.leaks.strings import Survivor, surviving_strings

# Attacks on a shared workload by somebody who has captures of public models.


@dataclass(frozen=True, slots=True)
class FamilyGuess:
    """The nearest known workload by shares of neighborhoods, and the nearest of another family.

    Distances are shares of rows (0 to 1) whose neighborhood of depth 2 differs. `accuracy` is the
    attack's own on the known workloads. Families that tie with the first are in `tied`.
    """

    view: View
    nearest: KnownEntry
    distance: float
    second: KnownEntry
    second_distance: float
    tied: tuple[str, ...]
    accuracy: FamilyAccuracy


@dataclass(frozen=True, slots=True)
class KnownMembership:
    """Whether the workload is one of the known ones: of the same model, or mesh and options too.

    The distance is that of op-class neighborhoods (0 to 1) and of totals (powers of two, at most
    1), summed. `candidates` are the known workloads within the threshold, nearest first.
    """

    distance: float
    threshold: Threshold
    candidates: tuple[KnownEntry, ...]

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

    workload: KnownMembership
    model: KnownMembership


def guess_family(of: Fingerprint, known: Known, view: View) -> FamilyGuess:
    """Nearest neighbor on neighborhoods of one view."""
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


def _membership(
    distances: Float64s, entries: Sequence[KnownEntry], threshold: Threshold
) -> KnownMembership:
    inside = np.flatnonzero(distances <= threshold.distance + EQUAL)
    order = inside[np.argsort(distances[inside], kind="stable")]
    found = tuple(entries[i] for i in order.tolist())
    return KnownMembership(float(distances.min()), threshold, found)


@dataclass(frozen=True, slots=True)
class KnownWorld:
    """How many known workloads, models and families the attacks choose from."""

    workloads: int
    models: int
    families: int


@dataclass(frozen=True, slots=True)
class Leaks:
    """What was found. Nothing here says that a workload is safe: only which attacks were run."""

    survivors: tuple[Survivor, ...]
    known: KnownWorld
    families: tuple[FamilyGuess, ...]
    membership: Memberships
    shapes: ShapeGuess

    def text(self) -> str:
        """The report for people: plain text, some thirty lines."""
        parts = (_strings(self.survivors), _attacks(self))
        return "\n\n".join("\n".join(lines) for lines in parts) + "\n"

    def to_json(self) -> dict[str, Any]:
        """The report as JSON: the fields, and what follows from them."""
        found = asdict(self)
        found["membership"]["workload"]["is_member"] = self.membership.workload.is_member
        found["membership"]["model"]["is_member"] = self.membership.model.is_member
        found["survivors_by_place"] = dict(Counter(s.place.value for s in self.survivors))
        return found


def leaks_of(
    shared: Workload,
    original: Workload | None = None,
    *,
    known: Known | None = None,
    files: str | Path | None = None,
) -> Leaks:
    """Run every attack on a workload that is to be shared.

    With the original at hand survivors say which of its words they hold. `known` are the workloads
    that an attacker has: by default the public models that come with Flint. `files` is the directory
    of traces, or the `.flint` file, that is given away: its strings are searched instead of those
    of `shared`. Raises FlintError FL932 if it cannot be read.
    """
    world = known or public_models()
    whole = together([fingerprint_of(p) for p in shared.programs])
    return Leaks(
        _survivors(shared, original, files),
        KnownWorld(len(world), len(world.models), len(world.families)),
        tuple(guess_family(whole, world, view) for view in View),
        guess_membership(whole, log_totals(shared), world),
        guess_by_shapes(shared.programs),
    )


def _survivors(
    shared: Workload, original: Workload | None, files: str | Path | None
) -> tuple[Survivor, ...]:
    if files is None:
        return surviving_strings(shared, original)
    from flint.tools.share.leaks.files import surviving_in_files  # its readers take 0.1 s to import

    return surviving_in_files(files, original)


# The leak report as plain text.

#: Survivors, models and candidates that are named; the rest is counted.
_MOST_SHOWN = 8
#: Characters of a survivor that are shown.
_MOST_TEXT = 60


def _strings(survivors: Sequence[Survivor]) -> Iterator[str]:
    if not survivors:
        yield "Strings: only public operators, types and generated names"
        return
    counts = Counter(s.place.value for s in survivors)
    listed = ", ".join(f"{place} {count}" for place, count in counts.most_common())
    yield f"Strings that may identify: {len(survivors)} ({listed})"
    for survivor in survivors[:_MOST_SHOWN]:
        words = f" [of the original: {', '.join(survivor.words[:3])}]" if survivor.words else ""
        yield f"  {survivor.place.value} ({survivor.where}): {_cut(survivor.text)}{words}"
    if len(survivors) > _MOST_SHOWN:
        yield f"  and {len(survivors) - _MOST_SHOWN} more"


def _attacks(leaks: Leaks) -> Iterator[str]:
    known = leaks.known
    yield (
        f"Attacks by somebody who has {known.workloads} known workloads of {known.models} public "
        f"models, {known.families} families"
    )
    yield "(a closed world: a workload that is like none of them is not hidden, but unknown here)"
    for guess in leaks.families:
        yield from _family(guess)
    yield from _member(leaks.membership)
    yield from _shapes(leaks.shapes)


def _family(guess: FamilyGuess) -> Iterator[str]:
    tied = f", tied with {', '.join(guess.tied)}" if guess.tied else ""
    yield (
        f"  nearest neighbor, {guess.view.value}: {guess.nearest.family}{tied} "
        f"({guess.nearest}), {guess.distance:.1%} of rows differ;"
    )
    yield f"    next family {guess.second.family}, {guess.second_distance:.1%}"
    measured = guess.accuracy
    shares = (
        ("one by one", measured.one_left_out),
        ("model by model", measured.model_left_out),
        ("code by code", measured.code_left_out),
    )
    told = ", ".join(
        f"{s.right:.0%} {how} (of {s.workloads})" for how, s in shares if s.right is not None
    )
    yield f"    right for known workloads left out: {told};"
    yield f"    always naming the largest family: {measured.largest_family:.0%}"


def _member(found: Memberships) -> Iterator[str]:
    model = ", or ".join(found.model.models[:_MOST_SHOWN]) or "none of the known"
    yield f"  membership of a model: {model}; {_distance(found.model)}"
    exact = found.workload.candidates
    more = f", or {len(exact) - 1} more" if len(exact) > 1 else ""
    workload = f"{exact[0]}{more}" if exact else "none of the known"
    yield f"  membership of a workload: {workload}; {_distance(found.workload)}"


def _shapes(found: ShapeGuess) -> Iterator[str]:
    named = found.named[:_MOST_SHOWN]
    models = ", or ".join(m.model for m in named) or f"none of {found.among} public models"
    yield f"  shapes of products: {models}" + (
        f"; its weights have {named[0].explained:.1%} of the FLOPs of products, and "
        f"{named[0].usual} of {named[0].usual_of} other shapes of it are present"
        if named
        else ""
    )


def _distance(found: KnownMembership) -> str:
    threshold = found.threshold
    return (
        f"distance {found.distance:.4f}, threshold {threshold.distance:.4f} "
        f"(wrong for {threshold.false_positive_rate:.1%} of known left out)"
    )


def _cut(text: str) -> str:
    shown = repr(text)
    return shown if len(shown) <= _MOST_TEXT else shown[: _MOST_TEXT - 3] + "..."
