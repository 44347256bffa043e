"""Prices of kernels on a GPU against the formulas of their docstrings, one kernel at a time.

Here are plain numbers and loops instead of columns. Shapes are drawn from a seed: they reach each
case of a formula, such as products that stay in the L2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from flint.backends.cost.chips.families.gpu.constants import HEAD_SIZES, constants_of
from flint.backends.cost.chips.families.gpu.products import (
    CUDA_CORE_TILES,
    SPLITS,
    WARP_GROUP_TILES,
    WARP_TILES,
)
from flint.backends.cost.chips.kernels import KernelKind
from flint.backends.cost.chips.model import latency_ns
from flint.backends.cost.software import with_stack
from flint.cluster.models import Chip, Cluster
from flint.cluster.stack import Stack
from tests.kernel_rows import Row, columns_of, drawn_rows, without_dimensions

K = KernelKind
ATTENTION = {K.ATTENTION, K.ATTENTION_BACKWARD}
#: Kinds that have models of their own for numbers of 8 bits (tests/core/passes/test_quantised_products.py).
NARROW_APART = {K.GEMM, K.ELEMENTWISE}
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
    each = 64 // size  # elements of k in a step
    steps = math.ceil(k / split / each)
    result = (row.moved - size * batch * (m + n) * k) / (batch * m * n)  # bytes of an element
    end = per_k * gpu["gemm.epilogue_k"] * min(max(result, size), 8) / size
    if row.dtype == "f32":  # on CUDA cores, in no time that shows
        end = 0.0
    taken_in = gpu["gemm.feed_ns"] * (height + width) * 64 / 32768
    one = steps * (max(per_k * each, taken_in) + gpu["gemm.step_ns"]) + end
    tiles = batch * math.ceil(m / height) * math.ceil(n / width)
    return math.ceil(tiles * split / gpu.sms) * one


def from_memory_ns(row: Row, gpu: Gpu) -> float:
    batch, _, n, k = row.dims
    working_set = row.moved + 5 * SIZES[row.dtype] * batch * n * k  # six weights in turn
    stays = min(max(2 - working_set / (gpu.l2_bytes / 2), 0), 1)
    slow = row.moved / (gpu["gemm.memory_efficiency"] * gpu.memory)
    return max(stays * row.moved / gpu.l2 + (1 - stays) * slow, row.moved / gpu.memory)


def tiles_for(row: Row) -> list[tuple[int, int]]:
    """Those of groups of warps; on CUDA cores large ones, and thin ones for thin products."""
    if row.dtype != "f32":
        return list(WARP_GROUP_TILES)
    batch, m, n, _ = row.dims
    if batch > 1:
        return [(128, 128)]
    return [tile for tile in CUDA_CORE_TILES if min(tile) > 16 or min(m, n) <= 16]


def product_ns(row: Row, gpu: Gpu) -> float:
    if 0 in row.dims[1:]:
        side = max((max(row.flops, 2) / 2) ** (1 / 3), 1)
        row = row.with_dims((1, side, side, side))
    batch, m, n, _ = row.dims
    memory, p, best = from_memory_ns(row, gpu), gpu["gemm.overlap"], math.inf
    for split in (1,) if row.dtype == "f32" and batch > 1 else SPLITS:
        waves = min(tile_ns(row, high, wide, split, gpu) for high, wide in tiles_for(row))
        bytes_ns, extra = memory, 0.0
        if split > 1:  # parts in f32, written and read
            bytes_ns += 2 * 4 * batch * m * n * split / gpu.l2
            extra = gpu["gemm.split_ns"]
        best = min(best, (waves**p + bytes_ns**p) ** (1 / p) + extra)
    launch = gpu["gemm.launch_ns"]
    return limited_ns(row, best + 1000 * memory / (memory + launch), gpu) + launch


def convolution_ns(row: Row, gpu: Gpu) -> float:
    """One product or, backward, two; those of each channel alone are loads of a number each."""
    batch, m, n, k = row.dims
    if batch > 1 and n == 1:
        return elementwise_ns(row, gpu) + row.flops / 2 / (32 * gpu.cycles)
    products = 2 if 0 < 2 * math.prod(row.dims) < row.flops / 1.5 else 1
    inputs = row.read - SIZES[row.dtype] * batch * n * k
    overlap = SIZES[row.dtype] * batch * m * k > 1.01 * max(inputs, 1)
    each = gpu["convolution.launch_ns"] + overlap * gpu["convolution.window_ns"]
    each += (product_ns(row, gpu) - gpu["gemm.launch_ns"]) / gpu["convolution.efficiency"]
    copied = 2 * gpu["convolution.layouts"] * row.moved
    return products * each + copied / (gpu["elementwise.memory_efficiency"] * gpu.memory)


def limited_ns(row: Row, burst: float, gpu: Gpu) -> float:
    """At the clock that power allows."""
    flops = 2 * math.prod(row.dims)
    least = flops / (gpu["gemm.sustained"] * gpu.peak(row.dtype))
    limited = (burst**8 + least**8) ** (1 / 8)
    return burst + (limited - burst) * burst**2 / (burst**2 + gpu["gemm.power_ns"] ** 2)


def bandwidth_ns(row: Row, gpu: Gpu, model: str, elements: float) -> float:
    bytes_ns = row.moved / (gpu[f"{model}.memory_efficiency"] * gpu.memory)
    return gpu[f"{model}.launch_ns"] + bytes_ns + elements * gpu[f"{model}.cycles"] / gpu.cycles


def elementwise_ns(row: Row, gpu: Gpu, model: str = "elementwise", indexed: bool = False) -> float:
    """A launch, and bytes beside the places that are found, joined by norms."""
    launch = gpu[f"{model}.launch_ns"]
    streaming = bandwidth_ns(row, gpu, model, row.elements) - launch
    places = row.elements * gpu[f"{model}.indexed_cycles"] / gpu.cycles if indexed else 0.0
    return (launch**1.5 + math.hypot(streaming, places) ** 1.5) ** (1 / 1.5)


def streamed_ns(row: Row, gpu: Gpu) -> float:
    return bandwidth_ns(row, gpu, "elementwise", row.elements)


def per_byte_ns(gpu: Gpu) -> float:
    return 1 / (gpu["elementwise.memory_efficiency"] * gpu.memory)


def softmax_ns(row: Row, gpu: Gpu) -> float:
    streamed = bandwidth_ns(row, gpu, "softmax", row.touched)
    if row.dims[3] <= 1024:
        return streamed
    width, longer = row.written / max(row.elements, 1), gpu["softmax.long_bytes"]
    if longer > 1 and row.dims[3] * width % 16:  # loaded one by one, like f32
        longer *= 4 / min(max(width, 1), 4)
    again = row.moved * (longer - 1)
    return streamed + again / (gpu["softmax.memory_efficiency"] * gpu.memory)


def norm_ns(row: Row, gpu: Gpu) -> float:
    """Of a row longer than what stays near an SM up to all is read again."""
    rows, columns = max(row.dims[1], 1), row.dims[3]
    again = min(max(row.read / rows / gpu["norm.near_bytes"] - 1, 0), 1) * row.read
    bandwidth = gpu["norm.memory_efficiency"] * gpu.memory
    reads = columns * max(row.read / max(row.written, 1), 1)
    cycles = gpu["norm.row_cycles"] + reads * gpu["norm.element_cycles"]
    clock = gpu.cycles / gpu.sms
    total = (row.moved + again) / bandwidth + max(rows / gpu.sms, 1) * cycles / clock
    total += gpu["norm.long_ns"] if columns > 1024 else 0
    if row.read - 8 * columns <= 1.5 * row.written:
        return total + gpu["norm.launch_ns"]
    walk = rows * gpu["norm.backward_row_cycles"] / clock
    weight = max(row.read * gpu["norm.backward_reads"] / bandwidth, walk)
    return total + gpu["norm.backward_launch_ns"] + weight


def gather_ns(row: Row, gpu: Gpu) -> float:
    """A row that is read and written moves a sector of 32 bytes at least."""
    padding = max(2 * 32 * row.dims[1] - row.moved, 0)
    return streamed_ns(row, gpu) + padding * per_byte_ns(gpu)


def scatter_ns(row: Row, gpu: Gpu) -> float:
    """A place that is read and written moves a sector of 32 bytes at least, both ways."""
    place_bytes = row.written / max(row.elements, 1) * row.dims[3]
    padding = 2 * row.dims[1] * max(32 - place_bytes, 0)
    return streamed_ns(row, gpu) + padding * per_byte_ns(gpu)


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
    read, cached = (0.0, 0) if backward else keys_read(row)
    group = 2 * SIZES[row.dtype] * heads * keys * size / read if read else 1.0
    late = 1.0 if backward else min((queries - 1) / 15, 1)  # from decoding to prefill
    rows = 128 if backward else gpu["attention.rows"]
    packed = group ** (1 - late * (1 - gpu["attention.packed"]))
    turns = heads / packed * max(packed * queries / rows, 1) / gpu.sms
    rate = arithmetic_rate(row, gpu, backward=backward)
    full = 4 * rows * (size if backward else width_of(row)) / rate * gpu.sms
    if backward and row.dtype.startswith("f8"):
        scores = rows * gpu["attention-fp8.backward_score_cycles"] / gpu.cycles * gpu.sms
        full = (full**3 + scores**3) ** (1 / 3)
    loads = 2 * SIZES[row.dtype] * size / (gpu["decode.sm_share"] * gpu.memory) * gpu.sms
    per_key, alone = (
        max(full * min(max(heads_in * queries / rows, 0.1), 1), loads)
        for heads_in in (packed, group)
    )
    ends = between(gpu, "decode.head_ns", "attention.tile_ns", late)
    ends *= 1 + 0.3 * (size / 128 - 1)
    unseen = 0.0  # by a causal tile, on average
    if row.causal:
        unseen = max(min(queries, keys) - min(rows / packed, queries, keys), 0) / 2
    average = (keys - unseen) * per_key + ends
    splitting = 0.0 if backward else min(max(1 - math.log2(max(queries / 128, 1)) / 3, 0), 1)
    most = max(keys / gpu["decode.split_keys"], 1)
    last = (math.floor(turns) + min((turns - math.floor(turns)) / 0.5, 1) - turns) * average
    if row.causal:
        tail = 0.5 if backward else gpu["attention.tail"]
        last = tail * (keys * per_key / 2 + ends)
    work = max(
        turns * average + (1 - splitting) * last,
        keys * per_key / max(1 / turns, 1) ** splitting + ends,
        keys * alone / most**splitting + ends,
        row.flops / rate / (2.5 if backward else 1),
    )
    moving = min(read, row.read) / gpu["decode.memory_efficiency"] / gpu.memory
    others = max(row.moved - 2 * cached - min(read, row.read), 0)
    moving += others / gpu["attention.memory_efficiency"] / gpu.memory
    adding = 0.0 if backward else min(gpu["decode.split_ns"], full * keys * (1 - 1 / most) / 2)
    p = gpu["attention.overlap"]
    return (
        between(gpu, "decode.launch_ns", "attention.launch_ns", late)
        + max(work, moving) * (1 + (min(work, moving) / max(work, moving)) ** p) ** (1 / p)
        + 2 * cached / (gpu["attention.cache_efficiency"] * gpu.memory)
        + adding
    )


def keys_read(row: Row) -> tuple[float, int]:
    """Bytes of keys and values, and of new ones: they are written beside the result."""
    heads, queries, keys, size = row.dims
    result = SIZES[row.dtype] * heads * queries * size
    cached = min(max(row.written - result, 0), row.read)
    pairs = 2 * SIZES[row.dtype] * heads * keys * size
    return min(max(row.read - result - cached, pairs / heads), pairs), cached


def width_of(row: Row) -> float:
    """The mean size of a key and a value."""
    heads, queries, keys, size = row.dims
    told = row.flops / ((2 if row.causal else 4) * heads * queries * keys * size)
    return size * (min(max(told, 0.75), 1) if row.flops else 1)


def arithmetic_rate(row: Row, gpu: Gpu, *, backward: bool) -> float:
    sizes = (64, 128, 192, 256, 512)
    known = [gpu[f"{HEAD_SIZES}{s}"] for s in sizes]
    size = min(row.dims[3], 128) if backward else row.dims[3]
    rate = float(np.interp(math.log2(size), [math.log2(s) for s in sizes], known))
    narrow, peak = row.dtype.startswith("f8"), gpu.peak(row.dtype) * gpu["attention.sustained"]
    if backward:
        return (1.0 if narrow else rate * gpu["attention.backward_efficiency"]) * peak / 2.5
    return rate * peak * (gpu["attention-fp8.peak_share"] if narrow else 1)


def between(gpu: Gpu, decoding: str, prefill: str, late: float) -> float:
    """From decoding's constant to that of prefill, which is no less."""
    return gpu[decoding] + late * max(gpu[prefill] - gpu[decoding], 0)


def declared_ns(row: Row, gpu: Gpu) -> float:
    flops = row.flops / (gpu["gemm.efficiency"] * gpu.peak(row.dtype))
    functions = row.dims[1] / (16 * gpu.cycles)
    bytes_ns = row.moved / (gpu["gemm.memory_efficiency"] * gpu.memory)
    return gpu["gemm.launch_ns"] + max(flops, functions, bytes_ns)


FORMULAS: dict[KernelKind, Callable[[Row, Gpu], float]] = {
    K.GEMM: product_ns,
    K.CONVOLUTION: convolution_ns,
    K.ATTENTION: attention_ns,
    K.ATTENTION_BACKWARD: lambda row, gpu: attention_ns(row, gpu, backward=True),
    K.ELEMENTWISE: elementwise_ns,
    K.OPTIMIZER: elementwise_ns,
    K.COPY: elementwise_ns,
    K.HOST_COPY: elementwise_ns,
    K.RANDOM: lambda row, gpu: elementwise_ns(row, gpu) + 0.3 * row.elements / gpu.cycles,
    K.REDUCTION: lambda row, gpu: bandwidth_ns(row, gpu, "elementwise", row.touched),
    K.SOFTMAX: softmax_ns,
    K.NORM: norm_ns,
    K.GATHER: gather_ns,
    K.SCATTER: scatter_ns,
    K.SORT: lambda row, gpu: 4 * streamed_ns(row, gpu),
    K.TOP_K: top_k_ns,
    K.FFT: fft_ns,
    K.DECLARED: declared_ns,
}


LIBRARIES = [
    (name, gpu)
    for name in ("pytorch-eager", "inductor")
    for gpu in (Gpu(with_stack(Cluster.load("mi300x"), Stack.load(name)).chip),)
]


@pytest.mark.parametrize("kind", [K.ELEMENTWISE, K.COPY])
@pytest.mark.parametrize(("name", "gpu"), LIBRARIES)
def test_places_are_found_one_by_one_in_kernels_of_the_library_that_does(
    kind: KernelKind, name: str, gpu: Gpu
) -> None:
    rows = drawn_rows(kind, ["bf16", "f32"], seed=int(kind))
    plain = columns_of(rows)
    found = latency_ns(replace(plain, indexed=np.ones(len(rows), np.bool_)), gpu.chip)
    model = "copy" if kind == K.COPY else "elementwise"
    expected = [elementwise_ns(row, gpu, model, indexed=True) for row in rows]
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert (found > latency_ns(plain, gpu.chip)).all() == (name == "pytorch-eager")


@pytest.mark.parametrize("kind", [K.NORM, K.SOFTMAX])
@pytest.mark.parametrize(("name", "gpu"), LIBRARIES)
def test_rows_are_those_of_the_library(kind: KernelKind, name: str, gpu: Gpu) -> None:
    rows = drawn_rows(kind, ["bf16", "f32"], seed=int(kind) + 1)
    found = latency_ns(columns_of(rows), gpu.chip)
    np.testing.assert_allclose(found, [FORMULAS[kind](row, gpu) for row in rows], rtol=1e-9)


@pytest.mark.long
def test_convolutions_of_pytorch_have_kernels_around_them() -> None:
    gpu = Gpu(with_stack(Cluster.load("h100-dgx"), Stack.load("pytorch-eager")).chip)
    rows = drawn_rows(K.CONVOLUTION, ["bf16", "f32"], seed=7)
    rows += [replace(row, flops=2 * row.flops) for row in rows]
    found = latency_ns(columns_of(rows), gpu.chip)
    np.testing.assert_allclose(found, [convolution_ns(row, gpu) for row in rows], rtol=1e-9)


def test_every_kind_has_a_formula_here() -> None:
    assert set(KernelKind) - set(FORMULAS) == {K.UNPRICED}


@pytest.mark.parametrize("kind", FORMULAS)
def test_prices_are_those_of_the_formula(kind: KernelKind) -> None:
    types = [t for t in SIZES if not (t.startswith("f8") and kind in NARROW_APART)]
    rows = drawn_rows(kind, types, seed=int(kind))
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
    assert found == pytest.approx(GPU["decode.launch_ns"] + 1e14 / rate, rel=1e-4)


@pytest.mark.parametrize("tiles", [WARP_TILES, WARP_GROUP_TILES, CUDA_CORE_TILES])
def test_tiles_lie_either_way_round(tiles: tuple[tuple[int, int], ...]) -> None:
    assert len(set(tiles)) == len(tiles)
    assert {(wide, high) for high, wide in tiles} == set(tiles)
    assert all(side in (16, 32, 64, 96, 128, 192, 256) for tile in tiles for side in tile)


def test_only_groups_of_warps_have_one_long_side_of_each_tile() -> None:
    assert all(max(tile) >= 64 for tile in WARP_GROUP_TILES)
    assert max(high * wide for high, wide in WARP_TILES) == 128 * 256
    assert max(high * wide for high, wide in WARP_GROUP_TILES) == 256 * 256


def test_splits_are_powers_of_two() -> None:
    assert SPLITS == (1, 2, 4, 8, 16, 32)


def test_more_kernels_than_are_priced_at_a_time() -> None:
    """Prices do not depend on what else is asked."""
    rows = drawn_rows(K.GEMM, ["bf16"], seed=7)
    many = (rows * 9000)[: 2 * 8192 + 5]
    alone = latency_ns(columns_of(rows), GPU.chip)
    np.testing.assert_array_equal(
        latency_ns(columns_of(many), GPU.chip), np.resize(alone, len(many))
    )
