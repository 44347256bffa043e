"""Constants of TPUs, from layers and attention of Llama-3.1-8B on v6e and schedules of XLA's TPU compiler.

Everything is fitted on one half of the shapes (`kernel_rows.half_of`); benchmarks/accuracy_tpu.py reports the
other half. The output projection's weights were fetched before it started, so its rows are fitted as products
that do not read them. Prefill is that of chunks after keys in a cache: a whole prompt is splash attention's.
Other TPUs have the constants of v6e.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from benchmarks import tpu_rows as rows
from benchmarks.fits.fit import Constant, Fit, constants_in
from benchmarks.kernel_rows import Measured
from flint.backends.cost.chips.families.systolic.constants import REFERENCE, constants_of
from flint.backends.cost.chips.families.systolic.model import SystolicModel
from flint.cluster.models import Cluster
from flint.ir.arrays import Float64s
from flint.ir.dims import AttentionDims
from flint.tools.measure.fitting.fit import Bounds, fit

TABLE = "chip.systolic.constants"
#: TPUs that have constants of the reference.
OTHERS = ("v4", "v5e", "v5p")


def _products() -> list[Measured]:
    return [rows.gemm_layer(name, in_vmem=name == "o_proj") for name in rows.GEMM_LAYERS]


def _chunks() -> list[Measured]:
    found = rows.attention_rows(decode=False)
    _, queries, keys, _ = AttentionDims.of(found.kernels.dims)
    return [found.select(keys > queries)]


#: By what is measured: lowest, highest and first value of each constant, and the rows.
PARTS: Mapping[str, tuple[Bounds, Callable[[], list[Measured]]]] = {
    "Llama-3.1-8B products": (
        {
            "gemm.efficiency": (0.5, 0.95, 0.9),
            "gemm.memory_efficiency": (0.6, 0.95, 0.9),
            "gemm.launch_ns": (0, 8000, 2000),
            "gemm.exposed_loads": (0, 3, 1),
            "vmem.bandwidth_ratio": (2, 30, 8),
        },
        _products,
    ),
    "decode attention": (
        {
            "decode.launch_ns": (0, 30000, 5000),
            "decode.memory_efficiency": (0.01, 0.95, 0.3),
            "decode.head_ns": (0, 500, 60),
        },
        lambda: [rows.attention_rows(decode=True)],
    ),
    "prefill attention": (
        {
            "prefill.launch_ns": (0, 30000, 10000),
            "prefill.register_cycles": (3, 40, 16),
            "prefill.query_cycles": (0, 20, 3),
        },
        _chunks,
    ),
    "rotary embedding": (
        {"elementwise.launch_ns": (0, 5000, 200), "elementwise.vmem_ratio": (1, 30, 6)},
        lambda: [rows.rope()],
    ),
    "input norm": (
        {"norm.launch_ns": (0, 5000, 600), "norm.vmem_ratio": (1, 30, 3)},
        lambda: [rows.norm()],
    ),
    "token embedding": (
        {"gather.launch_ns": (0, 5000, 1000), "gather.row_ns": (0, 200, 15)},
        lambda: [rows.embedding()],
    ),
}
_BUNDLES = "bundles that XLA's TPU compiler (libtpu 0.0.52) schedules for"
SCHEDULES = f"{_BUNDLES} Pallas' splash attention"
#: Where the schedules of attention are from, see benchmarks/data/tpu_schedules. No rows are of these.
GIVEN: Mapping[str, Constant] = {
    "attention.register_cycles": (3.3, "fitted", SCHEDULES),
    "attention.backward_register_cycles": (4.2, "fitted", SCHEDULES),
    "attention.step_cycles": (210.0, "fitted", SCHEDULES),
    "attention.query_cycles": (0.7, "fitted", SCHEDULES),
    "attention.launch_ns": (5000.0, "assumed", "launch of the smallest serving attention"),
    "elementwise.memory_efficiency": (
        0.83,
        "measured",
        "tpu-recipes microbenchmarks: HBM copy at 1,360 GB/s of 1,638 on TPU v6e",
    ),
}


def fits() -> list[Fit]:
    """Parts of v6e, what schedules say, and the TPUs that have its constants."""
    parts = [_part_fit(name, bounds, data) for name, (bounds, data) in PARTS.items()]
    said = ("gemm.fused_operations", *GIVEN)
    schedules = len(rows.waiting_operations())
    mine = Fit("tpu-schedules", REFERENCE, TABLE, said, schedules, _said, {}, quick=True)
    names = tuple(name for part in (*parts, mine) for name in part.names)
    return [
        *parts,
        mine,
        *(Fit("tpu-as", n, TABLE, names, len(names), _as_reference, {}, True) for n in OTHERS),
    ]


def _part_fit(name: str, bounds: Bounds, data: Callable[[], list[Measured]]) -> Fit:
    count = sum(int((d.half == 0).sum()) for d in data())
    label, run = f"tpu-{name.lower().replace(' ', '-')}", partial(_run, name, bounds, data)
    return Fit(label, REFERENCE, TABLE, tuple(bounds), count, run, bounds, quick="norm" in name)


def _run(name: str, bounds: Bounds, data: Callable[[], list[Measured]]) -> Mapping[str, Constant]:
    chip = Cluster.load(REFERENCE).chip
    halves = [d.select(d.half == 0) for d in data()]
    starts = {key: start for part, _ in PARTS.values() for key, (_, _, start) in part.items()}
    others = {**starts, **constants_of(chip)}

    def predict(values: Mapping[str, float]) -> Float64s:
        model = SystolicModel(chip, {**others, **values})
        return np.concatenate([model.latency_ns(d.kernels) for d in halves])

    found = fit(bounds, predict, np.concatenate([d.measured_ns for d in halves]))
    source = f"benchmarks.fits tpu on LLMServingSim's {name} on TPU v6e"
    return {key: (value, "fitted", source) for key, value in found.items()}


def _said() -> Mapping[str, Constant]:
    fused = float(f"{np.median(rows.waiting_operations()):.2g}")
    return {"gemm.fused_operations": (fused, "fitted", f"{_BUNDLES} products"), **GIVEN}


def _as_reference() -> Mapping[str, Constant]:
    there = constants_in(Fit("", REFERENCE, TABLE, (), 0, dict, {}).path, TABLE)
    names = {name for part, _ in PARTS.values() for name in part} | {*_said()}
    return {
        n: (there[n]["value"], "assumed", f"as on TPU v6e: {there[n]['source']}")
        for n in sorted(names)
    }
