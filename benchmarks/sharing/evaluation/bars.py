"""The bars that the generator is held to, met or missed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.sharing.evaluation.evaluate import FoldResult
from benchmarks.sharing.evaluation.scoring.comparison import Compared, mean_compared
from benchmarks.sharing.evaluation.scoring.distances import BANDWIDTHS
from benchmarks.sharing.evaluation.scoring.surrogate import SURROGATES, Score, mean_score

GENERATOR = "generator"
#: Samples that validity is told of; the share of distances that are better; of a correlation.
LEAST_SAMPLES, LEAST_WON, LEAST_CORRELATION = 500, 2 / 3, 0.8
#: Where of `BANDWIDTHS` the bar is measured.
MIDDLE = BANDWIDTHS.index(1.0)


@dataclass(frozen=True, slots=True)
class Bar:
    """What is asked for, whether it is met, and what was found."""

    says: str
    met: bool
    found: str


@dataclass(frozen=True, slots=True)
class Lost:
    """A distance in which a baseline is as good or better."""

    name: str
    own: float
    baseline: str
    best: float


def mean_of(results: Sequence[FoldResult], method: str) -> Compared | None:
    """Distances of a method, mean over the folds in which it made something."""
    parts = [r.methods[method].compared for r in results]
    found = [p for p in parts if p is not None]
    return mean_compared(found) if found else None


def distances_of(found: Compared, width: int = MIDDLE) -> Mapping[str, float]:
    """All distances that the bar counts, by name."""
    return {
        **{f"W1 {name}": value for name, value in found.transport.items()},
        **{f"MMD {name}": value for name, value in found.discrepancy[width].items()},
    }


def lost(results: Sequence[FoldResult], width: int = MIDDLE) -> tuple[int, list[Lost]]:
    """How many distances there are, and those in which the generator is not better than each baseline."""
    means = {m: mean_of(results, m) for m in results[0].methods}
    table = {m: distances_of(c, width) for m, c in means.items() if c is not None}
    own = table.pop(GENERATOR)
    found = []
    for name, value in own.items():
        best = min(table, key=lambda m: table[m][name])
        if value >= table[best][name]:
            found.append(Lost(name, value, best, table[best][name]))
    return len(own), found


def bars(results: Sequence[FoldResult]) -> Iterator[Bar]:
    """The bars of validity, distances and use; only with the generator among the methods."""
    own = [r.methods[GENERATOR] for r in results]
    asked, valid = sum(m.asked for m in own), sum(m.valid for m in own)
    yield Bar(
        f"100 % of {LEAST_SAMPLES} samples valid by strict rules (LayerDAG: 56 %)",
        valid == asked >= LEAST_SAMPLES,
        f"{valid} of {asked} asked for",
    )
    number, worse = lost(results)
    won = number - len(worse)
    yield Bar(
        "better than every baseline in two thirds of the distances",
        won >= LEAST_WON * number,
        f"{won} of {number} ({won / number:.0%})",
    )
    yield _use(results)


def _use(results: Sequence[FoldResult]) -> Bar:
    ratios = {name: _ratio(results, name) for name in SURROGATES}
    mean = sum(ratios.values()) / len(ratios)
    each = ", ".join(f"{name} {ratio:.0%}" for name, ratio in ratios.items())
    return Bar(
        "surrogates trained on made workloads reach 80 % of the correlation of those trained on as "
        "many real ones (mean of the surrogates)",
        mean >= LEAST_CORRELATION,
        f"{mean:.0%} ({each})",
    )


def _ratio(results: Sequence[FoldResult], name: str) -> float:
    made = mean_scores(results, GENERATOR)[name]
    return made.pearson / mean_score([r.surrogates[name] for r in results]).pearson


def mean_scores(results: Sequence[FoldResult], method: str) -> Mapping[str, Score]:
    """Scores of predictors trained on what a method made: 0 in a fold where it made too little."""
    nothing = Score(0.0, 0.0, float("nan"))
    found = [r.methods[method].surrogates for r in results]
    return {
        name: mean_score([f.get(name, nothing) for f in found]) for name in results[0].surrogates
    }
