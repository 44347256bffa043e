"""How far estimates of whole training steps are from measurements: rows of the accuracy report.

    python -m benchmarks.accuracy_steps                     a sample of each data set
    python -m benchmarks.accuracy_steps --all               every row
    python -m benchmarks.accuracy_steps --only vTrain -v    some data sets, and each of their rows
    python -m benchmarks.accuracy_steps --commands          what a user types for each data set

Each row is captured from model code in benchmarks/models, with its parallelism, recomputation and
microbatches, and estimated on a preset with a stack, as a user would (`Case.command`). Beside it:
the roofline of the same kernels (no launches, communication or bubbles), and the flops that the
model needs at the best constant share of the peak, which is chosen on the very rows that it is
judged on.

Constants that come from these measurements are made by benchmarks.fits.steps, of half of the rows
of some data sets (`Case.half`); "held out" is the other half.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import flint
from benchmarks.accuracy_row import Accuracy, accuracy, as_markdown
from benchmarks.step_rows import Case, all_cases
from flint.backends.cost.chips.kernel_table import kernels_of
from flint.backends.cost.estimate import Estimate, estimate
from flint.cluster.models import Cluster
from flint.cluster.residuals import Part
from flint.frontends.jax_step.meshes import abstract_mesh
from flint.ir.mesh import Mesh
from flint.ir.workload import Workload
from flint.requests.estimate import EstimateRequest

#: Rows of one data set that are priced without --all.
SAMPLE = 60
#: Data sets on whose rows of half 0 a constant of a preset or stack was fitted (benchmarks.fits.steps).
FITTED = ("vTrain single node", "LLM Foundry H100", "LLM Foundry A100", "torchtitan")


@dataclass(frozen=True)
class Result:
    """One row, priced."""

    case: Case
    predicted_ns: float
    roofline_ns: float
    #: Time of the flops that the model needs at the peak.
    ideal_ns: float
    #: Deviation of ln(estimate / measured) by the interval of the estimate, without the step as a whole.
    parts: float
    #: The interval.
    low_ns: float
    high_ns: float
    chip: str

    @property
    def error(self) -> float:
        """In percent; below 0 is too fast."""
        return 100 * (self.predicted_ns / self.case.measured_ns - 1)


def captured(case: Case) -> Workload:
    """The workload of a row."""
    mesh = abstract_mesh(Mesh.parse(case.mesh))
    return flint.trace(case.step(mesh), case.mesh).workload


def estimated(case: Case, workload: Workload, policy: str | None = None) -> Estimate:
    """A row's estimate on its preset, with its stack; `policy` takes the place of the stack's."""
    return estimate(
        workload, EstimateRequest(Cluster.load(case.preset), stack=case.stack, policy=policy)
    )


def priced(case: Case, policy: str | None = None) -> Result:
    """Capture and estimate one row."""
    found = estimated(case, captured(case), policy)
    ranks = sum(c.ranks for c in found.classes)
    ideal = found.model_flops / (ranks * found.peak_flops_per_s) * 1e9
    sure = found.interval
    assert sure is not None  # nothing of these is without a price
    parts = math.sqrt(
        sum((s.share * s.deviation) ** 2 for s in sure.parts if s.part is not Part.STEP)
    )
    return Result(
        *(case, found.step_time_ns, roofline_of(found), ideal),
        *(parts, sure.low_ns, sure.high_ns, found.cluster.chip.name),
    )


def roofline_of(found: Estimate) -> float:
    """The kernels of the busiest rank class at the chip's peak and memory bandwidth."""
    chip = found.cluster.chip
    bandwidth = chip.memory_bandwidth_bytes_per_s.value
    totals = []
    for track in found.timeline.classes:
        program = track.work.program
        kernels, rows = kernels_of(program)
        peaks = [chip.peak_flops_per_s.get(d) for d in kernels.dtypes]
        slowest = min(p.value for p in chip.peak_flops_per_s.values())
        rate = np.array([p.value if p else slowest for p in peaks])[kernels.dtype]
        products = np.isin(kernels.kind, (0, 1, 2, 3))
        seconds = np.maximum(
            np.where(products, kernels.flops / rate, 0.0), kernels.moved_bytes / bandwidth
        )
        totals.append(float((seconds * program.trips[rows]).sum()))
    return max(totals) * 1e9


def coverage(results: Sequence[Result]) -> str:
    """How many measured steps lie inside of the 80 % intervals of their estimates, as a table."""
    sets = {d: [r for r in results if r.case.data == d] for d in (r.case.data for r in results)}
    held = [half for rows in sets.values() if (half := [r for r in rows if r.case.half == 1])]
    lines = ["| data | steps | inside | mean width |", "|---|--:|--:|--:|"]
    lines += [_covered(data, [rows]) for data, rows in sets.items()]
    lines.append(_covered("held out, each step alike", [[r for rows in held for r in rows]]))
    lines.append(_covered("held out, each data set alike", held))
    return "\n".join(lines)


def _covered(name: str, groups: Sequence[Sequence[Result]]) -> str:
    """A line of `coverage`: the mean of the groups' shares."""
    inside = [np.mean([r.low_ns <= r.case.measured_ns <= r.high_ns for r in g]) for g in groups]
    width = [np.mean([math.sqrt(r.high_ns / r.low_ns) - 1 for r in g]) for g in groups]
    count = sum(len(g) for g in groups)
    return f"| {name} | {count} | {np.mean(inside):.0%} | +-{np.mean(width):.0%} |"


def accuracy_of(data: str, split: str, results: Sequence[Result]) -> Accuracy:
    """One row of the report."""
    measured = np.array([r.case.measured_ns for r in results])
    return accuracy(
        data,
        "/".join(sorted({f"{r.case.preset}, {r.case.stack}" for r in results})),
        split,
        [r.predicted_ns for r in results],
        measured,
        [r.roofline_ns for r in results],
        constant_mape(np.array([r.ideal_ns for r in results]), measured),
    )


def constant_mape(ideal: NDArray[np.float64], measured: NDArray[np.float64]) -> float:
    """MAPE of ideal / utilisation for the constant utilisation that makes it smallest."""
    errors = [np.abs(ideal / u / measured - 1).mean() for u in ideal / measured]
    return float(100 * min(errors))


def sampled(cases: Iterable[Case], everything: bool, most: int = SAMPLE) -> list[Case]:
    """At most `most` rows of each data set, chosen by a hash of what they are."""
    by_data: dict[str, list[Case]] = {}
    for case in cases:
        by_data.setdefault(case.data, []).append(case)
    ordered = [sorted(rows, key=lambda c: c.order) for rows in by_data.values()]
    return [case for rows in ordered for case in (rows if everything else rows[:most])]


def step_accuracy(results: Sequence[Result]) -> list[Accuracy]:
    """All rows of the report on whole steps."""
    table = []
    for data in dict.fromkeys(r.case.data for r in results):
        rows = [r for r in results if r.case.data == data]
        if data in FITTED:
            for split, half in (("held out", 1), ("fitted", 0)):
                part = [r for r in rows if r.case.half == half]
                table += [accuracy_of(data, split, part)] if part else []
        else:
            table.append(accuracy_of(data, "held out", rows))
    return table


def commands(cases: Iterable[Case]) -> Iterator[tuple[str, str]]:
    """For each data set its first row in the order of a hash, and what a user types for that."""
    first: dict[str, Case] = {}
    for case in sorted(cases, key=lambda c: c.order):
        first.setdefault(case.data, case)
    for data, case in first.items():
        yield f"{data}: {case.label}", case.command


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Estimates of training steps and measurements.")
    parser.add_argument("--all", action="store_true", help="every row, no samples")
    parser.add_argument("--only", default="", help="data sets whose name contains this")
    parser.add_argument("--limit", type=int, default=0, help="at most so many rows of each")
    parser.add_argument("--policy", help="another policy of overlap than the stack's")
    parser.add_argument("--commands", action="store_true", help="print what a user types")
    parser.add_argument("-v", "--verbose", action="store_true", help="print each row")
    return parser.parse_args()


def main() -> None:
    """Command line."""
    given = options()
    cases = [c for c in all_cases() if given.only in c.data]
    if given.commands:
        for label, command in commands(cases):
            print(f"{label}\n    {command}")
        return
    cases = sampled(cases, given.all, given.limit or SAMPLE)
    results = [_told(case, given.policy, given.verbose) for case in cases]
    print(as_markdown(step_accuracy(results)))


def _told(case: Case, policy: str | None, verbose: bool) -> Result:
    started = time.perf_counter()
    found = priced(case, policy)
    if verbose:
        print(
            f"{case.data:20} {case.label:48} measured {case.measured_ns / 1e6:9.1f} ms "
            f"estimate {found.predicted_ns / 1e6:9.1f} {found.error:+6.1f} % "
            f"({time.perf_counter() - started:.1f} s)",
            flush=True,
        )
    return found


if __name__ == "__main__":
    main()
