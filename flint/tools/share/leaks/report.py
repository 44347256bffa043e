"""The leak report: what still identifies in a workload that is to be shared."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flint.ir.workload import Workload
from flint.tools.share.leaks.anonymity import AnonymitySet, anonymity_set
from flint.tools.share.leaks.attacks import FamilyGuess, Memberships, guess_family, guess_membership
from flint.tools.share.leaks.fingerprints import COUNTED, View, fingerprint_of, together
from flint.tools.share.leaks.known import Known, public_models
from flint.tools.share.leaks.program_lookup import ProgramLookup, look_up_programs
from flint.tools.share.leaks.shape_attack import ShapeGuess, guess_by_shapes
from flint.tools.share.leaks.shared_bits import SharedBits, shared_bits
from flint.tools.share.leaks.sizes import log_totals
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
        from flint.tools.share.leaks.show import text_of

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
    of traces, or the `.flint` file, that is given away: its strings are searched in place of those
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
