"""Ranking: results in the order in which they are recommended, and why others are not among them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from flint.exploring.answers.objectives import (
    Objective,
    require_known,
    usual_objective,
    values_of,
)
from flint.exploring.answers.pareto import front_of
from flint.exploring.conditions import Condition
from flint.exploring.expression import Value
from flint.exploring.result import Result, Status
from flint.exploring.space import Space

#: Other names of what `values_of` gives, with their unit.
_WITH_UNIT: Mapping[str, str] = {
    "step_time_ns": "time",
    "memory_bytes": "memory",
    "ttft_ns": "ttft",
    "tpot_ns": "tpot",
}


@dataclass(frozen=True, slots=True)
class Rejected:
    """Why `count` points are not ranked: one reason, with the point that came nearest."""

    status: Status
    code: str
    why: str
    count: int
    example: Result


@dataclass(frozen=True)
class Ranking:
    """`rows` fit and meet the limits, the recommended one first; `front` counts those that nothing beats.

    With one objective the front is those that are equally best. `limited` counts points that fit
    and miss a limit, by the first that they miss.
    """

    objectives: tuple[Objective, ...]
    rows: tuple[Result, ...]
    front: int
    rejected: tuple[Rejected, ...]
    limited: Mapping[str, int]

    @property
    def best(self) -> Result | None:
        """The recommended one; None if nothing fits."""
        return self.rows[0] if self.rows else None

    def within_error(self) -> int:
        """How many others have a time whose 80 % interval reaches into that of the first."""
        best = self.best
        if best is None or not best.high_ns:
            return 0
        scale = _per_token(best)
        return sum(r.low_ns * _per_token(r) <= best.high_ns * scale for r in self.rows[1:])


def ranked(
    results: Iterable[Result], objectives: Sequence[Objective] = (), limits: Limits | None = None
) -> Ranking:
    """Rank results. Without objectives by `usual_objective`.

    Points on the Pareto front come first, in the order of the first objective; ties are broken by
    memory, then by the point. Raises FlintError FL869 for an objective that no result has a value of,
    FL861 for a limit that cannot be told.
    """
    found = list(results)
    chosen = tuple(objectives) or (usual_objective(found),)
    require_known(chosen, found)
    missed = limits.missed if limits else {}
    fitting, limited = [], Counter[str]()
    for r in (r for r in found if r.status is Status.FITS):
        said = limits.first_missed(r) if limits else None
        if said is None:
            fitting.append(r)
        else:
            limited[said] += 1
    front = set(front_of(fitting, chosen))
    rows = sorted(
        (r for r in fitting),
        key=lambda r: (r.point.key not in front, chosen[0].loss(r), r.memory_bytes, r.point),
    )
    return Ranking(chosen, tuple(rows), len(front), tuple(_rejected(found)), {**missed, **limited})


@dataclass(frozen=True)
class Limits:
    """Conditions on what came of points, and the space that names of theirs are of."""

    conditions: tuple[Condition, ...]
    space: Space

    @property
    def missed(self) -> dict[str, int]:
        """A count of 0 for each, in their order."""
        return dict.fromkeys((c.text for c in self.conditions), 0)

    def first_missed(self, result: Result) -> str | None:
        """The text of the first condition that a result does not meet; None if it meets all.

        One on a quantity that is not known of the result is not met.
        """
        names: dict[str, Value] = dict(self.space.names(result.point))
        values: dict[str, Value] = dict(values_of(result))
        values["tokens"] = result.tokens
        values |= {long: values[short] for long, short in _WITH_UNIT.items() if short in values}
        names |= self.space.scope.results(values)
        for condition in self.conditions:
            if not set(condition.names) <= set(names) or not condition.holds(names):
                return condition.text
        return None


def _per_token(r: Result) -> float:
    return 1 / r.tokens if r.tokens else 1.0


def _rejected(results: Sequence[Result]) -> Iterable[Rejected]:
    """Points that do not fit together, others by code and place."""
    groups: dict[tuple[Status, str, str, bool], list[Result]] = {}
    for r in results:
        if r.status is not Status.FITS:
            groups.setdefault((r.status, r.code, r.place if r.code else "", r.is_bound), []).append(
                r
            )
    for (status, code, _, _), found in sorted(groups.items(), key=lambda g: (-len(g[1]), g[0])):
        nearest = min(found, key=lambda r: (r.memory_bytes, r.point))
        yield Rejected(status, code, nearest.reason, len(found), nearest)
