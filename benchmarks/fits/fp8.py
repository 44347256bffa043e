"""Constants of products of 8 and 4 bits and of the kernels that quantise, from aiconfigurator's rows.

A row is a call that quantises A and multiplies (`benchmarks.low_precision_rows`). The two kernels
start one after the other and the rows have their sum only: what one of them takes to start is
assumed, and products have the rest. Large A with few columns tell the bandwidth of quantising.
Which tiles a library has is one of `TILES`, the one with the least error on the fitted half.

Training multiplies with cuBLASLt instead. What it sustains, and what it starts and ends with, is from
Azure's five products on H100 and on H200 together, which ran for minutes; what its tiles do in
between is taken to be as in serving. Blackwell has Hopper's share of what bf16 sustains, and 4 bits as
much over 8 as in serving.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, partial

import numpy as np

from benchmarks.fits.fit import Constant, Fit, borrowed
from benchmarks.kernel_rows import Measured
from benchmarks.low_precision_rows import TYPES, quantised_products, quantising, sustained_products
from flint.backends.cost.chips.families.gpu.constants import Constants, constants_of
from flint.backends.cost.chips.families.gpu.hardware import hardware_of
from flint.backends.cost.chips.families.gpu.quantised import (
    constants_for,
    quantise_ns,
    quantised_product_ns,
)
from flint.backends.cost.software import with_stack
from flint.cluster.models import Cluster
from flint.cluster.stack import Stack
from flint.ir.arrays import Float64s
from flint.tools.measure.fitting.fit import Bounds, fit

#: Modules whose constants these start from.
AFTER = ("products", "traced_products", "steps")

#: Preset and the GPU's name in the data -> how products were quantised.
DATA: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("h100-dgx", "h100_sxm"): ("fp8", "fp8_block"),
    ("h200-dgx", "h200_sxm"): ("fp8",),
    ("b200-dgx", "b200_sxm"): ("fp8", "fp8_block", "nvfp4"),
    ("gb200-nvl72", "gb200"): ("fp8",),
    ("gb300-nvl72", "gb300"): ("fp8", "nvfp4"),
    ("rtx-pro-6000", "rtx_pro_6000_server"): ("fp8", "nvfp4"),
}
#: Presets that have constants of another one, which has the same SMs: (theirs, how) -> ours.
TWINS = {
    ("h200-dgx", "fp8_block"): "h100-dgx",
    ("gb200-nvl72", "fp8_block"): "b200-dgx",
    ("gb200-nvl72", "nvfp4"): "b200-dgx",
    ("gb300-nvl72", "fp8_block"): "b200-dgx",
    ("b300-hgx", "fp8"): "gb300-nvl72",
    ("b300-hgx", "fp8_block"): "b200-dgx",
    ("b300-hgx", "nvfp4"): "gb300-nvl72",
}
#: Bounds and start of the constants of a product.
PRODUCT: Bounds = {
    "efficiency": (0.3, 0.95, 0.85),
    "memory_efficiency": (0.4, 0.95, 0.85),
    "launch_ns": (1500, 30000, 3000),
    "step_ns": (0, 400, 60),
    "power_share": (0.2, 2, 0.9),
    "epilogue_k": (0, 1500, 200),
}
QUANTISE: Bounds = {"memory_efficiency": (0.2, 0.95, 0.6)}
#: Start to end of a quantising kernel without work; the rows do not tell it from the product's.
QUANTISE_LAUNCH_NS = 2000.0
#: Tiles that libraries have: (narrow_rows, least_width).
TILES = ((0.0, 64.0), (0.0, 128.0), (128.0, 64.0), (256.0, 64.0))
SOURCE = "benchmarks.fits fp8 on aiconfigurator's {} products of {}"
#: Presets of Azure's machines, and those that have cuBLASLt's constants of the first of them.
SUSTAINED = ("h100-dgx", "h200-dgx")
BLACKWELL = ("b200-dgx", "gb200-nvl72", "gb300-nvl72", "b300-hgx")
CUBLASLT: Bounds = {f"fp8.{n}": PRODUCT[n] for n in ("power_share", "launch_ns", "epilogue_k")}
LIBRARY = "chip.gpu.libraries.cublaslt"


def fits() -> list[Fit]:
    """A fit for each preset and way of quantising, and of cuBLASLt."""
    return [
        *_measured(),
        *(
            borrowed(f"quantised-{how}", preset, like, "chip.gpu.constants", _names(how), "")
            for (preset, how), like in TWINS.items()
        ),
        *(_cublaslt_fit(preset) for preset in SUSTAINED),
        *(
            borrowed("cublaslt-as", preset, SUSTAINED[0], LIBRARY, tuple(CUBLASLT), "")
            for preset in BLACKWELL
        ),
        *(_four_bits(preset) for preset in BLACKWELL),
    ]


def _measured() -> Iterator[Fit]:
    for (preset, gpu), ways in DATA.items():
        for how in ways:
            run, rows = partial(_constants, preset, gpu, how), len(_fitted_half(gpu, how))
            name, names, bounds = f"quantised-{how}", _names(how), _bounds(how)
            yield Fit(name, preset, "chip.gpu.constants", names, rows, run, bounds, quick=True)


def sustained_ns(preset: str, values: Mapping[str, float]) -> Float64s:
    """Azure's products on a machine like a preset, under PyTorch, with other values of constants."""
    hardware = hardware_of(with_stack(Cluster.load(preset), Stack.load("pytorch-eager")).chip)
    own = replace(hardware, constants=Constants({**hardware.constants.values, **values}))
    return quantised_product_ns(sustained_products(preset).kernels, own, TYPES["fp8"])


@cache
def cublaslt(presets: tuple[str, ...] = SUSTAINED) -> Mapping[str, float]:
    """The constants of cuBLASLt's products from some of Azure's machines."""

    def times(c: dict[str, float]) -> Float64s:
        return np.concatenate([sustained_ns(preset, c) for preset in presets])

    return fit(
        CUBLASLT, times, np.concatenate([sustained_products(p).measured_ns for p in presets])
    )


def _cublaslt_fit(preset: str) -> Fit:
    def run() -> dict[str, Constant]:
        source = "benchmarks.fits fp8 on Azure's sustained cuBLASLt products of H100 and H200"
        return {name: (value, "fitted", source) for name, value in cublaslt().items()}

    rows = sum(len(sustained_products(p)) for p in SUSTAINED)
    return Fit("cublaslt", preset, LIBRARY, tuple(CUBLASLT), rows, run, CUBLASLT, quick=True)


def _four_bits(preset: str) -> Fit:
    def run() -> dict[str, Constant]:
        own = constants_of(Cluster.load(preset).chip)
        share = cublaslt()["fp8.power_share"] * own["fp4.power_share"] / own["fp8.power_share"]
        source = "as of 8 bits, by what 4 bits sustain over 8 in serving on this chip"
        return {"fp4.power_share": (share, "assumed", source)}

    return Fit("cublaslt-fp4", preset, LIBRARY, ("fp4.power_share",), 1, run, {}, quick=True)


def _model(how: str) -> str:
    return constants_for(TYPES[how])


def _bounds(how: str) -> Bounds:
    found = {f"{_model(how)}.{name}": bounds for name, bounds in PRODUCT.items()}
    if how == "fp8":
        found |= {f"quantise.{name}": bounds for name, bounds in QUANTISE.items()}
    if how == "fp8_block":
        found["fp8-block.column_ns"] = (0, 2, 0.1)
    return found


def _names(how: str) -> tuple[str, ...]:
    tiles = (f"{_model(how)}.narrow_rows", f"{_model(how)}.least_width")
    assumed = ("quantise.launch_ns", "quantise.cycles") if how == "fp8" else ()
    return (*_bounds(how), *tiles, *assumed)


def _fitted_half(gpu: str, how: str) -> Measured:
    data = quantised_products(gpu, how)
    return data.select(data.half == 0)


def _constants(preset: str, gpu: str, how: str) -> Mapping[str, Constant]:
    source = SOURCE.format(how, gpu)
    found = {n: (v, "fitted", source) for n, v in _fitted(preset, gpu, how).items()}
    if how == "fp8":
        both = "the rows have the sum of both kernels' starts: benchmarks/fits/fp8.py"
        found["quantise.launch_ns"] = (QUANTISE_LAUNCH_NS, "assumed", both)
        found["quantise.cycles"] = (0.0, "assumed", "bound by bytes: benchmarks/fits/fp8.py")
    return found


@cache
def _fitted(preset: str, gpu: str, how: str) -> Mapping[str, float]:
    found = [_with_tiles(preset, gpu, how, *tiles) for tiles in TILES]
    return min(found, key=lambda pair: pair[0])[1]


def _with_tiles(
    preset: str, gpu: str, how: str, narrow_rows: float, least_width: float
) -> tuple[float, Mapping[str, float]]:
    """The error and the constants of a library with these tiles."""
    data, chip = _fitted_half(gpu, how), Cluster.load(preset).chip
    given = {
        f"{_model(how)}.narrow_rows": narrow_rows,
        f"{_model(how)}.least_width": least_width,
        f"{_model(how)}.column_ns": 0.0,
        "quantise.launch_ns": QUANTISE_LAUNCH_NS,
        "quantise.cycles": 0.0,
    }
    if how != "fp8":
        same = _fitted(preset, gpu, "fp8")
        given["quantise.memory_efficiency"] = same["quantise.memory_efficiency"]
    hardware = hardware_of(chip, Constants({}))
    given |= {n: constants_of(chip)[n] for n in ("gemm.sustained", "gemm.power_ns")}
    casts = quantising(data, how)

    def times(c: dict[str, float]) -> Float64s:
        own = replace(hardware, constants=Constants(given | c))
        products = quantised_product_ns(data.kernels, own, TYPES[how])
        return np.asarray(products + quantise_ns(casts, own), np.float64)

    values = fit(_bounds(how), times, data.measured_ns)
    error = float(np.mean(np.abs(times(values) / data.measured_ns - 1)))
    tiles = {n: v for n, v in given.items() if n.endswith((".narrow_rows", ".least_width"))}
    return error, values | tiles
