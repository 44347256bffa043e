"""Make flint/cluster/residuals.toml: how far prices are from measurements that they were not fitted on.

    python -m benchmarks.residuals                  print it
    python -m benchmarks.residuals --write          and write it
    python -m benchmarks.residuals --steps FILE     with errors of steps from `python -m benchmarks.step_errors FILE`

Kernels and collectives: the half of the rows that nothing is fitted on, priced with the shipped presets
("own"), and with the constants of another chip ("borrowed"). Parts without rows of their own are assumed
from those that are nearest, and say so. Of steps, one half (`Case.half` 0) makes the deviation of the
step as a whole; the other half says how many lie inside of the intervals (docs/accuracy.md).
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks import collective_rows, kernel_rows
from benchmarks.fits.bytes import A100, of_device
from benchmarks.kernel_rows import PRESETS, Measured
from benchmarks.step_errors import StepError, read_steps
from flint.backends.cost.chips.model import latency_ns
from flint.backends.cost.collectives import duration_ns
from flint.backends.cost.software import stack_for, with_stack
from flint.backends.cost.uncertainty import KERNELS, WIDTH
from flint.cluster.models import Chip, Cluster
from flint.cluster.residuals import FILE, Part, Trust, residual, verified_stacks
from flint.ir.arrays import Float64s
from flint.tools.measure.calibration.data import read_data
from flint.tools.measure.fitting.kernels import MeasuredKernels, measured_kernels

PROFILES = Path(__file__).resolve().parent / "data" / "kineto"
#: A preset -> the one whose constants it would borrow.
OTHER = {
    "a100-80-dgx": "h100-dgx",
    "h100-dgx": "a100-80-dgx",
    "h200-dgx": "a100-80-dgx",
    "b200-dgx": "h200-dgx",
    "l40s": "a100-80-dgx",
}
#: Presets of GPUs with real traces, by how the names of those begin.
TRACES = {"h100": "h100-dgx", "mi300x": "mi300x", "b200": "b200-dgx"}
#: Steps send no less between nodes, but for counters.
STEP_BYTES = 1 << 20
AICONFIGURATOR = "aiconfigurator, the half that nothing is fitted on"
KINETO = (
    "NeuSight's kernels of A100, traces of whole models on H100, MI300X and B200; half of the rows"
)


@dataclass(frozen=True)
class Row:
    """One table of the file."""

    part: Part
    trust: Trust
    each: float
    common: float
    rows: int
    source: str

    def toml(self) -> str:
        return (
            f'[residuals."{self.part}".{self.trust}]\neach = {self.each:.3f}\n'
            f"common = {self.common:.3f}\nrows = {self.rows}\nsource = {json.dumps(self.source)}\n"
        )


@dataclass(frozen=True, eq=False)
class Errors:
    """ln(estimate / measured) of rows of one chip, and how long they ran.

    Long kernels count more, by the root of their time: steps are made of them, grids of short ones.
    Level and spread are those of the middle 80 %, which is what an interval of 80 % is about: single
    kernels that are off by factors are in no step's sum.
    """

    logs: Float64s
    measured_ns: Float64s

    def quantile(self, share: float) -> float:
        """The value below which rows of this share of the weight lie."""
        order = np.argsort(self.logs, kind="stable")
        weight = np.cumsum(np.sqrt(self.measured_ns[order]))
        at = int(np.searchsorted(weight, share * weight[-1]))
        return float(self.logs[order][min(at, len(order) - 1)])

    @property
    def level(self) -> float:
        """The middle."""
        return self.quantile(0.5)

    @property
    def variance(self) -> float:
        """Of a normal distribution whose middle 80 % are as wide."""
        return ((self.quantile(0.9) - self.quantile(0.1)) / (2 * WIDTH)) ** 2


def row_of(part: Part, trust: Trust, groups: Sequence[Errors], source: str) -> Row:
    """Of one group for each chip: the spread inside of them, and their levels."""
    count = np.array([len(g.logs) for g in groups], np.float64)
    each = math.sqrt(float(np.average([g.variance for g in groups], weights=count)))
    common = math.sqrt(float(np.mean([g.level**2 for g in groups])))
    return Row(part, trust, each, common, int(count.sum()), source)


def errors(data: Measured, chip: Chip) -> Errors:
    """Those of the rows that nothing is fitted on."""
    held = data.select(data.half == 1)
    return Errors(np.log(latency_ns(held.kernels, chip) / held.measured_ns), held.measured_ns)


def joined(parts: Sequence[Errors]) -> Errors:
    """Rows of several kinds of one chip."""
    logs = np.concatenate([p.logs for p in parts])
    return Errors(logs, np.concatenate([p.measured_ns for p in parts]))


def borrowing(chip: Chip, other: str) -> Chip:
    """The chip with the constants of another preset."""
    gpu = chip.gpu.model_copy(update={"constants": {}, "libraries": {}, "like": other})
    return chip.model_copy(update={"gpu": gpu})


def kernels() -> Iterator[Row]:
    """Products and attention, by chip."""
    for part, readers in (
        (Part.PRODUCTS, (kernel_rows.gemms,)),
        (Part.ATTENTION, (kernel_rows.prefill, kernel_rows.decode)),
    ):
        own, borrowed = [], []
        for preset, other in OTHER.items():
            chip = Cluster.load(preset).chip
            rows = [reader(PRESETS[preset]) for reader in readers]
            own.append(joined([errors(r, chip) for r in rows]))
            borrowed.append(joined([errors(r, borrowing(chip, other)) for r in rows]))
        yield row_of(part, Trust.OWN, own, AICONFIGURATOR)
        yield row_of(
            part, Trust.BORROWED, borrowed, f"{AICONFIGURATOR}, with constants of another chip"
        )


def traced(cluster: Cluster, beginning: str) -> MeasuredKernels:
    """The kernels of the traces of a chip, calls of one shape as one."""
    data = read_data(sorted(PROFILES.glob(f"{beginning}_*.json.gz")), cluster.chip)
    return measured_kernels(data.kernels)


def from_neusight() -> Iterator[tuple[Part, Errors]]:
    """NeuSight's kernels of an A100 of 40 GB, whose memory is as fast as SXM's, launched by PyTorch.

    They were timed from outside: what a call takes beside its kernel is left out.
    """
    cluster = Cluster.load("a100-40-dgx")
    chip = with_stack(cluster, stack_for("eager", cluster)).chip
    for name, part in (("elem", Part.ELEMENTWISE), ("softmax", Part.SOFTMAX), ("ln", Part.NORMS)):
        rows = kernel_rows.row_kernels(name, A100)
        kernels_ns = rows.measured_ns - of_device(name, A100)["call_ns"]
        yield part, errors(replace(rows, measured_ns=kernels_ns), chip)


def bound_by_bytes() -> Iterator[Row]:
    """Parts that real traces or NeuSight have, by chip."""
    parts: dict[Part, list[Errors]] = {}
    for part, found in from_neusight():
        parts.setdefault(part, []).append(found)
    for beginning, preset in TRACES.items():
        cluster = Cluster.load(preset)
        data = traced(cluster, beginning)
        chip = with_stack(cluster, stack_for("eager", cluster)).chip
        logs = np.log(np.maximum(latency_ns(data.kernels, chip), 1.0) / data.measured_ns)
        for part in set(KERNELS.values()):
            kinds = [k for k, p in KERNELS.items() if p is part]
            mine = np.isin(data.kernels.kind, kinds) & (data.hashes % 2 == 1)
            if mine.sum() >= 5:
                found = Errors(logs[mine], data.measured_ns[mine])
                parts.setdefault(part, []).append(found)
    for part, groups in sorted(parts.items()):
        if part not in (Part.PRODUCTS, Part.ATTENTION):
            yield row_of(part, Trust.OWN, groups, KINETO)


def networks() -> Iterator[Row]:
    """Collectives inside a node and between nodes."""
    inside = []
    for preset, gpu in PRESETS.items():
        cluster = Cluster.load(preset)
        found = [r for r in collective_rows.inside_a_node(gpu) if r.half == 1]
        inside.append(_calls(found, cluster))
    yield row_of(Part.INSIDE, Trust.OWN, inside, "NCCL inside a node, " + AICONFIGURATOR)
    pairs = [("h100-dgx", "a100-80-dgx"), ("a100-80-dgx", "h100-dgx"), ("b200-dgx", "h200-dgx")]
    lent = []
    for preset, other in pairs:
        cluster, theirs = Cluster.load(preset), Cluster.load(other)
        constants = theirs.network[0].constants
        mine = collective_rows.with_network(
            cluster, 0, constants={k: q.model_dump() for k, q in constants.items()}
        )
        found = [r for r in collective_rows.inside_a_node(PRESETS[preset]) if r.half == 1]
        lent.append(_calls(found, mine))
    yield row_of(Part.INSIDE, Trust.BORROWED, lent, "the same with constants of another generation")
    between = (
        ("a100-80-efa", collective_rows.over_nodes()),
        ("h100-dgx", collective_rows.public("nebius")),
    )
    own = [
        _calls([r for r in rows if r.half == 1 and r.size_bytes >= STEP_BYTES], Cluster.load(p))
        for p, rows in between
    ]
    source = "all-reduces on two nodes of A100 over EFA and of H100 over InfiniBand, from 1 MiB, the halves that nothing is fitted on"
    yield row_of(Part.OUTSIDE, Trust.OWN, own, source)
    lent = [
        _calls(
            [r for r in rows if r.half == 1 and r.size_bytes >= STEP_BYTES],
            collective_rows.with_network(
                Cluster.load(p),
                1,
                constants={
                    k: q.model_dump() for k, q in Cluster.load(other).network[1].constants.items()
                },
            ),
        )
        for (p, rows), (other, _) in zip(between, reversed(between), strict=True)
    ]
    yield row_of(Part.OUTSIDE, Trust.BORROWED, lent, "the same with the other fabric's constants")


def _calls(rows: Sequence[collective_rows.Measured], cluster: Cluster) -> Errors:
    without = collective_rows.without_reduction_in_switch(cluster)
    found = [
        math.log(
            duration_ns(r.call, without if r.cannot_reduce_in_switch else cluster) / r.measured_ns
        )
        for r in rows
    ]
    return Errors(np.array(found), np.array([r.measured_ns for r in rows]))


#: Parts of which there are no rows, or none of that trust: each, common, and why.
ASSUMED: Sequence[tuple[Part, Trust, float, float, str]] = (
    (Part.HOST, Trust.OWN, 0.0, 0.15, "assumed: hosts of one kind of machine"),
    (Part.HOST, Trust.BORROWED, 0.0, 0.4, "assumed: hosts differ by a factor of 1.5"),
    (Part.MEASURED, Trust.OWN, 0.0, 0.03, "assumed: a step run again on the same machine"),
    (Part.MEASURED, Trust.BORROWED, 0.0, 0.03, "assumed: a step run again on the same machine"),
)


def completed(rows: Sequence[Row]) -> list[Row]:
    """All parts with both trusts: what is missing is 1.5 times as far off as the nearest that is there."""
    known = {(r.part, r.trust): r for r in rows}
    for part, trust, each, common, why in ASSUMED:
        known.setdefault((part, trust), Row(part, trust, each, common, 0, why))
    nearest = {
        Part.CONVOLUTIONS: Part.PRODUCTS,
        Part.COPIES: Part.ELEMENTWISE,
        Part.REDUCTIONS: Part.ELEMENTWISE,
        Part.LOOK_UPS: Part.ELEMENTWISE,
        Part.OTHERS: Part.ELEMENTWISE,
        Part.MESSAGES: Part.OUTSIDE,
    }
    for part in Part:
        own = known.get((part, Trust.OWN))
        if own is None and part in nearest:
            base = known[nearest[part], Trust.OWN]
            own = _wider(base, part, Trust.OWN, f"assumed: as {base.part}, half as far off again")
            known[part, Trust.OWN] = own
        if (part, Trust.BORROWED) not in known and own is not None:
            why = "assumed: half as far off again as with constants of its own"
            known[part, Trust.BORROWED] = _wider(own, part, Trust.BORROWED, why)
    return [known[p, t] for p in Part for t in Trust if (p, t) in known]


def _wider(row: Row, part: Part, trust: Trust, why: str) -> Row:
    return Row(part, trust, 1.5 * row.each, max(1.5 * row.common, 0.1), 0, why)


def of_steps(steps: Sequence[StepError]) -> list[Row]:
    """The deviation of the step as a whole with which 80 % of one half lie inside, see `covered`.

    Without steps it is what the file has.
    """
    if not steps:
        there = [(t, residual(Part.STEP, t)) for t in Trust]
        return [Row(Part.STEP, t, r.each, r.common, r.rows, r.source) for t, r in there]
    fitted = [s for s in steps if s.half == 0]
    grid = [0.005 * i for i in range(100)]
    own = next((g for g in grid if covered(fitted, g) >= 0.8), grid[-1])
    return [
        Row(Part.STEP, Trust.OWN, 0.0, own, len(fitted), "measured training steps, one half of each data set"),
        Row(Part.STEP, Trust.BORROWED, 0.0, max(2 * own, 0.15), 0,
            "assumed: machines and stacks that no measured step has verified"),
    ]  # fmt: skip


def covered(steps: Sequence[StepError], whole: float) -> float:
    """The share of steps inside of their intervals: half by rows, half by data sets alike."""
    sets: dict[str, list[bool]] = {}
    for s in steps:
        inside = abs(s.error) <= WIDTH * math.hypot(s.parts, whole)
        sets.setdefault(s.data, []).append(inside)
    if not sets:
        return 0.0
    by_set = float(np.mean([np.mean(v) for v in sets.values()]))
    return (by_set + float(np.mean([i for v in sets.values() for i in v]))) / 2


def verified(steps: Sequence[StepError]) -> dict[str, list[str]]:
    """The stacks of each chip of which a step was measured; without steps, what the file has."""
    if not steps:
        return {chip: list(stacks) for chip, stacks in verified_stacks().items()}
    found: dict[str, set[str]] = {}
    for s in steps:
        found.setdefault(s.chip, set()).add(s.stack)
    return {chip: sorted(stacks) for chip, stacks in sorted(found.items())}


def as_toml(rows: Sequence[Row], runs: dict[str, list[str]]) -> str:
    """The file."""
    head = "# Made by `python -m benchmarks.residuals --write`. Deviations of ln(estimate / measured).\n"
    named = "".join(f"{json.dumps(c)} = {json.dumps(s)}\n" for c, s in runs.items())
    return head + "\n" + "\n".join(r.toml() for r in rows) + f"\n[verified]\n{named}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Residuals of prices.")
    parser.add_argument("--write", action="store_true", help="into flint/cluster/residuals.toml")
    parser.add_argument("--steps", type=Path, help="errors of steps, of benchmarks.step_errors")
    given = parser.parse_args()
    steps = read_steps(given.steps) if given.steps else []
    rows = [*kernels(), *bound_by_bytes(), *networks(), *of_steps(steps)]
    text = as_toml(completed(rows), verified(steps))
    print(text)
    for half in (0, 1):
        mine = [s for s in steps if s.half == half]
        whole = next(r.common for r in rows if r.part is Part.STEP)
        print(f"# half {half}: {covered(mine, whole):.1%} of {len(mine)} steps inside")
    if given.write:
        FILE.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
