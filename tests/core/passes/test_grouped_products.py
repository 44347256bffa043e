"""Products of rows of groups on GPUs: what loads do to them, bounds, order, and how programs say them."""

from __future__ import annotations

import numpy as np
import pytest

from flint.backends.cost.chips.families.gpu.constants import gpu_of
from flint.backends.cost.chips.families.gpu.grouped import HEIGHTS, Loads, Matrices, rows_ns
from flint.backends.cost.chips.families.gpu.hardware import GpuHardware, hardware_of
from flint.backends.cost.chips.kernels import KernelKind, Kernels
from flint.backends.cost.chips.model import latency_ns
from flint.cluster.models import Chip, Cluster
from flint.ir.product_types import grouped, groups_of, without_groups

SIZES = (1, 7, 8, 63, 64, 65, 500, 4096, 50_000)


def chip_with(library: str, preset: str = "b200-dgx") -> Chip:
    chip = Cluster.load(preset).chip
    gpu = gpu_of(chip).model_copy(update={"uses": (library,)})
    return chip.model_copy(update={"gpu": gpu})


def hardware(library: str) -> GpuHardware:
    return hardware_of(chip_with(library))


def kernels(rows: int, n: int, k: int, groups: int, *, sums: bool = False) -> Kernels:
    """One grouped product in bf16: `rows` of all groups."""
    m, inner = (n, rows) if sums else (rows, k)
    other = k if sums else n
    moved = rows * (n + k) + groups * n * k
    return Kernels(
        kind=np.array([KernelKind.GEMM], np.uint8),
        dtype=np.zeros(1, np.uint8),
        dims=np.array([[1, m, other, inner]]),
        flops=np.array([2 * rows * n * k]),
        read_bytes=np.array([2 * moved]),
        written_bytes=np.zeros(1, np.int64),
        elements=np.array([m * n]),
        arrays=np.array([3]),
        causal=np.zeros(1, np.bool_),
        dtypes=(grouped("bf16", groups, sums=sums),),
    )


def one_ns(draw: list[float], library: str = "moe-triton") -> float:
    """A product of groups with these rows, of matrices of 4096 by 2048."""
    loads = Loads.of([np.array(draw, np.float64)])
    moved = loads.touched * 2 * 4096 * 2048 + loads.rows * 2 * (4096 + 2048)
    of = Matrices(np.array([2048.0]), np.array([4096.0]), moved)
    return float(rows_ns(loads, of, hardware(library), "bf16")[0])


def test_names_say_how_many_groups_there_are() -> None:
    assert grouped("bf16", 8) == "bf16:groups8"
    assert grouped("f8E4M3FN:block", 64, sums=True) == "f8E4M3FN:block,sums64"
    assert groups_of("f8E4M3FN:block,sums64") == (64, True)
    assert groups_of("f8E4M3FN:block") is None
    assert [grouped("bf16", 1), grouped("", 8)] == ["bf16", ""]
    assert without_groups("f32:ieee,groups8") == "f32:ieee"


def test_loads_count_tiles_of_each_group() -> None:
    loads = Loads.of([np.array([1.0, 0, 17, 64, 129])])
    assert loads.tiles[:, 0].tolist() == [
        1 + 2 + 4 + 9,
        1 + 1 + 2 + 5,
        1 + 1 + 1 + 3,
        1 + 1 + 1 + 2,
    ]
    assert (loads.touched[0], loads.rows[0], loads.most[0], HEIGHTS[0]) == (4, 211, 129, 16)
    few = Loads.balanced(np.array([8.0]), np.array([3.0]))
    assert (few.touched[0], few.tiles[0, 0]) == (3, 3)


def test_matrices_of_groups_without_rows_are_not_read() -> None:
    """48 rows for one group of 64 take less time than one row for each of 48 groups."""
    assert one_ns([48.0] + [0.0] * 63) < 0.5 * one_ns([1.0] * 48 + [0.0] * 16)


def test_skewed_loads_take_no_less_than_the_tiles_of_balanced_ones() -> None:
    """Of as many rows: a group of all rows wastes no tile, many groups of few rows do."""
    full, uneven = one_ns([128.0] * 64), one_ns([65.0, 191.0] * 32)
    assert uneven > full
    assert one_ns([8192.0] + [0.0] * 63) < full


@pytest.mark.parametrize("library", ["moe-triton", "moe-trtllm", "transformer-engine", "none"])
@pytest.mark.parametrize("sums", [False, True])
def test_more_rows_never_take_less_time_nor_less_than_the_roofline(
    library: str, sums: bool
) -> None:
    chip = chip_with(library)
    every = [kernels(rows, 4096, 1024, 16, sums=sums) for rows in SIZES]
    times = [float(latency_ns(one, chip)[0]) for one in every]
    assert times == sorted(times)
    for rows, one, time in zip(SIZES, every, times, strict=True):
        arithmetic = float(one.flops[0]) / (chip.peak_flops_per_s["bf16"].value * 1e-9)
        assert time > arithmetic, rows
    largest = float(every[-1].moved_bytes[0]) / (chip.memory_bandwidth_bytes_per_s.value * 1e-9)
    assert times[-1] > largest


def test_a_balanced_group_costs_what_its_batched_product_does_within_a_fifth() -> None:
    """Without constants of its own, a grouped product has those of other products."""
    chip = Cluster.load("h100-dgx").chip
    one = kernels(8 * 2048, 4096, 4096, 8)
    batched = Kernels(
        **{**vars(one), "dims": np.array([[8, 2048, 4096, 4096]]), "dtypes": ("bf16",)}
    )
    assert latency_ns(one, chip)[0] == pytest.approx(latency_ns(batched, chip)[0], rel=0.2)
