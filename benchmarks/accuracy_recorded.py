"""How far estimates of audited runs are from their steps: MLPerf Training 5.1, recorded Megatron-core.

    python -m benchmarks.accuracy_recorded DIR                 every row; recordings are kept in DIR
    python -m benchmarks.accuracy_recorded DIR --half 0 -v     rows that may be fitted on, each

benchmarks/models/nemo_llama.py is recorded with a row's options for its chip, with few layers, and
again with twice as many: a step of all is as much longer as each layer makes it. (Layers are alike,
and so is what is exposed behind the last: 80 layers of LoRA on 64 B200 recorded whole take 232.0 ms.) Few of the
replicas are recorded: a ring over more sends as much.
megatron-core and torch must be installed. Rows with pipelines are left out.

Beside the estimates: the roofline of the same kernels, and a constant share of the peak of the
precision, for each benchmark and precision the median of the rows of the other half.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.accuracy_steps import roofline_of
from benchmarks.step_rows import Row, read
from flint.backends.cost.estimate import estimate
from flint.cluster.models import Cluster
from flint.frontends.torch_distributed import capture_script
from flint.ir.workload import Workload
from flint.requests.estimate import EstimateRequest

SCRIPT = Path(__file__).resolve().parent / "models" / "nemo_llama.py"
MODELS = {"llama2_70b_lora": "lora", "llama31_8b": "8b"}
LAYERS = {"lora": 80, "8b": 32}
#: Layers of the first recording; gradients of so many 8b layers fill some buckets.
FEW = {"lora": 2, "8b": 4}
#: Of more ranks only so many replicas are recorded that these remain, but two.
MOST_RANKS = {"lora": 2, "8b": 8}
#: Whose properties a script sees: chips of one generation run the same program.
GENERATIONS = {"h": "h100-dgx", "b": "b200-dgx", "g": "b200-dgx", "m": "mi300x"}
#: FLOP of a sequence by MLPerf's count (MODEL_TFLOP_PER_SAMPLE of the submissions).
FLOP = {"lora": 2598e12, "8b": 421.59e12}
PEAKS = {"fp8": "f8E4M3FN", "fp4": "f4E2M1FN"}


@dataclass(frozen=True)
class Audited:
    """A row of benchmarks/data/mlperf/steps.csv."""

    row: Row

    @property
    def label(self) -> str:
        """Who ran what."""
        return f"{self.row['system']} {self.row['benchmark']}"

    @property
    def half(self) -> int:
        """0: rules may be found on it; 1: it judges. A hash of the label decides."""
        return zlib.crc32(self.label.encode()) % 2

    @property
    def model(self) -> str:
        """nemo_llama.py's name of the model."""
        return MODELS[self.row["benchmark"]]

    @property
    def kind(self) -> tuple[str, str]:
        """What a constant share of the peak is fitted for."""
        return self.model, self.row["precision"]

    @property
    def mesh(self) -> dict[str, int]:
        """Axes as Megatron-core orders ranks, with few of the replicas; they are alike."""
        model, context = int(self.row["tp"]), int(self.row["cp"])
        most = max(MOST_RANKS[self.model] // (model * context), 2)
        return {"data": min(self.replicas, most), "context": context, "model": model}

    @property
    def replicas(self) -> int:
        """How many there were."""
        return int(self.row["chips"]) // int(self.row["tp"]) // int(self.row["cp"])

    def arguments(self, layers: int, recomputed: int) -> list[str]:
        """The script's, for some of the layers."""
        names = ("tp", "cp", "micro_batch", "microbatches", "precision")
        given = {"model": self.model, "layers": layers, "recomputed": recomputed}
        given |= {name: self.row[name] for name in names}
        flags = ["--fp8-attention"] * int(self.row["fp8_attention"])
        flags += ["--narrow-weights"] * (self.model == "lora" or self.row["precision"] == "fp8")
        flags += ["--ring"] * (
            self.model == "lora" and self.row["cp_comm"] == "p2p" and self.mesh["context"] > 1
        )
        return flags + [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]

    def recorded(self, kept: Path, layers: int, recomputed: int = 0) -> Workload:
        """The workload of some of the layers, from `kept` if it is there."""
        arguments = self.arguments(layers, recomputed)
        mesh = ",".join(f"{axis}={size}" for axis, size in self.mesh.items())
        chip = GENERATIONS[self.row["preset"][0]]
        name = f"{zlib.crc32(' '.join([mesh, chip, *arguments]).encode()):08x}.flint"
        if not (kept / name).exists():
            found = capture_script(SCRIPT, arguments, mesh, chip=chip)
            found.save(kept / name)
        return Workload.load(kept / name)


@dataclass(frozen=True)
class Found:
    """A row, priced; times in seconds."""

    at: Audited
    step_s: float
    roofline_s: float
    low_s: float
    high_s: float
    ideal_s: float

    @property
    def measured_s(self) -> float:
        """What was logged."""
        return float(self.at.row["step_s"])

    @property
    def error(self) -> float:
        """In percent; below 0 is too fast."""
        return 100 * (self.step_s / self.measured_s - 1)


def priced(at: Audited, kept: Path) -> Found:
    """Record and price one row."""
    few, again = FEW[at.model], int(at.row["recomputed"])
    cluster = Cluster.load(at.row["preset"])
    request = EstimateRequest(cluster, stack="megatron")

    def numbers(layers: int, recomputed: int = 0) -> np.ndarray:
        found = estimate(at.recorded(kept, layers, recomputed), request)
        sure = found.interval
        assert sure is not None  # nothing of these is without a price
        return np.array([found.step_time_ns, roofline_of(found), sure.low_ns, sure.high_ns])

    base, double = numbers(few), numbers(2 * few)
    total = base + (LAYERS[at.model] - few) / few * (double - base)
    if again:
        total += again / few * (numbers(2 * few, few) - double)
    # the interval of all layers is as wide as that of those that were recorded
    low, high = total[0] * double[2:] / double[0]
    sequences = int(at.row["micro_batch"]) * int(at.row["microbatches"]) * at.replicas
    peak = cluster.chip.peak_flops_per_s.get(PEAKS[at.row["precision"]])
    ideal = FLOP[at.model] * sequences / int(at.row["chips"]) / peak.value if peak else np.nan
    return Found(at, total[0] / 1e9, total[1] / 1e9, low / 1e9, high / 1e9, ideal)


def constant_share(found: Found, others: Sequence[Found]) -> float:
    """The step in seconds at the share of the peak that rows of the other half have, if any."""
    rest = [f for f in others if f.at.half != found.at.half]
    alike = [f for f in rest if f.at.kind == found.at.kind] or rest
    return found.ideal_s / median([f.ideal_s / f.measured_s for f in alike] or [np.nan])


def line(name: str, rows: Sequence[Found], everything: Sequence[Found]) -> str:
    """A line of the table: errors of estimates, the baselines' medians, and coverage."""
    errors = np.array([f.error for f in rows])
    constant = [100 * abs(constant_share(f, everything) / f.measured_s - 1) for f in rows]
    roofline = [100 * abs(f.roofline_s / f.measured_s - 1) for f in rows]
    inside = np.mean([f.low_s <= f.measured_s <= f.high_s for f in rows])
    spread = f"{np.median(abs(errors)):.1f} | {np.quantile(abs(errors), 0.9):.1f}"
    baselines = f"{np.median(constant):.1f} | {np.median(roofline):.1f}"
    return (
        f"| {name} | {len(rows)} | {spread} | {errors.mean():+.1f} | {baselines} | {inside:.0%} |"
    )


def table(found: Sequence[Found]) -> str:
    """Errors in percent by maker and half."""
    lines = [
        "| rows | count | median | p90 | bias | constant MFU, median | roofline, median | inside |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for maker, amd in (("NVIDIA", False), ("AMD", True)):
        for half, split in ((1, "held out"), (0, "looked at")):
            rows = [f for f in found if (f.at.half, f.at.row["preset"][:2] == "mi") == (half, amd)]
            if rows:
                lines.append(line(f"{maker}, {split}", rows, found))
    return "\n".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Estimates of audited runs and their steps.")
    parser.add_argument("kept", type=Path, help="folder of recordings, which are kept")
    parser.add_argument("--half", type=int, choices=(0, 1), help="rows of one half")
    parser.add_argument("--only", default="", help="rows whose label or preset contains this")
    parser.add_argument("-v", "--verbose", action="store_true", help="print each row")
    given = parser.parse_args()
    given.kept.mkdir(parents=True, exist_ok=True)
    rows = [Audited(row) for row in read("mlperf/steps.csv") if row["benchmark"] in MODELS]
    rows = [r for r in rows if given.half in (None, r.half)]
    rows = [r for r in rows if given.only in f"{r.label} {r.row['preset']}"]
    found = []
    for row in rows:
        found.append(one := priced(row, given.kept))
        if given.verbose:
            print(f"{row.label:58} {row.row['preset']:12} {row.row['chips']:>4} {row.row['precision']} "
                  f"{one.measured_s:.4f} {one.step_s:.4f} s {one.error:+6.1f} %", flush=True)  # fmt: skip
    print(table(found))


if __name__ == "__main__":
    main()
