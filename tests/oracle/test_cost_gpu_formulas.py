"""Prices of kernels on a GPU against the formulas of their docstrings, one kernel at a time.

Here are plain numbers and loops instead of columns. Shapes are drawn from a seed: they reach each
case of a formula, such as products that stay in the L2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from flint.backends.cost.chips.families.gpu.constants import HEAD_SIZES, constants_of
from flint.backends.cost.chips.families.gpu.products import SPLITS, TILES
from flint.backends.cost.chips.kernels import KernelKind
from flint.backends.cost.chips.model import latency_ns
from flint.cluster.models import Chip, Cluster
from tests.kernel_rows import Row, columns_of, drawn_rows, without_dimensions

K = KernelKind
ATTENTION = {K.ATTENTION, K.ATTENTION_BACKWARD}
SIZES = {"bf16": 2, "f32": 4, "f8E4M3FN": 1, "f64": 8}


@dataclass(frozen=True)
class Gpu:
    """A chip's numbers per nanosecond."""

    chip: Chip

    def __getitem__(self, constant: str) -> float:
        return constants_of(self.chip)[constant]

    @property
    def sms(self) -> float:
        return self._gpu.sms.value

    @property
    def cycles(self) -> float:
        """Of all SMs in a nanosecond."""
        return self.sms * self._gpu.clock_hz.value / 1e9

    @property
    def memory(self) -> float:
        return self.chip.memory_bandwidth_bytes_per_s.value / 1e9

    @property
    def l2(self) -> float:
        """H100's file says nothing: assumed twice as fast as memory."""
        return 2 * self.memory

    @property
    def l2_bytes(self) -> float:
        return self._gpu.l2_bytes.value

    def peak(self, dtype: str) -> float:
        return self.chip.peak_flops_per_s[dtype].value / 1e9

    @property
    def _gpu(self) -> Any:
        return self.chip.family


GPU = Gpu(Cluster.load("h100-dgx").chip)


def tile_ns(row: Row, height: int, width: int, split: int, gpu: Gpu) -> float:
    """All waves of one tile."""
    size = SIZES[row.dtype]
    batch, m, n, k = row.dims
    per_k = 2 * height * width / (gpu["gemm.efficiency"] * gpu.peak(row.dtype) / gpu.sms)
    each = 128 // size  # elements of k in a step
    steps = math.ceil(k / split / each)
    one = steps * (per_k * each + gpu["gemm.step_ns"]) + per_k * gpu["gemm.epilogue_k"] * 2 / size
    tiles = batch * math.ceil(m / height) * math.ceil(n / width)
    return math.ceil(tiles * split / gpu.sms) * one


def from_memory_ns(row: Row, gpu: Gpu) -> float:
    batch, _, n, k = row.dims
    working_set = row.moved + 5 * SIZES[row.dtype] * batch * n * k  # six weights in turn
    stays = min(max(2 - working_set / (gpu["gemm.l2_share"] * gpu.l2_bytes), 0), 1)
    slow = row.read + row.written / gpu["gemm.write_efficiency"]
    slow /= gpu["gemm.memory_efficiency"] * gpu.memory
    return max(stays * row.moved / gpu.l2 + (1 - stays) * slow, row.moved / gpu.memory)


def product_ns(row: Row, gpu: Gpu) -> float:
    if 0 in row.dims[1:]:
        side = max((max(row.flops, 2) / 2) ** (1 / 3), 1)
        row = row.with_dims((1, side, side, side))
    batch, m, n, _ = row.dims
    memory, p, best = from_memory_ns(row, gpu), gpu["gemm.overlap"], math.inf
    for split in SPLITS:
        waves = min(tile_ns(row, high, wide, split, gpu) for high, wide in TILES)
        waves *= 1 + gpu["gemm.throttle"] * waves / (waves + 1e6)
        bytes_ns, extra = memory, 0.0
        if split > 1:  # parts in f32, written and read
            bytes_ns += 2 * 4 * batch * m * n * split / gpu.l2
            extra = gpu["gemm.split_ns"]
        best = min(best, (waves**p + bytes_ns**p) ** (1 / p) + extra)
    return best + gpu["gemm.launch_ns"]


def bandwidth_ns(row: Row, gpu: Gpu, model: str, elements: float) -> float:
    bytes_ns = row.moved / (gpu[f"{model}.memory_efficiency"] * gpu.memory)
    return gpu[f"{model}.launch_ns"] + bytes_ns + elements * gpu[f"{model}.cycles"] / gpu.cycles


def elementwise_ns(row: Row, gpu: Gpu) -> float:
    return bandwidth_ns(row, gpu, "elementwise", row.elements)


def per_byte_ns(gpu: Gpu) -> float:
    return 1 / (gpu["elementwise.memory_efficiency"] * gpu.memory)


def norm_ns(row: Row, gpu: Gpu) -> float:
    by_bytes = row.moved / (gpu["norm.memory_efficiency"] * gpu.memory)
    return gpu["norm.launch_ns"] + max(by_bytes, row.dims[1] * gpu["norm.row_cycles"] / gpu.cycles)


def gather_ns(row: Row, gpu: Gpu) -> float:
    """A row that is read and written moves a sector of 32 bytes at least."""
    padding = max(2 * 32 * row.dims[1] - row.moved, 0)
    return elementwise_ns(row, gpu) + padding * per_byte_ns(gpu)


def scatter_ns(row: Row, gpu: Gpu) -> float:
    """A place that is read and written moves a sector of 32 bytes at least, both ways."""
    place_bytes = row.written / max(row.elements, 1) * row.dims[3]
    padding = 2 * row.dims[1] * max(32 - place_bytes, 0)
    return elementwise_ns(row, gpu) + padding * per_byte_ns(gpu)


def top_k_ns(row: Row, gpu: Gpu) -> float:
    rows = row.sides[1]
    reads = 1 if row.elements / rows <= 16 else 32 / 8 + 1
    fastest = min(min(rows / gpu.sms, 1) * gpu.l2, 1 / per_byte_ns(gpu))
    return reads * gpu["elementwise.launch_ns"] + (reads * row.read + row.written) / fastest


def fft_ns(row: Row, gpu: Gpu) -> float:
    longest = 65_536 / 8
    outer, _, _, last = row.dims
    passes = 2 if last > longest else 1
    if outer > 1:
        passes += 2 if outer > longest else 1
    moving = passes * row.moved * per_byte_ns(gpu)
    return passes * gpu["elementwise.launch_ns"] + max(moving, row.flops / (128 * gpu.cycles))


def attention_ns(row: Row, gpu: Gpu, *, backward: bool = False) -> float:
    heads, queries, keys, size = row.dims
    if queries <= 8 and not row.causal and not backward:
        return decode_ns(row, gpu)
    sizes = (64, 128, 192, 256, 512)
    known = [gpu[f"{HEAD_SIZES}{s}"] for s in sizes]
    rate = float(np.interp(math.log2(size), [math.log2(s) for s in sizes], known))
    rate *= gpu.peak(row.dtype) * (gpu["attention.backward_efficiency"] if backward else 1)
    passes = 5 / 2 if backward else 1
    blocks = 0  # of 128 x 128; the last query sees all keys
    high, wide = math.ceil(queries / 128), math.ceil(keys / 128)
    for turn in range(high):
        blocks += min(max(wide - high, 0) + 1 + turn, wide) if row.causal else wide
    if row.causal and high > wide:
        blocks = high * (1 + wide) / 2  # as many queries see the first block as the last
    arithmetic = 4 * heads * blocks * 128 * 128 * size * passes / rate
    one_sm = 4 * 128 * wide * 128 * size * passes / rate * gpu.sms
    busy = max(arithmetic, row.flops / rate, one_sm)
    bytes_ns = row.moved / (gpu["attention.memory_efficiency"] * gpu.memory)
    return gpu["attention.launch_ns"] + busy + bytes_ns


def decode_ns(row: Row, gpu: Gpu) -> float:
    bytes_ns = row.moved / (gpu["decode.memory_efficiency"] * gpu.memory)
    heads = row.sides[0] * gpu["decode.head_ns"] / gpu.sms
    return gpu["decode.launch_ns"] + max(bytes_ns + heads, row.flops / gpu.peak(row.dtype))


def declared_ns(row: Row, gpu: Gpu) -> float:
    flops = row.flops / (gpu["gemm.efficiency"] * gpu.peak(row.dtype))
    functions = row.dims[1] / (16 * gpu.cycles)
    bytes_ns = row.moved / (gpu["gemm.memory_efficiency"] * gpu.memory)
    return gpu["gemm.launch_ns"] + max(flops, functions, bytes_ns)


FORMULAS: dict[KernelKind, Callable[[Row, Gpu], float]] = {
    K.GEMM: product_ns,
    K.CONVOLUTION: product_ns,
    K.ATTENTION: attention_ns,
    K.ATTENTION_BACKWARD: lambda row, gpu: attention_ns(row, gpu, backward=True),
    K.ELEMENTWISE: elementwise_ns,
    K.OPTIMIZER: elementwise_ns,
    K.COPY: elementwise_ns,
    K.HOST_COPY: elementwise_ns,
    K.RANDOM: lambda row, gpu: elementwise_ns(row, gpu) + 0.3 * row.elements / gpu.cycles,
    K.REDUCTION: lambda row, gpu: bandwidth_ns(row, gpu, "elementwise", row.touched),
    K.SOFTMAX: lambda row, gpu: bandwidth_ns(row, gpu, "softmax", row.touched),
    K.NORM: norm_ns,
    K.GATHER: gather_ns,
    K.SCATTER: scatter_ns,
    K.SORT: lambda row, gpu: 4 * elementwise_ns(row, gpu),
    K.TOP_K: top_k_ns,
    K.FFT: fft_ns,
    K.DECLARED: declared_ns,
}


def test_every_kind_has_a_formula_here() -> None:
    assert set(KernelKind) - set(FORMULAS) == {K.UNPRICED}


@pytest.mark.parametrize("kind", FORMULAS)
def test_prices_are_those_of_the_formula(kind: KernelKind) -> None:
    rows = drawn_rows(kind, list(SIZES), seed=int(kind))
    found = latency_ns(columns_of(rows), GPU.chip)
    expected = [FORMULAS[kind](row, GPU) for row in rows]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("kind", sorted(set(FORMULAS) - ATTENTION))
def test_kernels_without_dimensions_are_priced(kind: KernelKind) -> None:
    rows = without_dimensions(kind)
    found = latency_ns(columns_of(rows), GPU.chip)
    np.testing.assert_allclose(found, [FORMULAS[kind](row, GPU) for row in rows], rtol=1e-9)


@pytest.mark.parametrize("kind", [K.GEMM, K.CONVOLUTION])
@pytest.mark.parametrize("flops", [0, 1, 2, 2 * 999**3])
def test_a_product_without_dimensions_is_a_cube(kind: KernelKind, flops: int) -> None:
    row = Row(kind, (0, 0, 0, 0), flops, 3_000_000, 1_000_000, 500_000)
    (found,) = latency_ns(columns_of([row]), GPU.chip)
    assert found == pytest.approx(product_ns(row, GPU), rel=1e-9)


def test_attention_without_dimensions_has_its_flops_and_bytes() -> None:
    row = Row(K.ATTENTION, (0, 0, 0, 0), 10**14, 4_000_000, 1_000_000, 10)
    (found,) = latency_ns(columns_of([row]), GPU.chip)
    rate = GPU[f"{HEAD_SIZES}64"] * GPU.peak("bf16")
    bytes_ns = 5_000_000 / (GPU["attention.memory_efficiency"] * GPU.memory)
    assert found == pytest.approx(GPU["attention.launch_ns"] + 1e14 / rate + bytes_ns)


def test_tiles_are_powers_of_two_either_way_round() -> None:
    assert len(set(TILES)) == len(TILES)
    assert {(wide, high) for high, wide in TILES} == set(TILES)
    assert all(side in (16, 32, 64, 128, 256) for tile in TILES for side in tile)
    areas = {high * wide for high, wide in TILES}
    assert (min(areas), max(areas)) == (16 * 64, 128 * 256)


def test_splits_are_powers_of_two_and_their_triples() -> None:
    assert set(SPLITS) == {s * 2**i for s in (1, 3) for i in range(5)} - {24, 48}


def test_more_kernels_than_are_priced_at_a_time() -> None:
    """Prices do not depend on what else is asked."""
    rows = drawn_rows(K.GEMM, ["bf16"], seed=7)
    many = (rows * 9000)[: 2 * 8192 + 5]
    alone = latency_ns(columns_of(rows), GPU.chip)
    np.testing.assert_array_equal(
        latency_ns(columns_of(many), GPU.chip), np.resize(alone, len(many))
    )
