"""Fit the constants of the TPU models, print them, and write them into the presets.

    python -m benchmarks.fit_tpu            # fit and print
    python -m benchmarks.fit_tpu --write    # and update [chip.systolic.constants] of v6e, v4 ...

Everything is fitted on one half of the shapes (`kernel_rows.half_of`); benchmarks/accuracy_tpu.py
reports the other half. The output projection's weights were fetched before it started, so its rows
are fitted as products that do not read them. Needs SciPy.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from benchmarks import tpu_rows as rows
from benchmarks.kernel_rows import Measured
from flint.backends.cost.chips.families.systolic.constants import CLOCK, systolic_of
from flint.backends.cost.chips.families.systolic.model import SystolicModel
from flint.cluster.load import PRESETS as CLUSTERS
from flint.cluster.models import Cluster
from flint.tools.measure.fitting.toml_constants import set_constants

#: Lowest, highest and first value of each constant.
Bounds = dict[str, tuple[float, float, float]]
GEMM: Bounds = {
    "gemm.efficiency": (0.5, 0.95, 0.9),
    "gemm.memory_efficiency": (0.6, 0.95, 0.9),
    "gemm.launch_ns": (0, 8000, 2000),
    "gemm.exposed_loads": (0, 3, 1),
    "vmem.bandwidth_ratio": (2, 30, 8),
}
DECODE: Bounds = {
    "decode.launch_ns": (0, 30000, 5000),
    "decode.memory_efficiency": (0.01, 0.95, 0.3),
    "decode.head_ns": (0, 500, 60),
}
ELEMENTWISE: Bounds = {
    "elementwise.launch_ns": (0, 5000, 200),
    "elementwise.vmem_ratio": (1, 30, 6),
}
NORM: Bounds = {"norm.launch_ns": (0, 5000, 600), "norm.vmem_ratio": (1, 30, 3)}
GATHER: Bounds = {"gather.launch_ns": (0, 5000, 1000), "gather.row_ns": (0, 200, 15)}
#: Where the schedules of attention are from, see benchmarks/data/tpu_schedules.
SCHEDULES = "bundles that XLA's TPU compiler (libtpu 0.0.52) schedules for Pallas' splash attention"
PRODUCTS = "benchmarks/fit_tpu.py on bundles that XLA's TPU compiler (libtpu 0.0.52) schedules for products"
#: Constants without rows of their own: value, kind, source.
GIVEN = {
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
SOURCE = "benchmarks/fit_tpu.py on LLMServingSim's {} on TPU v6e"
OTHERS = ("v4", "v5e", "v5p")
Fitted = dict[str, tuple[float, str, str]]


def fit_all() -> Fitted:
    """Every constant with its kind and source."""
    gemms = [rows.gemm_layer(name, in_vmem=name == "o_proj") for name in rows.GEMM_LAYERS]
    parts = [
        (GEMM, "Llama-3.1-8B products", gemms),
        (DECODE, "decode attention", [rows.attention_rows(decode=True)]),
        (ELEMENTWISE, "rotary embedding", [rows.rope()]),
        (NORM, "input norm", [rows.norm()]),
        (GATHER, "token embedding", [rows.embedding()]),
    ]
    found: Fitted = dict(GIVEN)
    found["gemm.fused_operations"] = (fused_operations(), "fitted", PRODUCTS)
    for bounds, name, data in parts:
        known = {key: value for key, (value, _, _) in found.items()}
        for key, value in fit(bounds, data, known).items():
            found[key] = (value, "fitted", SOURCE.format(name))
    return found


def fused_operations() -> float:
    """The median of what the compiler's schedules say (`tpu_rows.waiting_operations`)."""
    return float(f"{np.median(rows.waiting_operations()):.2g}")


def fit(bounds: Bounds, data: list[Measured], known: dict[str, float]) -> dict[str, float]:
    """Constants within `bounds` with the least mean absolute percentage error on half 0."""
    chip = Cluster.load("v6e").chip
    halves = [d.select(d.half == 0) for d in data]

    def error(constants: dict[str, float]) -> float:
        model = SystolicModel(chip, constants)
        off = [model.latency_ns(d.kernels) / d.measured_ns - 1 for d in halves]
        return float(np.abs(np.concatenate(off)).mean())

    return _search(bounds, lambda c: error(known | c))


def _search(bounds: Bounds, error: Callable[[dict[str, float]], float]) -> dict[str, float]:
    low, high, start = (np.array([b[i] for b in bounds.values()]) for i in range(3))

    def constants(z: NDArray[np.float64]) -> dict[str, float]:
        values = low + (high - low) * np.clip(z, 0, 1)
        return dict(zip(bounds, values.tolist(), strict=True))

    z = (start - low) / (high - low)
    for _ in range(4):  # a restart frees a simplex that has shrunk on an edge
        z = minimize(lambda z: error(constants(z)), z, method="Nelder-Mead").x
    return {name: float(f"{value:.4g}") for name, value in constants(z).items()}


def write(found: Fitted) -> None:
    """Write the constants into v6e's file, and into those of the other TPUs as assumed."""
    set_constants(CLUSTERS / "v6e.toml", "chip.systolic.constants", found | _own("v6e"))
    for name in OTHERS:
        assumed = {
            key: (value, "assumed", f"as on TPU v6e: {source}")
            for key, (value, _, source) in found.items()
        }
        set_constants(CLUSTERS / f"{name}.toml", "chip.systolic.constants", assumed | _own(name))


def _own(name: str) -> Fitted:
    clock = systolic_of(Cluster.load(name).chip).constants[CLOCK]
    return {CLOCK: (clock.value, clock.kind, clock.source)}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--write", action="store_true", help="update flint/cluster/presets/*.toml")
    options = parser.parse_args()
    found = fit_all()
    for name, (value, kind, _) in sorted(found.items()):
        print(f"{name:32} {value:10.4g}  {kind}")
    if options.write:
        write(found)


if __name__ == "__main__":
    main()
