"""Which results are best: those that fit and meet the limits, in order; Pareto fronts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from flint.errors import FlintError
from flint.tools.explore.answers.objectives import Objective, default_objective, names_of_result
from flint.tools.explore.point import Point
from flint.tools.explore.result import Result, Status
from flint.tools.explore.space.conditions import Condition, parse_conditions
from flint.tools.explore.space.expression import Value
from flint.tools.explore.study.study import Study, scope_of, words_of

# The results of a study, ranked by what is wanted and by the limits that they have to meet.


def ranked(
    study: Study, objectives: Sequence[Objective] = (), where: Sequence[str] = ()
) -> tuple[Study, Ranking]:
    """The ranking by these objectives, or by the default one; and the study with `where` among its limits.

    `where` are conditions on points or on what came of them. Raises FlintError FL861 for those that
    cannot be read.
    """
    limits = list(dict.fromkeys((*study.space.get("limits", ()), *where)))
    study = replace(study, space={**study.space, "limits": limits})
    scope, fixed = scope_of(study.space), tuple(dict(study.space.get("fixed", {})).items())

    def names(result: Result) -> Mapping[str, Value]:
        return scope.at(result.point, fixed) | scope.results(names_of_result(result))

    goals = tuple(objectives) or (default_objective(study.results),)
    return study, rank(
        study.results, goals, parse_conditions(limits, scope, words_of(study.space)), names
    )


#: What the names of conditions stand for at a result.
Namer = Callable[[Result], Mapping[str, Value]]


@dataclass(frozen=True)
class Ranking:
    """Results that fit and meet the limits, the best first; of several objectives the front comes first.

    `rejected` are all others, in the order of their points; those that fit and are among them are in
    `beyond`, with the limit that they break, or what is not known of them.
    """

    objectives: tuple[Objective, ...]
    results: tuple[Result, ...]
    rejected: tuple[Result, ...] = ()
    beyond: Mapping[Point, str] = field(default_factory=dict)
    #: How many results at the beginning are on the front; 1 for one objective.
    on_front: int = 0

    @property
    def best(self) -> Result | None:
        """The recommendation: the first; None if nothing is left."""
        return self.results[0] if self.results else None

    @property
    def front(self) -> tuple[Result, ...]:
        """Results that no other is better than in one objective and as good in the others."""
        return self.results[: self.on_front]

    def beyond_counts(self) -> dict[str, int]:
        """How many results that fit are rejected by each limit."""
        return dict(Counter(self.beyond.values()).most_common())

    def within_error(self) -> int:
        """Results after the first whose 80 % interval overlaps that of the first, by the first objective.

        0 where the first has no interval, and for objectives that do not depend on time.
        """
        if not self.results:
            return 0
        goal = self.objectives[0]
        first = goal.range(self.results[0])
        if first is None or first[0] == first[1]:
            return 0
        others = (goal.range(r) for r in self.results[1:])
        return sum(o is not None and o[0] <= first[1] and first[0] <= o[1] for o in others)


def rank(
    results: Sequence[Result],
    objectives: Sequence[Objective],
    limits: Sequence[Condition] = (),
    names: Namer | None = None,
) -> Ranking:
    """Rank results by one objective, or by their front and then the first of several.

    Equal ones stand by memory, then mesh, then all of the point. `limits` are conditions that results
    have to meet, `names` says what their names stand for at a result (names of results alone without).
    A limit that cannot be told of a result is not met.
    """
    assert objectives, "there is nothing to rank by"
    kept: list[Result] = []
    beyond: dict[Point, str] = {}
    for result in results:
        if result.status is not Status.FITS:
            continue
        why = _why_not(result, objectives, limits, names or names_of_result)
        if why:
            beyond[result.point] = why
        else:
            kept.append(result)
    ordered = sorted(kept, key=lambda r: _order(r, objectives))
    front = _front(ordered, objectives)
    points = {r.point for r in front}
    rest = [r for r in ordered if r.point not in points]
    chosen = {r.point for r in ordered}
    rejected = tuple(sorted((r for r in results if r.point not in chosen), key=lambda r: r.point))
    return Ranking(tuple(objectives), (*front, *rest), rejected, beyond, len(front))


def _why_not(
    result: Result, objectives: Sequence[Objective], limits: Sequence[Condition], names: Namer
) -> str:
    """The first limit that a result breaks, or the objective that is not known of it; "" if none."""
    if limits:
        known = names(result)
        for limit in limits:
            try:
                if not limit.holds(known):
                    return limit.text
            except FlintError as error:
                return error.message
    unknown = next((o for o in objectives if o.value(result) is None), None)
    return f"{unknown.title} is not known" if unknown else ""


def _order(result: Result, objectives: Sequence[Objective]) -> tuple[object, ...]:
    wanted = tuple(o.order(result) for o in objectives)
    return (*wanted, result.memory_bytes, result.devices, result.point.mesh, result.point)


def _front(ordered: Sequence[Result], objectives: Sequence[Objective]) -> list[Result]:
    """Those that no other dominates. An ordered list: what dominates a result stands before it."""
    if len(objectives) == 1:
        return list(ordered[:1])
    found: list[Result] = []
    costs: list[tuple[float, ...]] = []
    for result in ordered:
        mine = tuple(o.order(result) for o in objectives)
        if not any(all(a <= b for a, b in zip(c, mine, strict=True)) for c in costs):
            found.append(result)
            costs.append(mine)
    return found
