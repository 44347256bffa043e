"""Whether estimates put measured configurations in their order, and choose a good one first.

    python -m benchmarks.explore_rows rows.jsonl
    python -m benchmarks.explore_ranking rows.jsonl

vTrain's rows, in groups of those between which a user of `flint explore` would choose: of one model
on one number of GPUs, by time for a sequence (a), and of one size of batch as well, by time (b).
Rows of (a) differ in the batch, too, where a larger one hides the pipeline's bubble: whoever knows
that ranks many of them without knowing anything of the machine. (b) is the choice of a mesh alone.

Beside the estimate stand orders that need none: rules of thumb, and the roofline of the kernels.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from scipy.stats import spearmanr

from benchmarks.explore_rows import PricedRow, read_rows

#: Rows that a group has at least.
LEAST = 6
#: How much slower than the best measured a choice may be.
NEAR = 0.05
#: A smaller score is chosen first.
Score: TypeAlias = Callable[[PricedRow], float]
Group: TypeAlias = list[PricedRow]

#: Orders, by what the page calls them. Numbers of parallelism are powers of two: sums of weights
#: that grow by more than their range put one before the other.
SCORES: dict[str, Score] = {
    "Flint": lambda row: row.predicted_ns / row.batch,
    "roofline of the kernels": lambda row: row.roofline_ns / row.batch,
    "most tensor parallelism, then fewest stages": lambda row: 1000 * -row.model + row.pipe,
    "most data parallelism, then fewest stages": lambda row: 1000 * -row.data + row.pipe,
    "fewest stages, then least tensor parallelism": lambda row: 1000 * row.pipe + row.model,
    "most microbatches for a stage": lambda row: row.pipe / row.microbatches,
}


@dataclass(frozen=True)
class Ranking:
    """How well an order of some groups is that of the measurements."""

    groups: int
    rows: int
    #: Median of the groups' Spearman correlations, and the lowest; 0 where the order says nothing.
    spearman: float
    lowest: float
    #: Share of the groups whose first choice is within NEAR of the best, and the worst choice.
    near: float
    worst: float


def by_devices(row: PricedRow) -> tuple[int, ...]:
    """Model and number of GPUs."""
    return (row.hidden, row.layers, row.heads, row.seq, row.gpus)


def by_batch(row: PricedRow) -> tuple[int, ...]:
    """Model, number of GPUs and sequences of a step."""
    return (*by_devices(row), row.batch)


def grouped(rows: Iterable[PricedRow], key: Callable[[PricedRow], tuple[int, ...]]) -> list[Group]:
    """Groups of at least LEAST rows, in the order of their keys."""
    found: dict[tuple[int, ...], Group] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return [group for _, group in sorted(found.items()) if len(group) >= LEAST]


def correlation(group: Group, score: Score) -> float:
    """Spearman's, between the score and the time measured for a sequence; 0 if all score alike."""
    scores = [score(row) for row in group]
    if len(set(scores)) == 1:
        return 0.0
    return float(spearmanr(scores, [row.measured_ns / row.batch for row in group]).statistic)


def regret(group: Group, score: Score) -> float:
    """By what share the first choice is slower than the best; the mean where several are first."""
    times = np.array([row.measured_ns / row.batch for row in group])
    scores = np.array([score(row) for row in group])
    return float((times[scores == scores.min()] / times.min() - 1).mean())


def ranking(groups: Sequence[Group], score: Score) -> Ranking:
    """How well `score` orders each of the groups."""
    correlations = [correlation(group, score) for group in groups]
    regrets = np.array([regret(group, score) for group in groups])
    return Ranking(
        len(groups),
        sum(map(len, groups)),
        float(np.median(correlations)),
        min(correlations),
        float((regrets <= NEAR).mean()),
        float(regrets.max()),
    )


def by_chance(groups: Sequence[Group]) -> tuple[float, float]:
    """Of a choice by lot: the share of groups within NEAR that is to be expected, the mean regret."""
    near, slower = [], []
    for group in groups:
        times = np.array([row.measured_ns / row.batch for row in group])
        near.append((times <= times.min() * (1 + NEAR)).mean())
        slower.append((times / times.min() - 1).mean())
    return float(np.mean(near)), float(np.mean(slower))


def table(groups: Sequence[Group]) -> str:
    """All orders of some groups, as Markdown."""
    lines = [
        "| order by | Spearman, median | lowest | first within 5 % | worst first |",
        "|---|--:|--:|--:|--:|",
    ]
    for name, score in SCORES.items():
        r = ranking(groups, score)
        cells = f"{r.spearman:.2f} | {r.lowest:.2f} | {r.near:.0%} | +{r.worst:.0%}"
        lines.append(f"| {name} | {cells} |")
    near, slower = by_chance(groups)
    return "\n".join([*lines, f"| lot | 0 | | {near:.0%} | +{slower:.0%} (mean) |"])


def of_each(groups: Sequence[Group]) -> str:
    """Each group: its best, what is chosen first, and what that costs."""
    lines = [
        "| model, GPUs | rows | Spearman | best measured | chosen first | slower by |",
        "|---|--:|--:|---|---|--:|",
    ]
    score = SCORES["Flint"]
    for group in groups:
        first = min(group, key=score)
        best = min(group, key=lambda row: row.measured_ns / row.batch)
        lines.append(
            f"| {name_of(group)} | {len(group)} | {correlation(group, score):.2f} | {told(best)} "
            f"| {told(first)} | {regret(group, score):.1%} |"
        )
    return "\n".join(lines)


def name_of(group: Group) -> str:
    """What the rows of a group of one model and number of GPUs share."""
    row = group[0]
    return f"h{row.hidden} L{row.layers} a{row.heads} s{row.seq}, {row.gpus}"


def told(row: PricedRow) -> str:
    """A configuration in short."""
    return (
        f"pp{row.pipe} dp{row.data} tp{row.model}, {row.microbatches} x {row.micro_batch} sequences"
    )


def section(rows: Sequence[PricedRow]) -> str:
    """What the page says of the ranking."""
    few = [row for row in rows if row.gpus <= 8]
    many = [row for row in rows if row.gpus > 8]
    held_out = [row for row in few if row.half == 1]
    kinds = [
        ("(a) model and GPUs, any batch, by time for a sequence", grouped(rows, by_devices)),
        ("(a) of rows on which no constant was fitted", grouped([*held_out, *many], by_devices)),
        ("(b) model, GPUs and batch, by time", grouped(rows, by_batch)),
        ("(b) of rows on which no constant was fitted", grouped([*held_out, *many], by_batch)),
    ]
    parts = []
    for title, groups in kinds:
        count = f"{len(groups)} groups, {sum(map(len, groups))} rows"
        parts.append(f"### {title}: {count}\n\n{table(groups)}")
    return "\n\n".join([*parts, f"### Each group of (a)\n\n{of_each(grouped(rows, by_devices))}"])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="How well estimates rank vTrain's rows.")
    parser.add_argument("rows", type=Path, help="what benchmarks.explore_rows wrote")
    rows = read_rows(parser.parse_args().rows)
    print(section(rows))
    refused = [row.label for row in rows if not row.fits]
    print(f"\n{len(rows)} rows ran; the estimate says of {len(refused)} that they do not fit")
    print("\n".join(refused))


if __name__ == "__main__":
    main()
