"""A measured comparison as `flint compare --json` writes it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Final, cast

from flint.backends.cost.replay.attribution import Attribution
from flint.tools.measure.comparison.comparison import Alone, KindRow, MeasuredComparison, Totals

if TYPE_CHECKING:
    from flint.schemas.documents.compare import (
        ComparedAloneDocument,
        ComparedKindDocument,
        CompareDocument,
        ComparedPartsDocument,
        ComparedTotalsDocument,
    )

SCHEMA: Final = "flint.compare/1"


def document(found: MeasuredComparison) -> CompareDocument:
    """Exact numbers."""
    return {
        "schema": SCHEMA,
        "rank": found.rank,
        "device": found.device,
        "cluster": found.cluster,
        "measured_step_ns": found.step_ns[0],
        "estimated_step_ns": round(found.step_ns[1], 3),
        "replay_error": round(found.replay_error, 6),
        "matched_time": round(found.matched_time, 6),
        "matched_calls": round(found.matched_calls, 6),
        "matched_estimated_time": round(found.captured_time, 6),
        "in_other_forms": round(found.in_forms, 6),
        "measured_parts": _parts(found.parts[0]),
        "estimated_parts": _parts(found.parts[1]),
        "kinds": [_kind(row) for row in found.kinds],
        "other_sizes": [{"measured": _alone(m), "captured": _alone(c)} for m, c in found.resized],
        "only_measured": [_alone(a) for a in found.only_measured],
        "only_captured": [_alone(a) for a in found.only_captured],
        "measured_communication_ns": round(found.communication_ns[0], 3),
        "estimated_communication_ns": round(found.communication_ns[1], 3),
        "measured_exposed": round(found.exposed[0], 6),
        "estimated_exposed": round(found.exposed[1], 6),
        "measured_peak_bytes": found.peak_bytes[0],
        "estimated_peak_bytes": found.peak_bytes[1],
        "causes": [
            {"name": c.name, "sentence": c.sentence, "delta_ns": round(c.delta_ns, 3)}
            for c in found.causes
        ],
        "notes": list(found.notes),
    }


def _parts(parts: Attribution) -> ComparedPartsDocument:
    rounded = {name: round(ns, 3) for name, ns in asdict(parts).items()}
    return cast("ComparedPartsDocument", rounded)


def _totals(totals: Totals) -> ComparedTotalsDocument:
    found = asdict(totals)
    found["time_ns"] = round(totals.time_ns, 3)
    return cast("ComparedTotalsDocument", found)


def _kind(row: KindRow) -> ComparedKindDocument:
    return {
        "kind": row.kind,
        "measured": _totals(row.measured),
        "captured": _totals(row.captured),
        "ratio": round(row.ratio, 6),
    }


def _alone(alone: Alone) -> ComparedAloneDocument:
    return {"title": alone.title, "kind": alone.kind, "totals": _totals(alone.totals)}
