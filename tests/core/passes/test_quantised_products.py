"""Products of 8 and 4 bits on GPUs: bounds, order, which constants, and what quantises."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flint.backends.cost.chips.families.gpu.constants import Constants, constants_of
from flint.backends.cost.chips.families.gpu.hardware import GpuHardware, element_bytes, hardware_of
from flint.backends.cost.chips.families.gpu.quantised import (
    constants_for,
    quantised_product_ns,
)
from flint.backends.cost.chips.kernels import KernelKind, Kernels
from flint.backends.cost.chips.model import latency_ns
from flint.cluster.models import Cluster
from flint.ir.product_types import by_block

TYPES = ("f8E4M3FN", "f8E4M3FN:block", "f4E2M1FN")
SIZES = (1, 16, 63, 64, 65, 128, 129, 256, 257, 1000, 4096, 16384)


def hardware(preset: str) -> GpuHardware:
    return hardware_of(Cluster.load(preset).chip)


def products(shapes: list[tuple[int, int, int]], dtype: str) -> Kernels:
    m, n, k = np.array(shapes, np.int64).T
    size, count = element_bytes(dtype), len(shapes)
    return Kernels(
        kind=np.full(count, KernelKind.GEMM, np.uint8),
        dtype=np.zeros(count, np.uint8),
        dims=np.column_stack([np.ones_like(m), m, n, k]),
        flops=2 * m * n * k,
        read_bytes=(size * (m * k + n * k)).astype(np.int64),
        written_bytes=2 * m * n,
        elements=m * n,
        arrays=np.full(count, 3, np.int64),
        causal=np.zeros(count, np.bool_),
        dtypes=(dtype,),
    )


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("axis", range(3))
def test_more_of_any_size_never_takes_less_time(dtype: str, axis: int) -> None:
    for others in ((64, 256), (512, 8192), (8192, 512)):
        shapes = [(*others[:axis], size, *others[axis:]) for size in SIZES]
        times = quantised_product_ns(products(shapes, dtype), hardware("b200-dgx"), dtype)
        assert (np.diff(times) >= 0).all(), (dtype, others)


@pytest.mark.parametrize("dtype", TYPES)
def test_no_product_beats_peak_or_memory(dtype: str) -> None:
    shapes = [(m, n, k) for m in SIZES for n in (128, 5120) for k in (128, 16384)]
    kernels, gpu = products(shapes, dtype), hardware("b200-dgx")
    least = np.maximum(
        kernels.flops / gpu.peak_flops_per_ns(dtype), kernels.moved_bytes / gpu.memory_bytes_per_ns
    )
    assert (quantised_product_ns(kernels, gpu, dtype) > least).all()


def test_each_way_of_scaling_has_constants_of_its_own() -> None:
    assert [constants_for(dtype) for dtype in TYPES] == ["fp8", "fp8-block", "fp4"]
    assert (by_block("float8_e4m3fn"), by_block("bf16")) == ("float8_e4m3fn:block", "bf16")
    chip, shape = Cluster.load("b200-dgx").chip, [(512, 4096, 4096)]
    times = [float(latency_ns(products(shape, dtype), chip)[0]) for dtype in TYPES]
    assert len(set(times)) == 3


def test_a_chip_without_constants_for_8_bits_has_those_of_its_other_products() -> None:
    """L40S has none: its prices are those that the constants of bf16 give."""
    chip = Cluster.load("l40s").chip
    own = constants_of(chip)
    assert not any(name.startswith("fp8.") for name in own.values)
    same = {name.replace("gemm.", "fp8."): v for name, v in own.values.items() if "gemm." in name}
    said = hardware_of(chip, Constants({**own.values, **same}))
    kernels = products([(512, 4096, 4096)], "f8E4M3FN")
    assert quantised_product_ns(kernels, said, "f8E4M3FN") == latency_ns(kernels, chip)


def test_a_library_that_looks_at_rows_alone_is_slow_for_few_columns() -> None:
    """H100's: 200 rows by 256 columns are four tiles of 128 x 128, not sixteen of 64 x 64."""
    gpu = hardware("h100-dgx")
    free = replace(gpu, constants=Constants({**gpu.constants.values, "fp8.narrow_rows": 0.0}))
    kernels = products([(200, 256, 16384)], "f8E4M3FN")
    chosen, best = (quantised_product_ns(kernels, g, "f8E4M3FN")[0] for g in (gpu, free))
    assert chosen > 1.5 * best


def test_a_kernel_that_writes_8_bits_quantises() -> None:
    """It has constants of its own, where the chip has any; one that writes bf16 has not."""
    chip = Cluster.load("h100-dgx").chip
    one = products([(8192, 1, 8192)], "f8E4M3FN")
    moved = {"read_bytes": np.array([2 << 26]), "written_bytes": np.array([1 << 26])}
    cast = replace(one, kind=np.array([KernelKind.ELEMENTWISE], np.uint8), **moved)
    c = constants_of(chip)
    rate = c["quantise.memory_efficiency"] * chip.memory_bandwidth_bytes_per_s.value * 1e-9
    assert latency_ns(cast, chip)[0] == pytest.approx(c["quantise.launch_ns"] + (3 << 26) / rate)
    assert latency_ns(replace(cast, dtypes=("bf16",)), chip)[0] != latency_ns(cast, chip)[0]
