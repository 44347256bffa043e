"""Numbers of a workload's metadata that follow from sizes: what stages of a pipeline save."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flint.ir.workload import Workload
from flint.tools.share.sizes.pipelines import freeze_saved, saved_terms
from flint.tools.share.sizes.rows import Rows
from flint.tools.share.sizes.work import Sum

_SAVED = "saved_bytes_per_microbatch"


def saved_sums(workload: Workload, programs: Sequence[Rows]) -> dict[tuple[int, int], Sum]:
    """Bytes that a stage saves for a microbatch, by its position and its number there.

    What its program reads again must be as much; otherwise that stays as it is.
    """
    about = workload.metadata.get("pipeline") or {}
    found: dict[tuple[int, int], Sum] = {}
    for position, stages in enumerate(about.get("positions") or []):
        rows = _program_at(workload, programs, str(about.get("axis")), position)
        for chunk, stage in enumerate(stages):
            if _SAVED not in stage:
                continue
            number = int(stage[_SAVED])
            terms = None if rows is None else saved_terms(rows, chunk)
            if rows is not None and terms is not None:
                if sum(map(rows.symbols.value, terms)) == number:
                    found[position, chunk] = tuple(terms)
                    continue
                freeze_saved(rows)
            found[position, chunk] = ((number, ()),)
    return found


def _program_at(
    workload: Workload, programs: Sequence[Rows], axis: str, position: int
) -> Rows | None:
    at = {c.program for c in workload.classes if position in c.where.get(axis, (position,))}
    return programs[at.pop()] if len(at) == 1 else None


def resized_metadata(
    metadata: Mapping[str, Any], saved: Mapping[tuple[int, int], int]
) -> dict[str, Any]:
    """The metadata with other bytes that stages save, by position and number there."""
    found = dict(metadata)
    if saved:
        about = dict(found["pipeline"])
        about["positions"] = [
            [
                stage | {_SAVED: saved[position, chunk]} if (position, chunk) in saved else stage
                for chunk, stage in enumerate(stages)
            ]
            for position, stages in enumerate(about["positions"])
        ]
        found["pipeline"] = about
    return found
