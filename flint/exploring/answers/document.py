"""The JSON document of an exploration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flint.exploring.answers.command import commands
from flint.exploring.answers.rejected import rejected_groups
from flint.exploring.choices import choices
from flint.exploring.explain import explanation_text
from flint.exploring.objectives import names_of_result

if TYPE_CHECKING:
    from flint.exploring.answers.rejected import Rejected
    from flint.exploring.api import Answer
    from flint.exploring.result import Result
    from flint.exploring.study import Study
    from flint.schemas.documents.explore import (
        ExplainedDocument,
        ExploreDocument,
        RankedDocument,
        RejectedDocument,
    )


def explore_document(found: Answer, rows: tuple[int, int] | None = None) -> ExploreDocument:
    """Everything, JSON-able; `rows` are two that are explained."""
    study, ranking = found.study, found.ranking
    return {
        "schema": "flint.explore/1",
        "model": study.subject.model,
        "objectives": [o.name for o in ranking.objectives],
        "dimensions": [
            {"name": d.name, "values": list(d.values), "origin": d.origin} for d in study.dimensions
        ],
        "fixed": dict(study.space.get("fixed", {})),
        "conditions": [*study.space.get("conditions", ()), *study.space.get("limits", ())],
        "points": len(study.results),
        "not_explored": study.not_explored,
        "reused": study.reused,
        "within_error": ranking.within_error(),
        "rows": [
            _ranked(study, r, n, n <= ranking.on_front) for n, r in enumerate(ranking.results, 1)
        ],
        "limited": ranking.beyond_counts(),
        "left_out": dict(found.left_out),
        "rejected": [_rejected(r) for r in rejected_groups(study.results)],
        "explained": None if rows is None else _explained(found, rows),
        "notes": list(study.notes),
        "versions": dict(study.versions),
    }


def _ranked(study: Study, r: Result, row: int, is_on_front: bool) -> RankedDocument:
    return {
        "row": row,
        "is_on_front": is_on_front,
        "choices": choices(r.point),
        "devices": r.devices,
        "values": _values(r),
        "low_ns": r.low_ns,
        "high_ns": r.high_ns,
        "exposed_ns": dict(r.exposed_ns),
        "compute_ns": r.compute_ns,
        "waiting_ns": r.waiting_ns,
        "host_ns": r.host_ns,
        "memory": dict(r.memory),
        "taken": dict(r.taken),
        "commands": list(commands(study.subject, r.point)),
    }


def _values(r: Result) -> dict[str, float]:
    return {name: float(str(value)) for name, value in names_of_result(r).items()}


def _rejected(r: Rejected) -> RejectedDocument:
    return {
        "status": r.status.value,
        "code": r.code,
        "reason": r.example.reason,
        "count": r.count,
        "example": choices(r.example.point),
        "memory_bytes": r.example.memory_bytes,
    }


def _explained(found: Answer, rows: tuple[int, int]) -> ExplainedDocument:
    told = found.explain(*rows)
    return {
        "rows": list(rows),
        "text": explanation_text(told, found.ranking.objectives),
        "time": {p.title: [p.before, p.after] for p in told.time},
        "memory": {p.title: [p.before, p.after] for p in told.memory},
    }
