"""Search: which points of a space that is too large for all of them, by Optuna's samplers.

A batch of a fixed size is asked for, evaluated, and told in the order in which it was asked for: what
is found depends on the seed alone, not on how many processes evaluate or which finishes first. See
docs/decisions/0057-search.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from flint.errors import FlintError
from flint.tools.explore.point import Point
from flint.tools.explore.result import Result, Status
from flint.tools.explore.space.space import Space

if TYPE_CHECKING:
    import optuna

#: Points of a batch; also of a generation of NSGA-II.
BATCH = 32
#: Batches without a new point, one after the other, after which a search ends before its budget.
_PATIENCE = 10
#: The constraint of a trial: by how much it is not feasible; at most 0: it is.
_FEASIBLE = "feasible"


class SearchKind(StrEnum):
    """How points are chosen."""

    NSGA2 = "nsga2"
    TPE = "tpe"
    RANDOM = "random"


class Goal(Protocol):
    """What is wanted of a result."""

    @property
    def maximize(self) -> bool:
        """Whether more is better."""
        ...

    def value(self, result: Result) -> float | None:
        """The quantity; None where it is not known."""
        ...


@dataclass(frozen=True, slots=True)
class StepTime:
    """The shortest step."""

    maximize: bool = False

    def value(self, result: Result) -> float | None:
        """Nanoseconds of a step."""
        return result.step_time_ns or None


def search(
    space: Space,
    evaluate: Callable[[Sequence[Point]], list[Result]],
    budget: int,
    objectives: Sequence[Goal] = (),
    *,
    kind: SearchKind | None = None,
    seed: int = 0,
    holds: Callable[[Result], bool] | None = None,
) -> list[Result]:
    """At most `budget` results, of the points that a search for the objectives has looked at.

    Results that do not fit in memory, or of which `holds` is not true, are told as infeasible.

    Without `kind` it is TPE for one objective and NSGA-II for several; without objectives the
    shortest step is searched for. Raises FlintError FL867 without Optuna.
    """
    goals = tuple(objectives) or (StepTime(),)
    chosen = kind or (SearchKind.TPE if len(goals) == 1 else SearchKind.NSGA2)
    study, distributions = _study(space, goals, chosen, seed)
    found: dict[str, Result] = {}
    idle = 0
    while len(found) < budget and idle < _PATIENCE:
        trials = [study.ask(distributions) for _ in range(BATCH)]
        points = [space.point(trial.params) for trial in trials]
        new = _new(points, found, budget - len(found))
        found.update((r.point.key, r) for r in evaluate(new))
        idle = 0 if new else idle + 1
        for trial, point in zip(trials, points, strict=True):
            _tell(study, trial, found.get(point.key) if point else None, goals, holds)
    return list(found.values())


def _new(points: Sequence[Point | None], found: dict[str, Result], most: int) -> list[Point]:
    """Points that were not looked at yet, each once, those of one program together."""
    new = {p.key: p for p in points if p is not None and p.key not in found}
    return sorted(list(new.values())[:most])


def _study(
    space: Space, goals: Sequence[Goal], kind: SearchKind, seed: int
) -> tuple[optuna.Study, dict[str, Any]]:
    try:
        import optuna
    except ImportError as error:
        raise FlintError(
            "FL867",
            "a search needs Optuna, which is not installed",
            help="pip install 'flint-ir[explore]', or omit --budget",
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        sampler=_sampler(kind, seed),
        directions=["maximize" if goal.maximize else "minimize" for goal in goals],
    )
    choices = optuna.distributions.CategoricalDistribution
    return study, {d.name: choices(d.values) for d in space.dimensions}


def _sampler(kind: SearchKind, seed: int) -> optuna.samplers.BaseSampler:
    import optuna

    if kind is SearchKind.RANDOM:
        return optuna.samplers.RandomSampler(seed=seed)
    if kind is SearchKind.TPE:
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=BATCH)
    return optuna.samplers.NSGAIISampler(seed=seed, population_size=BATCH)


def _tell(
    study: optuna.Study,
    trial: optuna.Trial,
    result: Result | None,
    goals: Sequence[Goal],
    holds: Callable[[Result], bool] | None,
) -> None:
    """Tell what became of a point: None for one that a condition forbids, or beyond the budget."""
    violation = _violation(result, goals, holds)
    values = [goal.value(result) if result and not violation else None for goal in goals]
    trial.set_constraint(_FEASIBLE, violation)
    worst = [-math.inf if goal.maximize else math.inf for goal in goals]
    study.tell(trial, [w if v is None else v for v, w in zip(values, worst, strict=True)])


def _violation(
    result: Result | None, goals: Sequence[Goal], holds: Callable[[Result], bool] | None
) -> float:
    """By how much a result is not feasible: 0 if it is, the share of memory that it lacks."""
    if result is None or result.status in (Status.REFUSED, Status.FAILED):
        return 1.0
    if result.status is Status.TOO_LARGE:
        return max(1e-6, result.memory_bytes / max(1, result.capacity_bytes) - 1)
    known = all(goal.value(result) is not None for goal in goals)
    return 0.0 if known and (holds is None or holds(result)) else 1.0
