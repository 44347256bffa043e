"""Constants of products of matrices on GPUs (`gemm.*`).

Bursts are aiconfigurator's bf16 products: replayed back to back from a CUDA graph, no gap between
launches, the first operand and small weights warm in the L2. The same grid on the same GPU with
three versions of the library differs by 5 % on average: no model is better than that.

Sustained rates are SimuMax's: products as Megatron-core launches them, on a machine that trains.
Which of them ran while the chip was hot is not said: of alike products of 50 to 400 us some reach
the burst's rate and some three quarters of it.

What kernels take whose rows are not aligned is in reports on A100: two on products of 2 to 16 rows and
columns and millions of k, which one tile walks along, waiting for its loads; one on 16 rows times
248,077 columns, in which all SMs load what they can.

Everything is fitted on one half of the shapes (`kernel_rows.half_of`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from benchmarks import kernel_rows, simumax_rows
from benchmarks.fits.fit import Constant, Fit, borrowed
from benchmarks.kernel_rows import Measured
from flint.backends.cost.chips.families.gpu.constants import Constants, constants_of
from flint.backends.cost.chips.families.gpu.hardware import hardware_of
from flint.backends.cost.chips.families.gpu.products import gemm_ns
from flint.backends.cost.software import with_libraries
from flint.cluster.models import Cluster
from flint.ir.arrays import Float64s
from flint.tools.measure.fitting.fit import Bounds, fit

#: Bounds and start of each constant.
BURST: Bounds = {
    "gemm.memory_efficiency": (0.6, 0.95, 0.85),
    "gemm.launch_ns": (1500, 8000, 2600),
    "gemm.overlap": (1, 20, 3),
    "gemm.step_ns": (0, 200, 30),
    "gemm.feed_ns": (0, 800, 150),
    "gemm.split_ns": (0, 6000, 2600),
    "gemm.sustained": (0.3, 1, 0.7),
    "gemm.power_ns": (1e3, 1e7, 3e5),
    "gemm.epilogue_k": (0, 400, 150),
}
SUSTAINED: Bounds = {"gemm.sustained": (0.3, 1, 0.6), "gemm.power_ns": (1e3, 1e7, 1e5)}
#: Presets that have the constants of another one, and why.
TWINS = {"a100-40-dgx": ("a100-80-dgx", "the same die")}
TABLE = "chip.gpu.constants"
#: Steps of 32 elements along k, and their nanoseconds, on A100.
WAITS = {"issue 146817": (30e6 / 32, 685.409e6), "pull request 125650": (20_569_856 / 32, 449e6)}
#: A product on the A100 of `REPORTED`, and its milliseconds.
LOADS = {"m": "16", "n": "248077", "k": "2560", "latency_ms": "1.67"}
REPORTED = "a100-40-dgx"
UNALIGNED: Bounds = {"gemm.unaligned_cycles": (0.05, 1, 0.3)}
NAMES, ATEN = ("gemm.unaligned_ns", *UNALIGNED), "chip.gpu.libraries.aten"
#: Those that PyTorch's operators run on, but A100.
OTHERS = (
    *("a100-80-dgx", "h100-dgx", "h200-dgx", "b200-dgx", "gb200-nvl72", "gb300-nvl72"),
    *("l40s", "rtx-pro-6000", "mi300x"),
)


def burst(preset: str, half: int = 0) -> dict[str, float]:
    """Constants of a preset from one half of its bursts."""
    data = kernel_rows.gemms(kernel_rows.PRODUCTS[preset])
    return _fit(preset, BURST, data.select(data.half == half), {})


def sustained(preset: str, half: int = 0) -> dict[str, float]:
    """What power allows, from one half of the products of a machine that trains."""
    data = simumax_rows.products(preset)
    own = Cluster.load(preset).chip
    return _fit(preset, SUSTAINED, data.select(data.half == half), constants_of(own).values)


def _fit(
    preset: str, bounds: Bounds, data: Measured, others: Mapping[str, float]
) -> dict[str, float]:
    hardware = hardware_of(Cluster.load(preset).chip, Constants({}))

    def predict(values: Mapping[str, float]) -> Float64s:
        those = Constants({**others, **values})
        return gemm_ns(data.kernels, replace(hardware, constants=those), "bf16")

    return fit(bounds, predict, data.measured_ns)


def fits() -> list[Fit]:
    """Bursts of each GPU, of those that have none the neighbour's, and sustained rates."""
    return [
        *(_burst_fit(preset) for preset in kernel_rows.PRODUCTS),
        *(
            borrowed("products-as", preset, like, TABLE, tuple(BURST), why)
            for preset, (like, why) in TWINS.items()
        ),
        _unaligned_fit(),
        *(borrowed("unaligned-as", p, REPORTED, ATEN, NAMES, "") for p in OTHERS),
        *(_sustained_fit(preset) for preset in simumax_rows.SYSTEMS),
    ]


def _burst_fit(preset: str) -> Fit:
    gpu = kernel_rows.PRODUCTS[preset]

    def run() -> dict[str, Constant]:
        source = f"benchmarks.fits products on aiconfigurator's bf16 GEMMs of {gpu}"
        return {name: (value, "fitted", source) for name, value in burst(preset).items()}

    rows = int((kernel_rows.gemms(gpu).half == 0).sum())
    return Fit("products", preset, TABLE, tuple(BURST), rows, run, BURST, quick=True)


def _unaligned_fit() -> Fit:
    source = "benchmarks.fits products on reports of A100: {}"
    chip = with_libraries(Cluster.load(REPORTED), ("aten",)).chip
    one = kernel_rows.measured([LOADS], lambda row: kernel_rows.gemm(row, "bf16"), "latency_ms")

    def run() -> dict[str, Constant]:
        wait = float(np.mean([ns / steps for steps, ns in WAITS.values()]))
        given = {**constants_of(chip).values, "gemm.unaligned_ns": wait}
        found = _fit(REPORTED, UNALIGNED, one, given)
        loads = source.format("pegainfer-project/pegainfer, pull request 1046")
        waits = source.format(f"pytorch/pytorch, {' and '.join(WAITS)}")
        return {
            "gemm.unaligned_ns": (wait, "measured", waits),
            **{name: (value, "fitted", loads) for name, value in found.items()},
        }

    return Fit("unaligned", REPORTED, ATEN, NAMES, len(one), run, UNALIGNED, quick=True)


def _sustained_fit(preset: str) -> Fit:
    def run() -> dict[str, Constant]:
        source = f"benchmarks.fits products on SimuMax's products of {simumax_rows.SYSTEMS[preset]}"
        return {name: (value, "fitted", source) for name, value in sustained(preset).items()}

    rows = int((simumax_rows.products(preset).half == 0).sum())
    table, names = "chip.gpu.libraries.sustained", tuple(SUSTAINED)
    return Fit("products-sustained", preset, table, names, rows, run, SUSTAINED, quick=True)
