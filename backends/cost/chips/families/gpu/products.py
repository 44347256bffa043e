"""Products of matrices on a GPU: the best tile and split, in waves, against memory.

A library gives each SM a tile of the result, walks along k, and writes the tile. The time is that
of the waves of tiles that the SMs need, joined with the time of the bytes:

    tile   = (2 h w (k + epilogue_k)) / (efficiency * peak / SMs)  +  step_ns * steps along k
    waves  = ceil(batch * ceil(m / h) * ceil(n / w) * split / SMs)
    memory = reads / (memory_efficiency * bandwidth), writes slower by write_efficiency,
             from the L2 as far as the working set is in its share of it
    total  = launch_ns + (split_ns if split) + ((waves * tile) ^ p + memory ^ p) ^ (1 / p)

over the tiles and splits below, the smallest; waves * tile is up to `throttle` longer when it takes
milliseconds, as the clock falls. For growing m, n, k and bytes every term grows, so
the latency never falls. The measurements repeat products back to back with `COPIES` weights, so
small ones find everything in the L2 (of L40S, with 96 MB, most do). Steps read it from memory: no
product takes less than its bytes at the full bandwidth of memory.
"""

from __future__ import annotations

import numpy as np

from flint.backends.cost.chips.families.gpu.hardware import Float64s, GpuHardware, element_bytes
from flint.backends.cost.chips.kernels import Kernels

#: Heights and widths of tiles that libraries have for 2-byte elements.
TILES = (
    *((256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128)),
    *((64, 64), (32, 128), (128, 32), (64, 32), (32, 64), (16, 64), (64, 16)),
)
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
#: Weights that the measurements take in turn (benchmarks/data/aiconfigurator/README.md).
COPIES = 6
#: Bytes along k that one step loads.
STEP_BYTES = 128
#: How long a product runs until half of the fall of the clock shows.
THROTTLE_NS = 1e6
#: Rows at a time, so that the columns stay in the processor's cache.
CHUNK = 8192


def gemm_ns(kernels: Kernels, hardware: GpuHardware, dtype: str) -> Float64s:
    """Latency of products of matrices, batched or not, and of convolutions as such products.

    All rows calculate with `dtype`. Raises FlintError FL705 if the chip has no peak for it.
    """
    times = np.empty(len(kernels), np.float64)
    for start in range(0, len(kernels), CHUNK):
        rows = slice(start, start + CHUNK)
        times[rows] = _chunk_ns(
            kernels.select(np.arange(*rows.indices(len(kernels)))), hardware, dtype
        )
    return times


def convolution_ns(kernels: Kernels, hardware: GpuHardware, dtype: str) -> Float64s:
    """A convolution as the product of the same sizes, at `convolution.efficiency` of its speed."""
    c = hardware.constants
    launch, all_of_it = c["gemm.launch_ns"], gemm_ns(kernels, hardware, dtype)
    if c["convolution.efficiency"] == 1:
        return all_of_it
    result: Float64s = launch + (all_of_it - launch) / c["convolution.efficiency"]
    return result


def _chunk_ns(kernels: Kernels, hardware: GpuHardware, dtype: str) -> Float64s:
    c, size = hardware.constants, element_bytes(dtype)
    shape = _shape(kernels)
    compute = _compute_ns(shape, hardware, dtype)
    throttle = c["gemm.throttle"]
    compute *= 1 + throttle * compute / (compute + THROTTLE_NS)
    memory = _memory_ns(kernels, shape, hardware, size)
    _, m, n, _ = shape
    best = np.full(len(kernels), np.inf)
    p = c["gemm.overlap"]
    for i, split in enumerate(SPLITS):
        # the parts are f32, written and read once
        parts = 0.0 if split == 1 else 8.0 * shape[0] * m * n * split / hardware.l2_bytes_per_ns
        total = _norm(compute[i], memory + parts, p) + (c["gemm.split_ns"] if split > 1 else 0)
        np.minimum(best, total, out=best)
    return best + c["gemm.launch_ns"]


def _shape(kernels: Kernels) -> Float64s:
    """Rows batch, m, n, k; a product without dimensions is a cube of as many FLOP."""
    shape = kernels.dims.T.astype(np.float64)
    unknown = (shape[1:] <= 0).any(axis=0)
    shape[1:, unknown] = np.cbrt(np.maximum(kernels.flops[unknown], 2) / 2)
    return np.maximum(shape, 1)


def _compute_ns(shape: Float64s, hardware: GpuHardware, dtype: str) -> Float64s:
    """The best tile's waves, for each split."""
    c, size = hardware.constants, element_bytes(dtype)
    rate = c["gemm.efficiency"] * hardware.peak_flops_per_ns(dtype) / hardware.sms
    batch, m, n, k = shape
    step = STEP_BYTES / size
    steps = [np.ceil(k / split / step) for split in SPLITS]
    epilogue = c["gemm.epilogue_k"] * 2 / size
    best = np.full((len(SPLITS), len(k)), np.inf)
    for height, width in TILES:
        tiles = np.ceil(m / height) * np.ceil(n / width) * batch
        flops_per_k = 2 * height * width / rate
        for i, split in enumerate(SPLITS):
            tile = steps[i] * (flops_per_k * step + c["gemm.step_ns"]) + flops_per_k * epilogue
            np.minimum(best[i], np.ceil(tiles * split / hardware.sms) * tile, out=best[i])
    return best


def _memory_ns(kernels: Kernels, shape: Float64s, hardware: GpuHardware, size: int) -> Float64s:
    """Bytes over bandwidth, from the L2 as far as they stay there."""
    c = hardware.constants
    batch, _, n, k = shape
    working_set = kernels.moved_bytes + (COPIES - 1) * size * batch * n * k
    resident = np.clip(2 - working_set / (c["gemm.l2_share"] * hardware.l2_bytes), 0, 1)
    from_memory = kernels.read_bytes + kernels.written_bytes / c["gemm.write_efficiency"]
    slow = from_memory / (c["gemm.memory_efficiency"] * hardware.memory_bytes_per_ns)
    fast = kernels.moved_bytes / hardware.l2_bytes_per_ns
    floor = kernels.moved_bytes / hardware.memory_bytes_per_ns
    result: Float64s = np.maximum(resident * fast + (1 - resident) * slow, floor)
    return result


def _norm(a: Float64s, b: Float64s, p: float) -> Float64s:
    high, low = np.maximum(a, b), np.minimum(a, b)
    result: Float64s = high * (1 + (low / high) ** p) ** (1 / p)
    return result
