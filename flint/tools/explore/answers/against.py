"""Two studies, point by point: what became of the same points, and of the best of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flint.text import format_duration, plural
from flint.tools.explore.answers.explain import explain, explanation_text
from flint.tools.explore.answers.objectives import Objective, default_objective
from flint.tools.explore.answers.rank import Ranking, ranked
from flint.tools.explore.point import choices
from flint.tools.explore.result import Result
from flint.tools.explore.study.study import Study

#: Changes of points that are told.
_MOST = 5
#: A step whose time changed by less is the same.
_SAME = 1e-6


@dataclass(frozen=True)
class StudyDifference:
    """What study B says otherwise than study A.

    `changed` are points of both whose time is not the same, largest ratio first; `status` those that
    ended otherwise.
    """

    first: Ranking
    second: Ranking
    only_first: int
    only_second: int
    both: int
    status: tuple[tuple[Result, Result], ...]
    changed: tuple[tuple[Result, Result], ...]

    @property
    def is_same(self) -> bool:
        """Whether both have the same points, with the same times and ends."""
        return not (self.only_first or self.only_second or self.status or self.changed)

    def to_text(self) -> str:
        """For people."""
        lines = [
            (
                f"{plural(self.both, 'point')} in both, {self.only_first:,} only in the first, "
                f"{self.only_second:,} only in the second"
            )
        ]
        lines += self._best()
        if self.status:
            lines.append(f"{plural(len(self.status), 'point')} ended differently:")
            lines += [
                f"  {_name(a)}: {a.status.value} -> {b.status.value}{f' ({b.reason})' if b.reason else ''}"
                for a, b in self.status[:_MOST]
            ]
        if self.changed:
            lines.append(f"{plural(len(self.changed), 'point')} changed in time:")
            lines += [f"  {_name(a)}: {_times(a, b)}" for a, b in self.changed[:_MOST]]
        if not self.status and not self.changed:
            lines.append("points of both have the same status and the same time")
        return "\n".join(lines)

    def _best(self) -> list[str]:
        a, b = self.first.best, self.second.best
        if a is None or b is None:
            return [f"best: {_name(a) if a else 'none'} -> {_name(b) if b else 'none'}"]
        if a.point == b.point:
            return [f"best in both: {_name(a)}, {_times(a, b)}"]
        told = explanation_text(explain(a, b)).split("\n")
        return [f"best: {_name(a)} -> {_name(b)}", *(f"  {line}" for line in told)]


def against(first: Study, second: Study, objectives: Sequence[Objective] = ()) -> StudyDifference:
    """Compare two studies; the best of each meets that study's own limits.

    Raises FlintError FL861 as `ranked` does.
    """
    mine = {r.point.key: r for r in first.results}
    theirs = {r.point.key: r for r in second.results}
    pairs = [(r, theirs[key]) for key, r in mine.items() if key in theirs]
    timed = [(a, b) for a, b in pairs if a.step_time_ns and b.step_time_ns]
    changed = [p for p in timed if abs(_ratio(*p) - 1) > _SAME]
    goals = tuple(objectives) or (default_objective((*first.results, *second.results)),)
    return StudyDifference(
        ranked(first, goals)[1],
        ranked(second, goals)[1],
        len(mine) - len(pairs),
        len(theirs) - len(pairs),
        len(pairs),
        tuple((a, b) for a, b in pairs if a.status is not b.status),
        tuple(sorted(changed, key=lambda p: -max(_ratio(*p), 1 / _ratio(*p)))),
    )


def _ratio(a: Result, b: Result) -> float:
    return b.step_time_ns / a.step_time_ns


def _times(a: Result, b: Result) -> str:
    times = f"{format_duration(a.step_time_ns)} -> {format_duration(b.step_time_ns)}"
    return f"{times} ({_ratio(a, b) - 1:+.1%})"


def _name(r: Result) -> str:
    return " ".join(f"{n}={v}" for n, v in choices(r.point).items() if v)
