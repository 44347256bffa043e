"""The JSON document of an exploration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flint.tools.explore.answers.command import commands
from flint.tools.explore.answers.explain import explanation_text
from flint.tools.explore.answers.objectives import names_of_result
from flint.tools.explore.answers.rejected import rejected_groups
from flint.tools.explore.choices import choices

if TYPE_CHECKING:
    from flint.schemas.documents.explore import (
        AgainstDocument,
        ExplainedDocument,
        ExploreDocument,
        ExploredOtherwiseDocument,
        RankedDocument,
        RejectedDocument,
        SimulatedPointDocument,
    )
    from flint.tools.explore.answers.against import StudyDifference
    from flint.tools.explore.answers.rejected import Rejected
    from flint.tools.explore.api import Answer
    from flint.tools.explore.evaluation.simulated import SimulatedPoint
    from flint.tools.explore.result import Result
    from flint.tools.explore.study.study import Study


def explore_document(
    found: Answer,
    rows: tuple[int, int] | None = None,
    difference: StudyDifference | None = None,
    simulated: Sequence[SimulatedPoint] = (),
) -> ExploreDocument:
    """Everything, JSON-able; `rows` are two that are explained, `difference` is from an older study."""
    study, ranking = found.study, found.ranking
    return {
        "schema": "flint.explore/1",
        "model": study.subject.model,
        "objectives": [o.name for o in ranking.objectives],
        "objective_is_default": found.is_default,
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
        "against": None if difference is None else _against(difference),
        "simulated": [_simulated(s, n) for n, s in enumerate(simulated, 1)],
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


def _against(d: StudyDifference) -> AgainstDocument:
    best = d.first.best
    return {
        "both": d.both,
        "only_before": d.only_first,
        "only_now": d.only_second,
        "best_before": None if best is None else choices(best.point),
        "status": [_otherwise(*pair) for pair in d.status],
        "changed": [_otherwise(*pair) for pair in d.changed],
    }


def _otherwise(before: Result, now: Result) -> ExploredOtherwiseDocument:
    return {
        "choices": choices(now.point),
        "status_before": before.status.value,
        "status": now.status.value,
        "before_ns": before.step_time_ns,
        "step_time_ns": now.step_time_ns,
    }


def _simulated(s: SimulatedPoint, row: int) -> SimulatedPointDocument:
    return {
        "row": row,
        "folder": str(s.folder),
        "step_time_ns": s.result.step_time_ns,
        "rules_ns": s.rules_ns,
        "simulator_ns": s.simulator_ns,
        "reason": s.reason,
    }


def _explained(found: Answer, rows: tuple[int, int]) -> ExplainedDocument:
    told = found.explain(*rows)
    return {
        "rows": list(rows),
        "text": explanation_text(told, found.ranking.objectives),
        "time": {p.title: [p.before, p.after] for p in told.time},
        "memory": {p.title: [p.before, p.after] for p in told.memory},
    }
