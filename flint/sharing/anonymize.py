"""`flint.anonymize`: a workload that may be shown to others, with what still identifies it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from flint.errors import FlintError
from flint.ir.workload import Workload
from flint.sharing.change import Change
from flint.sharing.inputs import Source, SourceKind, read_source
from flint.sharing.leaks.report import Leaks, leaks_of
from flint.sharing.level import Level, find_level
from flint.sharing.names.redact import redacted
from flint.sharing.output import is_timed_elsewhere, refuse_place, write_shared


@dataclass(frozen=True)
class Anonymized:
    """What may be shown, what was promised (`level`), and what moved by how much.

    `source` is what was read, None for a workload of this process. `changes` are empty for the level
    `names`, which moves no number.
    """

    workload: Workload
    level: Level
    changes: tuple[Change, ...]
    original: Workload
    source: Source | None = None

    @cached_property
    def leaks(self) -> Leaks:
        """What still identifies, by the attacks that `flint.sharing.leaks` runs. It names things."""
        return leaks_of(self.workload, self.original)

    def save(self, out: str | Path) -> int:
        """Write a `.flint` file, or a directory of traces by the options of those that were read.

        Gives the number of files. Raises FlintError FL903 for a place in the input, FL501 to FL506 for
        one that cannot be written.
        """
        place, source = Path(out), self.source
        refuse_place(place, source.path if source else None)
        like = source.manifest if source else None
        if (
            source
            and self.level is Level.NAMES
            and place.suffix != ".flint"
            and is_timed_elsewhere(like)
        ):
            from flint.sharing.traces import redact_traces

            return redact_traces(source.path, place, self.workload)
        return write_shared(self.workload, place, like)


def anonymize(
    source: Workload | str | Path,
    *,
    level: str = "names",
) -> Anonymized:
    """A workload without what identifies it, as far as `level` promises.

    `source` is a workload, a `.flint` file, a directory that `flint capture` wrote, or a profile. Levels:
    "names" (no names or sources; estimates are equal to the last bit).

    Raises FlintError FL901 (level), FL904 (traces without a workload, which only the command redacts), and
    what reading the source raises.
    """
    if isinstance(source, Workload):
        return Anonymized(redacted(source), find_level(level), (), source)
    return anonymized(read_source(source), level)


def anonymized(source: Source, level: str) -> Anonymized:
    """The same of what was read already."""
    chosen = find_level(level)
    if source.workload is None:
        raise _without_workload(source)
    return Anonymized(redacted(source.workload), chosen, (), source.workload, source)


def _without_workload(source: Source) -> FlintError:
    assert source.kind is SourceKind.TRACES
    return FlintError(
        "FL904",
        f"{source.path} has traces, and no workload that they were written from",
        help="flint anonymize writes such traces without names: the level `names` alone",
    )
