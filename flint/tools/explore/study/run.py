"""A study from its space to its end: what is known is taken from the file, the rest is evaluated."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from flint.errors import FlintError
from flint.tools.explore.answers.objectives import names_of_result
from flint.tools.explore.point import Point
from flint.tools.explore.result import Result
from flint.tools.explore.space.space import Space
from flint.tools.explore.study.fingerprint import versions
from flint.tools.explore.study.search import Goal, SearchKind, search
from flint.tools.explore.study.study import Study, in_order
from flint.tools.explore.study.study_file import StudyFile, open_study
from flint.tools.explore.workers.local import LocalExecutor
from flint.tools.explore.workers.schedule import Executor, groups_of
from flint.tools.explore.workers.work import work_of

#: Programs whose first point is evaluated before the others.
_EARLY = 8


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a study is: `done` points of `total`, `reused` of them from before."""

    done: int
    total: int
    reused: int
    latest: tuple[Result, ...]  #: what has just become known


Listener: TypeAlias = Callable[[Progress], None]


def explore_space(
    space: Space,
    *,
    study: Path | None = None,
    executor: Executor | None = None,
    budget: int | None = None,
    objectives: Sequence[Goal] = (),
    kind: SearchKind | None = None,
    seed: int = 0,
    jobs: int = 0,
    progress: Listener | None = None,
) -> Study:
    """Evaluate the points of a space; those that a study file has are not evaluated again.

    All points, or where there are more than `budget` those that a search for `objectives` finds
    (`kind`, `seed`: see `search`); what the limits of the space forbid is told as infeasible. Results are in `study`, if that is given, as soon as they are
    there. Without an `executor`, `jobs` processes of this machine evaluate.

    Raises FlintError as `open_study` does, FL862 for an empty space, one that is too large without a
    budget, and a search that finds nothing that conditions allow, FL867 without what a search
    or an executor needs, FL871, FL872.
    """
    space.require_points()
    if budget is None:
        space.require_few()
    with contextlib.ExitStack() as open_:
        file = open_.enter_context(open_study(study, space))
        if executor is None:
            executor = open_.enter_context(LocalExecutor(work_of(space.subject), jobs))
        total = space.count() if budget is not None else 0
        known = _Known(file, executor, progress)
        if budget is None or total <= budget:
            found = known.all_of(space.points())
        else:
            known.total = budget
            found = search(
                space, known.results, budget, objectives, kind=kind, seed=seed, holds=_within(space)
            )
    return Study(
        space.subject,
        space.to_json(),
        in_order(found),
        versions(),
        (*file.notes, *_ended_early(len(found), total, budget)),
        known.reused,
        max(0, total - len(found)),
    )


def _ended_early(found: int, total: int, budget: int | None) -> tuple[str, ...]:
    """What a search says that ended before its budget. Raises FlintError FL862 if it found nothing."""
    if budget is None or total <= budget or found >= budget:
        return ()
    if not found:
        raise FlintError(
            "FL862",
            f"the search found no allowed point among {total:,} combinations",
            help="give the wanted values in --mesh and --sweep instead of forbidding the others",
        )
    return (
        f"the search ended before its budget of {budget:,}, because it found no new point for long",
    )


def _within(space: Space) -> Callable[[Result], bool] | None:
    """Whether a result meets the space's limits; None where there are none."""
    if not space.limits:
        return None

    def holds(result: Result) -> bool:
        found = space.scope.results(names_of_result(result))
        names = {**space.names(result.point), **found}
        return all(n in names for c in space.limits for n in c.names) and all(
            c.holds(names) for c in space.limits
        )

    return holds


class _Known:
    """Results from the file, or else from the executor."""

    def __init__(self, file: StudyFile, executor: Executor, progress: Listener | None) -> None:
        self.total, self.reused = 0, 0
        self._file, self._executor, self._progress = file, executor, progress
        self._before = file.found()
        self._now: dict[str, Result] = {}

    def all_of(self, points: Iterable[Point]) -> list[Result]:
        """Results of all points of a space."""
        asked = list(points)
        self.total = len(asked)
        return self.results(asked)

    def results(self, points: Sequence[Point]) -> list[Result]:
        """A result for each point, in their order."""
        keys = [p.key for p in points]
        again = [
            self._before[k] for k in dict.fromkeys(keys) if k in self._before and k not in self._now
        ]
        self.reused += len(again)
        self._take(again)
        missing = {k: p for k, p in zip(keys, points, strict=True) if k not in self._now}
        self._file.expect(missing.values())
        for done in self._executor.run(groups_of(missing.values(), _EARLY)):
            self._file.add(done.results, done.inputs)
            self._take(done.results)
        return [self._now[key] for key in keys]

    def _take(self, results: Sequence[Result]) -> None:
        self._now.update((r.point.key, r) for r in results)
        if self._progress is not None and results:
            self._progress(Progress(len(self._now), self.total, self.reused, tuple(results)))
