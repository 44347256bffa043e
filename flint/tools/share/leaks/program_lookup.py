"""Look-up of single programs: a stage of a pipeline may give away what the whole does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flint.tools.share.leaks.fingerprints import Fingerprint, View
from flint.tools.share.leaks.known import Known


@dataclass(frozen=True, slots=True)
class ProgramLookup:
    """One program: in each view how many known workloads have a program alike, and which families."""

    program: int
    rows: int
    workloads: Mapping[View, int]
    families: Mapping[View, tuple[str, ...]]


def look_up_programs(programs: Sequence[Fingerprint], known: Known) -> tuple[ProgramLookup, ...]:
    """Each program among those of known workloads, by hash."""
    return tuple(_look_up(i, p, known) for i, p in enumerate(programs))


def _look_up(number: int, program: Fingerprint, known: Known) -> ProgramLookup:
    found = {view: _workloads(program, known, view) for view in View}
    return ProgramLookup(
        number,
        program.rows,
        {view: len(rows) for view, rows in found.items()},
        {v: tuple(sorted({known.entries[i].family for i in rows})) for v, rows in found.items()},
    )


def _workloads(program: Fingerprint, known: Known, view: View) -> list[int]:
    alike = known.program_hashes[view] == np.uint64(program.hashes[view])
    rows: list[int] = np.unique(known.program_entry[alike]).tolist()
    return rows
