"""The real workloads: captures of one folder, with what is known of each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Kind, Program
from flint.ir.workload import Workload
from flint.tools.share.conditions import Conditions, flops_of

#: Why a capture is no part of the evaluation.
SEVERAL = "several programs"
LAUNCHED = "operators that a framework launched"
PIPELINE = "stages of a pipeline"
TOO_LONG = "more rows than are compared"
SENDS = "messages between single devices"


@dataclass(frozen=True, eq=False)
class Capture:
    """A real workload, the family of its model, and its totals."""

    file: str
    family: str
    workload: Workload
    conditions: Conditions


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of `index.json`."""

    file: str
    family: str


def entries(folder: Path) -> list[Entry]:
    """Rows of the folder's `index.json` whose file is there, by name."""
    rows = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    found = {r["file"]: Entry(r["file"], r["family"]) for r in rows}
    return [found[name] for name in sorted(found) if (folder / name).exists()]


def in_scope(
    folder: Path, most_rows: int, chosen: Sequence[Entry] | None = None
) -> tuple[list[tuple[Entry, Workload]], Mapping[str, int]]:
    """Captures that the generator is made for, and how many are not, by reason."""
    kept: list[tuple[Entry, Workload]] = []
    left: Counter[str] = Counter()
    for entry, workload in _loaded(folder, entries(folder) if chosen is None else chosen):
        reason = left_out(workload, most_rows)
        if reason is None:
            kept.append((entry, workload))
        else:
            left[reason] += 1
    return kept, dict(left)


def _loaded(folder: Path, chosen: Sequence[Entry]) -> Iterator[tuple[Entry, Workload]]:
    for entry in chosen:
        yield entry, Workload.load(folder / entry.file)


def left_out(workload: Workload, most_rows: int) -> str | None:
    """Why a capture is not compared; None if it is."""
    if len(workload.programs) > 1:
        return SEVERAL
    program = workload.programs[0]
    if len(program) > most_rows:
        return TOO_LONG
    if bool((program.flags & Flag.LAUNCHED).any()):
        return LAUNCHED
    if bool((program.op == OpClass.TURN).any()):
        return PIPELINE
    return SENDS if bool((program.kind >= Kind.SEND).any()) else None


def largest_program(workload: Workload) -> Program:
    """The program with most FLOPs, the first of equals: the one that conditions are of."""
    return max(workload.programs, key=flops_of)
