"""The captures of a corpus, measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.sharing.evaluation.corpus import Capture, in_scope
from benchmarks.sharing.evaluation.folds import family_weights
from benchmarks.sharing.evaluation.measuring.cache import Cache
from benchmarks.sharing.evaluation.measuring.measured import (
    Measured,
    conditions,
    measure,
    step_time,
)
from benchmarks.sharing.evaluation.scoring.distances import Sample


@dataclass(frozen=True, eq=False)
class Real:
    """Captures, what is measured of each, their step times, and how many captures are left out."""

    captures: tuple[Capture, ...]
    measured: tuple[Measured, ...]
    log_s: np.ndarray
    left_out: Mapping[str, int]

    @classmethod
    def of(cls, folder: Path, most_rows: int, cache: Cache) -> Real:
        """Read and measure all captures in scope."""
        kept, left_out = in_scope(folder, most_rows)
        captures = [Capture(e.file, e.family, w, conditions(w, cache)) for e, w in kept]
        measured = [measure(c.workload, cache) for c in captures]
        pairs = zip(captures, measured, strict=True)
        times = np.array([step_time(c.workload, m.digest, cache) for c, m in pairs])
        return cls(tuple(captures), tuple(measured), times, left_out)

    @property
    def families(self) -> list[str]:
        """The family of each capture."""
        return [c.family for c in self.captures]

    def sample(self, chosen: Sequence[int]) -> Sample:
        """Some captures as a set, in which each family counts alike."""
        weights = family_weights([self.captures[i].family for i in chosen])
        return Sample.of([self.measured[i].attributes for i in chosen], weights)

    def some_measured(self, chosen: Sequence[int]) -> list[Measured]:
        """What is measured of some captures."""
        return [self.measured[i] for i in chosen]
