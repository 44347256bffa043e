"""The Pareto front: results that no other one beats in every objective."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flint.exploring.answers.objectives import Objective
from flint.exploring.result import Result


def front_of(results: Sequence[Result], objectives: Sequence[Objective]) -> list[str]:
    """Keys of the points that no other one dominates: as good in all objectives, better in one.

    A quantity that is not known is worse than any.
    """
    if not results:
        return []
    losses = np.array([[o.loss(r) for o in objectives] for r in results])
    order = np.lexsort(losses.T[::-1])  # by the first objective, then the others
    kept: list[int] = []
    for at in order.tolist():
        before = losses[kept]
        as_good = (before <= losses[at]).all(axis=1)
        better = (before < losses[at]).any(axis=1)
        if not (as_good & better).any():
            kept.append(at)
    return [results[at].point.key for at in kept]
