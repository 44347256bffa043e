"""The results of a study, ranked by what is wanted and by the limits that they have to meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from flint.tools.explore.answers.objectives import Objective, default_objective, names_of_result
from flint.tools.explore.answers.rank import Ranking, rank
from flint.tools.explore.result import Result
from flint.tools.explore.space.conditions import parse_conditions
from flint.tools.explore.space.expression import Value
from flint.tools.explore.study.spaces import scope_of, words_of
from flint.tools.explore.study.study import Study


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
