"""Errors of the systolic models on measured and simulated data, beside a plain roofline.

    python -m benchmarks.accuracy_tpu            # as text

Constants were fitted on one half of the shapes by `benchmarks.fits`; both halves are listed.
"""

from __future__ import annotations

import csv

import numpy as np

from benchmarks import tpu_rows
from benchmarks.accuracy_row import Accuracy, accuracy, as_text
from benchmarks.kernel_rows import DATA, Measured
from flint.backends.cost.chips.families.systolic.hardware import hardware_of
from flint.backends.cost.chips.families.systolic.scalesim import cycles, dram_words
from flint.backends.cost.chips.model import latency_ns
from flint.cluster.models import Chip, Cluster
from flint.ir.arrays import Float64s


def roofline_ns(data: Measured, chip: Chip) -> Float64s:
    """The longer of arithmetic at the peak and bytes at the bandwidth of memory."""
    peak = hardware_of(chip).peak_flops_per_ns("bf16")
    moved = data.kernels.moved_bytes
    elements = np.where(moved, moved, 4 * data.kernels.elements)  # VMEM is none of its ideas
    memory = elements / (chip.memory_bandwidth_bytes_per_s.value * 1e-9)
    return np.maximum(data.kernels.flops / peak, memory)


def tpu_rows_accuracy() -> list[Accuracy]:
    """TPU v6e: products together and by layer, then the other kernels."""
    layers = {name: tpu_rows.gemm_layer(name) for name in tpu_rows.GEMM_LAYERS}
    fetched = tpu_rows.gemm_layer("o_proj", in_vmem=True)
    known = [fetched if name == "o_proj" else data for name, data in layers.items()]
    parts: list[tuple[str, list[Measured]]] = [
        ("layer products, all weights read", list(layers.values())),
        ("layer products, o_proj's fetched before", known),
        *((name, [data]) for name, data in layers.items()),
        ("o_proj, weights fetched before", [fetched]),
        ("rope, in VMEM", [tpu_rows.rope()]),
        ("input norm, in VMEM", [tpu_rows.norm()]),
        ("embedding", [tpu_rows.embedding()]),
        ("attention, decode (serving kernel)", [tpu_rows.attention_rows(decode=True)]),
        ("attention, prefill (serving kernel)", [tpu_rows.attention_rows(decode=False)]),
    ]
    return [_tpu_part(name, data, half) for name, data in parts for half in (0, 1)]


def _tpu_part(name: str, data: list[Measured], half: int) -> Accuracy:
    chip = Cluster.load("v6e").chip
    parts = [d.select(d.half == half) for d in data]
    return accuracy(
        f"llmservingsim {name}",
        "TPU v6e",
        ("fit", "held out")[half],
        np.concatenate([latency_ns(p.kernels, chip) for p in parts]),
        np.concatenate([p.measured_ns for p in parts]),
        np.concatenate([roofline_ns(p, chip) for p in parts]),
    )


def scalesim_accuracy() -> list[Accuracy]:
    """SCALE-Sim's cycles without and with a limit of bandwidth, as `mode = "scalesim"` has them."""
    with (DATA / "scalesim" / "cycles.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found = []
    for limited in (False, True):
        part = [r for r in rows if r["bw"].startswith("USER") == limited]
        name = "with" if limited else "without"
        truth = np.array([float(r["total_cycles"]) for r in part])
        found.append(
            accuracy(
                f"scalesim, {name} a limit of bandwidth",
                "simulated",
                "not fitted",
                np.array([scalesim_cycles(r) for r in part]),
                truth,
                np.array([_ideal_cycles(r) for r in part]),
            )
        )
    return found


def scalesim_cycles(row: dict[str, str]) -> float:
    """Our cycles for a row: those of the array, or of the words that both operands read."""
    m, n, k, high, wide = (np.array(int(row[name])) for name in ("M", "N", "K", "rows", "cols"))
    alone = float(cycles(m, n, k, high, wide, row["dataflow"]))
    if not row["bw"].startswith("USER"):
        return alone
    half = int(row["sram_kb"].split("/")[0]) * 1024 / 2
    words = dram_words(m, n, k, int(high), int(wide), row["dataflow"], half)
    return max(alone, float(words) / (2 * int(row["bw"].removeprefix("USER:"))))


def _ideal_cycles(row: dict[str, str]) -> float:
    m, n, k, high, wide = (int(row[name]) for name in ("M", "N", "K", "rows", "cols"))
    bandwidth = float(row["bw"].removeprefix("USER:")) if row["bw"] != "CALC" else np.inf
    return max(m * n * k / (high * wide), max(m * k, k * n) / bandwidth)


if __name__ == "__main__":
    print(as_text([*tpu_rows_accuracy(), *scalesim_accuracy()]))
