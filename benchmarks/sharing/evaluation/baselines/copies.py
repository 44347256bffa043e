"""Copies of training workloads: any, or the one whose totals are nearest to those asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.sharing.evaluation.corpus import Capture
from flint.ir.arrays import Float64s
from flint.ir.program import Phase
from flint.ir.workload import Workload
from flint.tools.share.conditions import Conditions


@dataclass(frozen=True, eq=False)
class Copy:
    """A training workload at random, whatever is asked for."""

    captures: Sequence[Capture]

    def sample(self, conditions: Conditions, seed: int) -> Workload:
        """One of the training workloads."""
        at = int(np.random.default_rng(seed).integers(len(self.captures)))
        return self.captures[at].workload


@dataclass(frozen=True, eq=False)
class Nearest:
    """The training workload with the nearest totals.

    `points` (captures, totals) are logarithms; a distance counts each in standard deviations among
    the training workloads (`spread`).
    """

    captures: Sequence[Capture]
    points: Float64s
    spread: Float64s

    def sample(self, conditions: Conditions, seed: int) -> Workload:
        """The nearest, the first of equals: chance has no part."""
        return self.captures[self.order(conditions)[0]].workload

    def order(self, conditions: Conditions) -> list[int]:
        """Numbers of the captures, nearest first."""
        distances = (((self.points - point_of(conditions)) / self.spread) ** 2).sum(axis=1)
        found: list[int] = np.argsort(distances, kind="stable").tolist()
        return found


def point_of(conditions: Conditions) -> Float64s:
    """All that the generator is told, as numbers: logarithms of totals, shares of phases."""
    asked = conditions
    sizes = asked.mesh.sizes if asked.mesh else ()
    totals = (asked.flops, asked.depth, asked.memory_bytes, asked.rows, float(np.prod(sizes)))
    sent = sorted(asked.axis_bytes.values(), reverse=True)[:2]
    logs = [np.log2(1.0 + float(v or 0)) for v in (*totals, *sent, *[0.0] * (2 - len(sent)))]
    shares = [8.0 * asked.phases.get(phase, 0.0) for phase in Phase]
    return np.array([*logs, *shares])


def train_copy(captures: Sequence[Capture], seed: int) -> Copy:
    """Random copies."""
    return Copy(captures)


def train_nearest(captures: Sequence[Capture], seed: int) -> Nearest:
    """Nearest copies."""
    points = np.stack([point_of(c.conditions) for c in captures])
    spread = points.std(axis=0)
    return Nearest(captures, points, np.where(spread > 0, spread, 1.0))
