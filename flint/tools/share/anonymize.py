"""`flint.anonymize`: a workload that may be shown to others, with what still identifies it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from flint.errors import FlintError
from flint.ir.workload import Workload
from flint.tools.share.inputs import ShareInput, ShareInputKind, read_source
from flint.tools.share.leaks.report import Leaks, leaks_of
from flint.tools.share.level import Level, LevelOptions, options_of
from flint.tools.share.output import is_timed_elsewhere, refuse_place, save_shared
from flint.tools.share.redact import redacted
from flint.tools.share.totals import Change

if TYPE_CHECKING:
    from flint.tools.share.shapes.perturb import Moves


@dataclass(frozen=True)
class Anonymized:
    """What may be shown, what was promised (`level`), and what moved by how much.

    `source` is what was read, None for a workload of this process. `changes` are totals before and after, and
    `moves` says how far sizes moved: nothing for the level `names`, which moves no number.
    """

    workload: Workload
    level: Level
    changes: tuple[Change, ...]
    original: Workload
    source: ShareInput | None = None
    moves: Moves | None = None

    @cached_property
    def leaks(self) -> Leaks:
        """What still identifies, by the attacks that `flint.tools.share.leaks` runs. It names things."""
        return leaks_of(self.workload, self.original)

    def save(self, out: str | Path, *, force: bool = False) -> int:
        """Write a `.flint` file, or a directory of traces by the options of those that were read.

        Gives the number of files. Raises FlintError FL903 for a place in the input, FL501 to FL506 for
        one that cannot be written, FL508 for a file that Flint did not write, without `force`.
        """
        place, source = Path(out), self.source
        is_folder = place.suffix != ".flint" and self.level is Level.NAMES
        if source and is_folder and is_timed_elsewhere(source.manifest):
            from flint.tools.share.traces import redact_traces

            refuse_place(place, source.path, force=force)
            return redact_traces(source.path, place, self.workload)
        return save_shared(self.workload, place, source, force=force)


def anonymize(
    source: Workload | str | Path,
    *,
    level: str = "names",
    keep: float | str | None = None,
    seed: int | None = None,
) -> Anonymized:
    """A workload without what identifies it, as far as `level` promises.

    `source` is a workload, a `.flint` file, a directory that `flint capture` wrote, or a profile. Levels:
    "names" (no names or sources; estimates are equal to the last bit) and "shapes" (and other dimensions:
    totals and step times stay within `keep`, a share such as 0.02 or "2%", which is usual). Equal seeds give
    equal results; without a seed the operating system draws one, which is kept nowhere.

    Raises FlintError FL901 (level), FL904 (traces without a workload, which only the command redacts), FL906
    (too few sizes can change), FL907 (`keep`, or an option that the level does not have), FL908 (numbers that
    a compiler or a profile made, at the level "shapes"), and what reading the source raises.
    """
    if isinstance(source, Workload):
        return _at_level(source, options_of(level, keep, seed))
    return anonymized(read_source(source), options_of(level, keep, seed))


def anonymized(source: ShareInput, options: LevelOptions) -> Anonymized:
    """The same of what was read already."""
    if source.workload is None:
        raise _without_workload(source)
    return replace(_at_level(source.workload, options), source=source)


def _at_level(original: Workload, options: LevelOptions) -> Anonymized:
    named = redacted(original)
    if options.level is Level.NAMES:
        return Anonymized(named, options.level, (), original)
    from flint.tools.share.shapes.perturb import perturbed  # estimates take 0.3 s to import

    found = perturbed(named, options.keep, options.seed)
    return Anonymized(found.workload, options.level, found.changes, original, moves=found.moves)


def _without_workload(source: ShareInput) -> FlintError:
    assert source.kind is ShareInputKind.TRACES
    return FlintError(
        "FL904",
        f"{source.path} has traces, but not the workload that they were written from",
        help="flint anonymize DIR -o OUT --level names writes such traces without names",
    )
