"""What a method makes in one fold, measured."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.sharing.evaluation.generator import Generator
from benchmarks.sharing.evaluation.measuring.cache import Cache
from benchmarks.sharing.evaluation.measuring.measured import Measured, measure, step_time
from flint.errors import FlintError
from flint.ir.workload import Workload
from flint.tools.share.conditions import Conditions


@dataclass(frozen=True, eq=False)
class Made:
    """Workloads that a method made, in the order of the conditions.

    `of[i]` is the number of the conditions that workload i is for; what the method refused, or what
    does not verify, is not among them but in `refused` by reason. `log_s` are step times, nan where none was asked for or there is none.
    `seconds` are CPU seconds of making alone.
    """

    measured: tuple[Measured, ...]
    of: tuple[int, ...]
    log_s: tuple[float, ...]
    refused: Mapping[str, int]
    seconds: float


def make(
    generator: Generator,
    asked: Sequence[Conditions],
    seed: int,
    cache: Cache,
    *,
    timed: bool = False,
) -> Made:
    """One workload for each conditions; seeds count up from `seed`."""
    refused: Counter[str] = Counter()
    found: list[tuple[int, Measured, float]] = []
    spent = 0.0
    for number, conditions in enumerate(asked):
        start = time.process_time()
        workload = _sample(generator, conditions, seed + number, refused)
        spent += time.process_time() - start
        if workload is not None:
            measured = measure(workload, cache)
            log_s = step_time(workload, measured.digest, cache) if timed else float("nan")
            found.append((number, measured, log_s))
    of, measured_, times = zip(*found, strict=True) if found else ((), (), ())
    return Made(measured_, of, times, dict(refused), spent)


def _sample(
    generator: Generator, conditions: Conditions, seed: int, refused: Counter[str]
) -> Workload | None:
    """A workload that verifies, or None; why is counted."""
    try:
        workload = generator.sample(conditions, seed)
    except FlintError as error:
        refused[error.code] += 1
        return None
    try:
        workload.verify()
    except AssertionError:
        refused["does not verify"] += 1
        return None
    return workload
