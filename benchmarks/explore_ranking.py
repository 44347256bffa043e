"""Whether estimates put measured configurations in their order, and choose a good one first.

    python -m benchmarks.explore_ranking rows.jsonl

prices vTrain's measured steps as points of `flint explore` are, and prints the tables of
docs/explore.md. Every row is captured and estimated as in benchmarks.accuracy_steps. Rows that
the file has are not priced again, so that a run that was stopped goes on; remove a file of another
version of Flint first.

Groups are rows between which a user of `flint explore` would choose: of one model on one number of
GPUs, by time for a sequence (a), and of one size of batch as well, by time (b). Rows of (a) differ in
the batch, too, where a larger one hides the pipeline's bubble: whoever knows that ranks many of them
without knowing anything of the machine. (b) is the choice of a mesh alone. Beside the estimate stand
orders that need none: rules of thumb, and the roofline of the kernels.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from benchmarks.accuracy_steps import captured, estimated, roofline_of
from benchmarks.step_rows import Case, vtrain


@dataclass(frozen=True)
class PricedRow:
    """A measured configuration beside its estimate. `ideal_ns`: the needed flops at the peak."""

    index: int  #: among all cases, in the order of the files
    label: str
    hidden: int
    layers: int
    heads: int
    seq: int
    pipe: int
    data: int
    model: int
    micro_batch: int
    microbatches: int
    half: int  #: 0: constants of the stack may have been fitted on it
    measured_ns: float
    predicted_ns: float
    low_ns: float
    high_ns: float
    roofline_ns: float
    ideal_ns: float
    memory_bytes: int
    capacity_bytes: int

    @property
    def gpus(self) -> int:
        return self.pipe * self.data * self.model

    @property
    def batch(self) -> int:
        """Sequences of a step."""
        return self.data * self.micro_batch * self.microbatches

    @property
    def fits(self) -> bool:
        """Whether the estimate says so; all of them ran."""
        return self.memory_bytes <= self.capacity_bytes


def cases() -> list[Case]:
    """All of vTrain's rows: first those of 512 GPUs, then the single node's, model by model."""
    many = vtrain("vTrain 512 GPUs", "ground_truth_multi.csv")
    few = vtrain("vTrain single node", "ground_truth_single.csv")

    def of_a_model(case: Case) -> tuple[str, ...]:
        o = case.options
        return tuple(str(o[name]) for name in ("hidden", "num_layers", "heads", "seq"))

    return [*many, *sorted(few, key=of_a_model)]


def priced_row(index: int, case: Case) -> PricedRow:
    """Capture and estimate one row."""
    found = estimated(case, captured(case))
    ranks = sum(c.ranks for c in found.classes)
    sure = found.interval
    assert sure is not None  # nothing of these is without a price
    largest = max((c.memory for c in found.classes), key=lambda memory: memory.total_bytes)
    sizes = {name: int(case.options[name]) for name in ("heads", "seq")}
    runs = {name: int(case.options[name]) for name in ("micro_batch", "microbatches")}
    return PricedRow(
        index=index,
        label=case.label,
        hidden=int(case.options["hidden"]),
        layers=int(case.options["num_layers"]),
        **sizes,
        **case.mesh,
        **runs,
        half=case.half,
        measured_ns=case.measured_ns,
        predicted_ns=found.step_time_ns,
        low_ns=sure.low_ns,
        high_ns=sure.high_ns,
        roofline_ns=roofline_of(found),
        ideal_ns=found.model_flops / (ranks * found.peak_flops_per_s) * 1e9,
        memory_bytes=largest.total_bytes,
        capacity_bytes=largest.capacity_bytes,
    )


def read_rows(path: Path) -> list[PricedRow]:
    """The rows of a file, in the order of `cases`; none if there is no such file."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return sorted((PricedRow(**json.loads(line)) for line in lines), key=lambda row: row.index)


def price_rows(path: Path) -> Iterator[PricedRow]:
    """Price what the file lacks, and add it row by row."""
    there = {row.index for row in read_rows(path)}
    with path.open("a", encoding="utf-8") as file:
        for index, case in enumerate(cases()):
            if index not in there:
                row = priced_row(index, case)
                file.write(json.dumps(asdict(row)) + "\n")
                file.flush()
                yield row


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
    from scipy.stats import spearmanr  # a second to import

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
    """Price what the file lacks, and print the tables."""
    parser = argparse.ArgumentParser(description="How well estimates rank vTrain's rows.")
    parser.add_argument("rows", type=Path, help="file of rows, one JSON object a line")
    path = parser.parse_args().rows
    for row in price_rows(path):
        error = 100 * (row.predicted_ns / row.measured_ns - 1)
        print(f"{row.index:4} {row.label:60} {error:+6.1f} %", file=sys.stderr, flush=True)
    rows = read_rows(path)
    print(section(rows))
    refused = [row.label for row in rows if not row.fits]
    print(f"\n{len(rows)} rows ran; the estimate says of {len(refused)} that they do not fit")
    print("\n".join(refused))


if __name__ == "__main__":
    main()
