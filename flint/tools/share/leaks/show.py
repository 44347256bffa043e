"""The leak report as plain text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from flint.tools.share.leaks.anonymity import AnonymitySet
from flint.tools.share.leaks.attacks import FamilyGuess, Membership, Memberships
from flint.tools.share.leaks.fingerprints import View
from flint.tools.share.leaks.shape_attack import ShapeGuess
from flint.tools.share.leaks.strings import Survivor

if TYPE_CHECKING:
    from flint.tools.share.leaks.report import Leaks

#: Survivors, models and candidates that are named; the rest is counted.
_MOST_SHOWN = 8
#: Characters of a survivor that are shown.
_MOST_TEXT = 60


def text_of(leaks: Leaks) -> str:
    """All parts, one below the other."""
    lines = [
        *_survivors(leaks.survivors),
        "",
        *_anonymity(leaks),
        "",
        *_attacks(leaks),
        "",
        *_bits(leaks),
    ]
    return "\n".join(lines) + "\n"


def _survivors(survivors: Sequence[Survivor]) -> Iterator[str]:
    if not survivors:
        yield "Strings: none but public operators, types and generated names"
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
    yield "(a closed world: a workload that none of them is like is not hidden, but unknown here)"
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
        f"  nearest neighbour, {guess.view.value}: {guess.nearest.family}{tied} "
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
        f"; its weights have {named[0].explained:.1%} of the FLOPs of products, and {named[0].usual} of "
        f"{named[0].usual_of} other shapes of it are there"
        if named
        else ""
    )


def _distance(found: Membership) -> str:
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
