"""Constants of grouped products (`grouped.*`), of serving's fused experts and of training's kernels.

A measured call of fused experts is more than its two products: the rest (choosing and sorting, the
activation, the sum over each token's experts) is fitted beside them, `Rest`, and is in no preset.
Training's products (SimuMax) are calls of one product each, at the rates of machines that train.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, partial

import numpy as np

from benchmarks.fits.fit import Constant, Fit
from benchmarks.moe_rows import (
    ExpertCalls,
    GroupedProducts,
    expert_calls,
    fitted_rows,
    training_products,
)
from benchmarks.simumax_rows import SYSTEMS
from flint.backends.cost.chips.families.gpu.constants import Constants, constants_of
from flint.backends.cost.chips.families.gpu.grouped import (
    Float64s,
    Loads,
    Matrices,
    constants_for,
    matrices_ns,
    rows_ns,
)
from flint.backends.cost.chips.families.gpu.hardware import GpuHardware, hardware_of
from flint.backends.cost.software import with_stack
from flint.cluster.models import Cluster
from flint.cluster.stack import Stack
from flint.tools.measure.fitting.fit import Bounds, fit

#: Modules whose constants these start from.
AFTER = ("products", "fp8")

#: Preset, the GPU's name in the data, type of the files, library.
CALLS = (
    ("h100-dgx", "h100_sxm", "bf16", "moe-triton"),
    ("h100-dgx", "h100_sxm", "bf16", "moe-cutlass"),
    ("h100-dgx", "h100_sxm", "fp8_block", "moe-triton"),
    ("b200-dgx", "b200_sxm", "bf16", "moe-triton"),
    ("b200-dgx", "b200_sxm", "bf16", "moe-trtllm"),
    ("b200-dgx", "b200_sxm", "fp8_block", "moe-triton"),
    ("b200-dgx", "b200_sxm", "fp8_block", "moe-trtllm"),
)
TYPES = {"bf16": "bf16", "fp8_block": "f8E4M3FN:block"}
#: Bounds and start of what products have, and of the rest of a call.
PRODUCT: Bounds = {
    "efficiency": (0.1, 0.95, 0.5),
    "memory_efficiency": (0.1, 0.95, 0.8),
    "step_ns": (0, 600, 60),
    "epilogue_k": (0, 1500, 200),
    "group_ns": (0, 6000, 50),
}
REST: Bounds = {
    "call_ns": (0, 60000, 15000),
    "activation": (0.1, 1, 0.6),
    "sum": (0.1, 1, 0.5),
    "choice_bytes": (0, 400, 50),
}
#: Columns of a library's only tile, 0: several.
TILES = (0.0, 64.0, 128.0)
TRAINING: Bounds = {
    "grouped.memory_efficiency": (0.1, 0.95, 0.6),
    "grouped.group_ns": (0, 20000, 1000),
    "grouped.step_ns": (0, 600, 60),
}
#: Rows that determine all of them.
MANY = 10
SOURCE = "benchmarks.fits grouped on {}"


def fits() -> list[Fit]:
    """A fit for each library and type, and for each machine that trains."""
    return [*_of_calls(), *_of_training()]


def _of_calls() -> Iterator[Fit]:
    for preset, gpu, dtype, library in CALLS:
        model = constants_for(TYPES[dtype])
        bounds = {f"{model}.{name}": b for name, b in PRODUCT.items()}
        yield Fit(
            name=f"grouped-{dtype}-{library}",
            preset=preset,
            table=f"chip.gpu.libraries.{library}",
            names=(*bounds, f"{model}.tile_columns"),
            rows=fitted_rows(gpu, dtype, library),
            run=partial(_call_constants, preset, gpu, dtype, library),
            bounds=bounds,
        )


def _of_training() -> Iterator[Fit]:
    for preset in SYSTEMS:
        yield Fit(
            name="grouped-training",
            preset=preset,
            table="chip.gpu.libraries.transformer-engine",
            names=tuple(_training_bounds(preset)),
            rows=_training_rows(preset),
            run=partial(_training_constants, preset),
            bounds=_training_bounds(preset),
            quick=preset != "a100-80-pcie",  # four rows: it ends where it starts from, nearly
        )


def call_ns(
    calls: ExpertCalls, hardware: GpuHardware, dtype: str, rest: Mapping[str, float]
) -> Float64s:
    """Nanoseconds of calls: both products, and what else is in one."""
    into, out = calls.products()
    products = sum(rows_ns(calls.loads, p, hardware, dtype, low=calls.low) for p in (into, out))
    activation = 2 * calls.others * calls.inner * (calls.gated + 1) / rest["activation"]
    total = 2 * (calls.others + calls.tokens) * calls.hidden / rest["sum"]
    choice = rest["choice_bytes"] * calls.tokens * calls.experts
    moved = activation + total + choice
    result: Float64s = rest["call_ns"] + products + moved / hardware.memory_bytes_per_ns
    return result


@cache
def _fitted_call(preset: str, gpu: str, dtype: str, library: str) -> Mapping[str, float]:
    calls = expert_calls(gpu, dtype, library)
    calls = calls.select(calls.half == 0)
    found = [_with_tile(preset, calls, TYPES[dtype], columns) for columns in TILES]
    return min(found, key=lambda pair: pair[0])[1]


def _with_tile(
    preset: str, calls: ExpertCalls, dtype: str, columns: float
) -> tuple[float, Mapping[str, float]]:
    """The error and the constants of a library with such tiles."""
    chip, model = Cluster.load(preset).chip, constants_for(dtype)
    base = {**constants_of(chip).values, f"{model}.tile_columns": columns}
    hardware = hardware_of(chip)
    bounds = {f"{model}.{name}": b for name, b in PRODUCT.items()} | REST

    def times(c: dict[str, float]) -> Float64s:
        return call_ns(calls, replace(hardware, constants=Constants({**base, **c})), dtype, c)

    values = fit(bounds, times, calls.measured_ns)
    error = float(np.mean(np.abs(times(values) / calls.measured_ns - 1)))
    return error, {**values, f"{model}.tile_columns": columns}


def _call_constants(preset: str, gpu: str, dtype: str, library: str) -> Mapping[str, Constant]:
    source = SOURCE.format(f"aiconfigurator's {dtype} fused experts of {gpu}")
    found = _fitted_call(preset, gpu, dtype, library)
    return {name: (v, "fitted", source) for name, v in found.items() if name not in REST}


def fitted_rest(preset: str, gpu: str, dtype: str, library: str) -> dict[str, float]:
    """The rest of calls, from the fitted half, beside the constants of the preset's file."""
    calls = expert_calls(gpu, dtype, library)
    calls = calls.select(calls.half == 0)
    hardware = hardware_with(preset, library)
    return fit(REST, lambda c: call_ns(calls, hardware, TYPES[dtype], c), calls.measured_ns)


def hardware_with(preset: str, library: str) -> GpuHardware:
    """A preset's hardware where one library runs."""
    chip = Cluster.load(preset).chip
    assert chip.gpu is not None, preset
    gpu = chip.gpu.model_copy(update={"uses": (library,)})
    return hardware_of(chip.model_copy(update={"gpu": gpu}))


def training_ns(products: GroupedProducts, hardware: GpuHardware) -> Float64s:
    """Nanoseconds of grouped products that are balanced."""
    loads = Loads.balanced(products.groups, products.rows)
    of = Matrices(products.n, products.k, products.moved_bytes)
    rows = rows_ns(loads, of, hardware, "bf16")
    # of a gradient, m is what the rows are multiplied with
    sums = matrices_ns(loads, of, products.k, products.groups, hardware, "bf16")
    return np.where(products.sums, sums, rows)


def training_hardware(preset: str) -> GpuHardware:
    """A preset's hardware under Megatron-core."""
    return hardware_of(with_stack(Cluster.load(preset), Stack.load("megatron")).chip)


def _training_rows(preset: str) -> int:
    return int((training_products(preset).half == 0).sum())


def _training_bounds(preset: str) -> Bounds:
    """All that is fitted; few rows do not tell what a step takes from what a group does."""
    many = _training_rows(preset) >= MANY
    return {n: b for n, b in TRAINING.items() if many or n != "grouped.step_ns"}


def _training_constants(preset: str) -> Mapping[str, Constant]:
    products, hardware = training_products(preset), training_hardware(preset)
    own = products.half == 0

    def times(c: dict[str, float]) -> Float64s:
        constants = Constants({**hardware.constants.values, **c})
        return training_ns(products, replace(hardware, constants=constants))[own]

    source = SOURCE.format(f"SimuMax's grouped products of {SYSTEMS[preset]}")
    found = fit(_training_bounds(preset), times, products.measured_ns[own])
    return {name: (value, "fitted", source) for name, value in found.items()}
