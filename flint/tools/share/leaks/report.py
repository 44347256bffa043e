"""The leak report: what still identifies in a workload that is to be shared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flint.ir.workload import Workload
from flint.tools.share.leaks.attacks import (
    AnonymitySet,
    FamilyGuess,
    KnownMembership,
    Memberships,
    ProgramLookup,
    SharedBits,
    anonymity_set,
    guess_family,
    guess_membership,
    look_up_programs,
    shared_bits,
)
from flint.tools.share.leaks.fingerprints import COUNTED, View, fingerprint_of, together
from flint.tools.share.leaks.known import Known, log_totals, public_models
from flint.tools.share.leaks.shape_attack import ShapeGuess, guess_by_shapes
from flint.tools.share.leaks.strings import Survivor, surviving_strings


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
    anonymity: tuple[AnonymitySet, ...]
    programs: tuple[ProgramLookup, ...]
    families: tuple[FamilyGuess, ...]
    membership: Memberships
    shapes: ShapeGuess
    bits: SharedBits

    @property
    def has_survivors(self) -> bool:
        """Whether any text is left that may identify."""
        return bool(self.survivors)

    def anonymity_of(self, view: View) -> AnonymitySet:
        """The anonymity set in one view."""
        return next(a for a in self.anonymity if a.view is view)

    def text(self) -> str:
        """The report for people: plain text, some thirty lines."""
        return text_of(self)

    def to_json(self) -> dict[str, Any]:
        """The report as JSON: the fields, with what is computed of anonymity sets."""
        found = asdict(self)
        found["anonymity"] = [
            {
                "view": a.view.value,
                "size": a.size,
                "among": a.among,
                "models": list(a.models),
                "families": list(a.families),
                "identification_bits": a.identification_bits,
            }
            for a in self.anonymity
        ]
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
    own = [fingerprint_of(p) for p in shared.programs]
    whole = together(own)
    return Leaks(
        _survivors(shared, original, files),
        KnownWorld(len(world), len(world.models), len(world.families)),
        tuple(anonymity_set(whole, world, view) for view in View),
        look_up_programs(own, world),
        tuple(guess_family(whole, world, view) for view in COUNTED),
        guess_membership(whole, log_totals(shared), world),
        guess_by_shapes(shared.programs),
        shared_bits(shared),
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


def text_of(leaks: Leaks) -> str:
    """All parts, one below the other."""
    lines = [
        *_strings(leaks.survivors),
        "",
        *_anonymity(leaks),
        "",
        *_attacks(leaks),
        "",
        *_bits(leaks),
    ]
    return "\n".join(lines) + "\n"


def _strings(survivors: Sequence[Survivor]) -> Iterator[str]:
    if not survivors:
        yield "Strings: only public operators, types and generated names"
        return
    counts = Counter(s.place.value for s in survivors)
    yield f"Strings that may identify: {len(survivors)} ({_listed(counts)})"
    for survivor in survivors[:_MOST_SHOWN]:
        words = f" [of the original: {', '.join(survivor.words[:3])}]" if survivor.words else ""
        yield f"  {survivor.place.value} ({survivor.where}): {_cut(survivor.text)}{words}"
    if len(survivors) > _MOST_SHOWN:
        yield f"  and {len(survivors) - _MOST_SHOWN} more"


def _anonymity(leaks: Leaks) -> Iterator[str]:
    known = leaks.known
    yield (
        f"Anonymity set among {known.workloads} known workloads of {known.models} public models, "
        f"{known.families} families"
    )
    yield ("(a closed world: a workload that is like none of them is not hidden, but unknown here)")
    for found in leaks.anonymity:
        yield f"  by {found.view.value:<34} {_set(found)}"
    programs = leaks.programs
    alike = sum(p.workloads[View.OPS] > 0 for p in programs)
    yield f"  programs with a known one's topology and op classes: {alike} of {len(programs)}"


def _set(found: AnonymitySet) -> str:
    bits = found.identification_bits
    if bits is None:
        return "0: like none of them"
    if found.size == 1:
        return f"1: unique, {found.entries[0]} ({bits:.1f} bits)"
    who = found.models if len(found.models) <= _MOST_SHOWN else found.families
    named = ", ".join(who[:_MOST_SHOWN]) + (", ..." if len(who) > _MOST_SHOWN else "")
    return f"{found.size}: {named} ({bits:.1f} bits)"


def _attacks(leaks: Leaks) -> Iterator[str]:
    yield "Attacks"
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


def _bits(leaks: Leaks) -> Iterator[str]:
    bits = leaks.bits
    yield (
        f"Shared at most: {bits.structure / 1000:,.1f} kbit of structure "
        f"({bits.structure_per_row:.1f} a row), {bits.sizes / 1000:,.1f} kbit of sizes"
    )


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{place} {count}" for place, count in counts.most_common())


def _cut(text: str) -> str:
    shown = repr(text)
    return shown if len(shown) <= _MOST_TEXT else shown[: _MOST_TEXT - 3] + "..."
