"""vTrain's measured steps, each priced as a point of `flint explore` is: time, and what memory holds.

    python -m benchmarks.explore_rows rows.jsonl

Every row is captured and estimated as in benchmarks.accuracy_steps. Rows that the file has are not
priced again, so that a run that was stopped goes on; a file of another version of Flint is to be
removed first.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

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


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Price vTrain's rows as points are.")
    parser.add_argument("rows", type=Path, help="file of rows, one JSON object a line")
    started = time.perf_counter()
    for row in price_rows(parser.parse_args().rows):
        error = 100 * (row.predicted_ns / row.measured_ns - 1)
        print(f"{row.index:4} {row.label:60} {error:+6.1f} %", file=sys.stderr, flush=True)
    print(f"{time.perf_counter() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
