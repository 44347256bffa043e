"""The JSON document of an exploration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from typing_extensions import TypedDict

from flint.tools.explore.answers.command import commands
from flint.tools.explore.answers.explain import explanation_text
from flint.tools.explore.answers.objectives import names_of_result
from flint.tools.explore.answers.text import rejected_groups
from flint.tools.explore.point import choices

if TYPE_CHECKING:
    from flint.tools.explore.answers.against import StudyDifference
    from flint.tools.explore.answers.text import Rejected
    from flint.tools.explore.api import Answer
    from flint.tools.explore.evaluation.simulated import SimulatedPoint
    from flint.tools.explore.result import Result
    from flint.tools.explore.study.study import Study


class RankedDocument(TypedDict):
    """A point that fits."""

    row: int  #: Its place in the ranking, from 1: the recommended one.
    is_on_front: bool  #: Whether no other one beats it in all objectives.
    choices: dict[str, str]
    """What it chose, as it is typed: axes of its mesh, options, cluster, stack ..."""
    devices: int  #: Devices of its mesh.
    values: dict[str, float]
    """Quantities that are known of it, by name: times in ns, memory in bytes, costs in USD, energy in kWh, MFU as a share."""
    low_ns: float  #: Where its step time begins four times of five, in ns; 0 if that is not known.
    high_ns: float  #: Where that ends.
    exposed_ns: dict[str, float]
    """Communication that nothing hides, in ns, by the mesh axes that it goes over."""
    compute_ns: float  #: How long the devices of the slowest rank class compute, in ns.
    waiting_ns: float  #: How long those wait for other ranks, in ns.
    host_ns: float  #: How long those wait for their host, in ns.
    memory: dict[str, int]  #: Bytes at the peak of the rank class that needs most, by kind.
    taken: dict[str, str]  #: Stack, policy and profile of its estimate.
    commands: list[str]  #: What gives its estimate again.


class RejectedDocument(TypedDict):
    """Points that are not ranked, for one reason."""

    status: str  #: too large, refused or failed.
    code: str  #: A section of docs/errors.md; "" for memory and failures.
    reason: str  #: What was said of the example.
    count: int  #: How many.
    example: dict[str, str]  #: What the one that came nearest chose.
    memory_bytes: int  #: What that one needs of a device, in bytes; 0 if that is not known.


class DimensionDocument(TypedDict):
    """What differs among points."""

    name: str  #: What it is called.
    values: list[str]  #: What was tried.
    origin: str  #: Who asked for it: the entry (declared), an option, or default.


class ExplainedDocument(TypedDict):
    """Two rows side by side."""

    rows: list[int]  #: Their numbers.
    text: str  #: The difference in words.
    time: dict[str, list[float]]
    """Parts of both steps that differ, in ns; of the second for as many tokens as the first has."""
    memory: dict[str, list[float]]  #: Kinds of memory that differ, in bytes.


class SimulatedPointDocument(TypedDict):
    """A point of which traces were written and run."""

    row: int  #: Its place in the ranking, from 1.
    folder: str  #: Where its traces are.
    step_time_ns: float  #: What was estimated, in ns.
    rules_ns: float
    """Its time by ASTRA-sim's rules, in ns; 0 if those were not asked for, or gave none."""
    simulator_ns: float
    """Its time by the simulator, in ns; 0 if that was not asked for, or gave none."""
    reason: str  #: Why there is no time; "" where there is one.


class ExploredOtherwiseDocument(TypedDict):
    """A point that two studies say something else of."""

    choices: dict[str, str]  #: What it chose, as it is typed.
    status_before: str  #: fits, too large, refused or failed, in the study of --against.
    status: str  #: The same in this one.
    before_ns: float  #: Its step time in the study of --against, in ns; 0 if it was not estimated.
    step_time_ns: float  #: Its step time in this one.


class AgainstDocument(TypedDict):
    """What an older study says otherwise, point by point."""

    both: int  #: Points of both studies.
    only_before: int  #: Points that only the study of --against has.
    only_now: int  #: Points that only this one has.
    best_before: dict[str, str] | None
    """What the best of the study of --against chose; null where nothing fits."""
    status: list[ExploredOtherwiseDocument]  #: Points that ended otherwise.
    changed: list[ExploredOtherwiseDocument]
    """Points whose step takes another time, the largest ratio first."""


class ExploreDocument(TypedDict):
    """Configurations of a program, ranked."""

    schema: Literal["flint.explore/1"]  #: Kind and version of this document.
    model: str  #: What was explored.
    objectives: list[str]  #: What is best, the first counts first.
    objective_is_default: bool  #: Whether nobody asked for it.
    dimensions: list[DimensionDocument]  #: What was tried.
    fixed: dict[str, str]  #: Options that were the same in all points.
    conditions: list[str]  #: What points and results had to meet.
    points: int  #: Points that were looked at.
    not_explored: int  #: Points that a search did not look at.
    reused: int  #: Points that were known from before.
    within_error: int  #: Rows whose 80 % interval reaches into that of the first.
    rows: list[RankedDocument]  #: Points that fit and meet the limits, the recommended one first.
    limited: dict[str, int]  #: Points that fit and miss a limit, by the limit.
    left_out: dict[str, int]  #: Combinations that a condition forbade, by the condition.
    rejected: list[RejectedDocument]  #: All others.
    explained: ExplainedDocument | None  #: What --explain asked for.
    against: AgainstDocument | None  #: What --against asked for.
    simulated: list[SimulatedPointDocument]  #: What --simulate asked for.
    notes: list[str]  #: What else is to be known.
    versions: dict[str, Any]  #: Versions of Flint and of frameworks that results are of.


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
        "values": {name: float(str(value)) for name, value in names_of_result(r).items()},
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
