"""How far estimates of whole training steps are from measurements: rows of the accuracy report.

    python -m benchmarks.accuracy_steps                     a sample of vTrain, all of the others
    python -m benchmarks.accuracy_steps --all               every row
    python -m benchmarks.accuracy_steps --only vTrain -v    some data sets, and each of their rows
    python -m benchmarks.accuracy_steps --fit               what derate each system would have

Each row is captured from model code in benchmarks/models, with its parallelism, recomputation and
microbatches, and estimated on the system that it was measured on: a cluster file in
benchmarks/systems, or a preset. Beside it: the roofline of the same kernels (no launches,
communication or bubbles), and the flops that the model needs at the best constant share of the
peak, which is chosen on the very rows that it is judged on.

Which attention kernels, adapters and clocks a system had is from publications. Derates and the time
that a host takes for a launch are the only numbers that come from these measurements. Each is of a
system, one for all of its rows, and found on one half of them (`Case.half`); "held out" is the
other half.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import flint
from benchmarks.accuracy_row import Accuracy, accuracy, as_markdown
from benchmarks.step_rows import Case, all_cases
from flint.backends.cost.chips.kernel_table import kernels_of
from flint.backends.cost.estimate import Estimate, estimate
from flint.cluster.models import Cluster, Quantity, SourceKind
from flint.frontends.jax_step.program import abstract_mesh
from flint.ir.mesh import Mesh
from flint.ir.workload import Workload

#: Cluster files of measured systems: a preset, and what is different.
SYSTEMS = Path(__file__).resolve().parent / "systems"
#: Rows of one data set that are priced without --all.
SAMPLE = 60
#: Data sets on whose rows of half 0 a number of their system was chosen.
FITTED = ("vTrain single node", "torchtitan")


@dataclass(frozen=True)
class Result:
    """One row, priced."""

    case: Case
    predicted_ns: float
    roofline_ns: float
    #: Time of the flops that the model needs at the peak.
    ideal_ns: float

    @property
    def error(self) -> float:
        """In percent; below 0 is too fast."""
        return 100 * (self.predicted_ns / self.case.measured_ns - 1)


@cache
def cluster_of(name: str, derate: float = 0.0, launch_ns: float = 0.0) -> Cluster:
    """The cluster of a system; `derate` and `launch_ns` replace its own."""
    own = SYSTEMS / f"{name}.toml"
    found = Cluster.load(own if own.is_file() else name)
    changed = {"derate": derate, "host_launch_ns": launch_ns}
    tried = {k: Quantity(value=v, kind=SourceKind.FITTED, source="tried here")
             for k, v in changed.items() if v}  # fmt: skip
    return found.model_copy(update=tried)


def captured(case: Case) -> Workload:
    """The workload of a row."""
    mesh = abstract_mesh(Mesh.parse(case.mesh))
    return flint.trace(case.step(mesh), case.mesh).workload


def estimated(
    case: Case, workload: Workload, derate: float = 0.0, launch_ns: float = 0.0
) -> Estimate:
    """A row's estimate on its system; `derate` and `launch_ns` replace its own."""
    cluster = cluster_of(case.system, derate, launch_ns)
    return estimate(workload, cluster, profile=case.profile, policy=case.policy)


def priced(case: Case) -> Result:
    """Capture and estimate one row."""
    workload = captured(case)
    found = estimated(case, workload)
    ranks = sum(c.ranks for c in found.classes)
    ideal = found.model_flops / (ranks * found.peak_flops_per_s) * 1e9
    return Result(case, found.step_time_ns, roofline_of(found), ideal)


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


def accuracy_of(data: str, split: str, results: Sequence[Result]) -> Accuracy:
    """One row of the report."""
    measured = np.array([r.case.measured_ns for r in results])
    return accuracy(
        data,
        "/".join(sorted({r.case.system for r in results})),
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


def sampled(cases: Iterable[Case], everything: bool) -> list[Case]:
    """At most SAMPLE rows of each data set, chosen by a hash of what they are."""
    by_data: dict[str, list[Case]] = {}
    for case in cases:
        by_data.setdefault(case.data, []).append(case)
    found = []
    for rows in by_data.values():
        several = len(rows) > 2 * SAMPLE and not everything
        found += sorted(rows, key=lambda c: c.order)[:SAMPLE] if several else rows
    return found


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


def fitted_launches(cases: Sequence[Case]) -> dict[str, float]:
    """As `fitted_derates`, for the time between launches of systems that have one, in ns."""
    found = {}
    for system in dict.fromkeys(c.system for c in cases if cluster_of(c.system).host_launch_ns):
        rows = [(c, captured(c)) for c in cases if c.system == system and c.half == 0]
        errors = {}
        for launch_ns in (31e3, 35e3, 39e3, 43e3, 47e3, 51e3):
            times = [estimated(c, w, launch_ns=launch_ns).step_time_ns for c, w in rows]
            measured = [c.measured_ns for c, _ in rows]
            errors[launch_ns] = float(np.abs(np.array(times) / np.array(measured) - 1).mean())
        found[system] = min(errors, key=lambda x: errors[x])
    return found


def fitted_derates(cases: Sequence[Case]) -> dict[str, float]:
    """For each system the derate with the least mean error on the rows of half 0, to 0.01."""
    found = {}
    for system in dict.fromkeys(c.system for c in cases):
        rows = [(c, captured(c)) for c in cases if c.system == system and c.half == 0]

        def error(derate: float, rows: list[tuple[Case, Workload]] = rows) -> float:
            times = [(estimated(c, w, derate).step_time_ns, c.measured_ns) for c, w in rows]
            return float(np.mean([abs(t / m - 1) for t, m in times]))

        if rows:
            grid = [round(0.5 + 0.02 * i, 2) for i in range(28)]
            found[system] = min(grid, key=error)
    return found


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Estimates of training steps and measurements.")
    parser.add_argument("--all", action="store_true", help="every row, no samples")
    parser.add_argument("--only", default="", help="data sets whose name contains this")
    parser.add_argument("--limit", type=int, default=0, help="at most so many rows of each")
    parser.add_argument("--fit", action="store_true", help="print the derate of each system")
    parser.add_argument("--profile", default="", help="another profile of kernels")
    parser.add_argument("--policy", default="", help="another policy of overlap")
    parser.add_argument("-v", "--verbose", action="store_true", help="print each row")
    return parser.parse_args()


def main() -> None:
    given = options()
    cases = [c for c in all_cases() if given.only in c.data]
    cases = sampled(cases, given.all)
    if given.limit:
        seen: dict[str, int] = {}
        cases = [c for c in cases if seen.setdefault(c.data, 0) < given.limit
                 and not seen.__setitem__(c.data, seen[c.data] + 1)]  # fmt: skip
    cases = [
        replace(c, profile=given.profile or c.profile, policy=given.policy or c.policy)
        for c in cases
    ]
    if given.fit:
        for system, launch_ns in fitted_launches(cases).items():
            print(f"{system}: a launch every {launch_ns:.0f} ns")
        for system, derate in fitted_derates(cases).items():
            print(f"{system}: derate {derate}")
        return
    results = []
    for case in cases:
        started = time.perf_counter()
        results.append(priced(case))
        if given.verbose:
            r = results[-1]
            print(
                f"{case.data:20} {case.label:48} measured {case.measured_ns / 1e6:9.1f} ms "
                f"estimate {r.predicted_ns / 1e6:9.1f} {r.error:+6.1f} % "
                f"({time.perf_counter() - started:.1f} s)",
                flush=True,
            )
    print(as_markdown(step_accuracy(results)))


if __name__ == "__main__":
    main()
