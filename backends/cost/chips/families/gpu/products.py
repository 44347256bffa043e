"""Products of matrices on a GPU: the best tile and split, in waves, against memory.

A library gives each SM a tile of the result, walks along k, and writes the tile. The time is that
of the waves of tiles that the SMs need, joined with the time of the bytes:

    step   = max(2 h w s / (peak / SMs), feed_ns * (h + w) s elements / 32 KiB)  +  step_ns
    tile   = steps along k, of s elements, * step  +  2 h w epilogue_k / (peak / SMs)
    waves  = ceil(batch * ceil(m / h) * ceil(n / w) * split / SMs)
    memory = bytes / (memory_efficiency * bandwidth), from the L2 as far as the working set fits there
    burst  = (split_ns if split) + ((waves * tile) ^ p + memory ^ p) ^ (1 / p)

over the tiles and splits below, the smallest. A step of a tile takes the arithmetic, or what an SM
needs to take its operands in (`feed_ns` for 32 KiB: A100's fitted one is the 64 bytes per cycle of
its L2's ports), and what it waits in any case. Memory takes `MEMORY_START_NS` to get going, which
shows as far as its bytes take longer than the launch.

Then power has a word: a chip at its limit gives the arithmetic a lower clock, so that no more than
`sustained` of the peak is reached, by a product that keeps the SMs busy longer than the limit takes
to act:

    limited = (burst ^ 8 + (flops / (sustained * peak)) ^ 8) ^ (1 / 8)
    total   = launch_ns + burst + (limited - burst) * burst ^ 2 / (burst ^ 2 + power_ns ^ 2)

Products that leave SMs idle (waves, memory) draw less power, and lose less. In bursts, milliseconds
of one product replayed, `sustained` is higher than in steps that run for minutes (constants of the
library `sustained`).

On CUDA cores (f32 without TF32) tiles are 64 to 128 high and wide, thin ones for thin products, and end
in no time that shows. Batched products have one kernel, with tiles of 128 by 128: on A100 it is the
one of 2,504 products of any batch and size (NeuSight). Alignment makes no difference there.

Tensor Cores want rows that start at 16 bytes. Where n, or k of batched products (keys of attention),
is of another length, libraries that do not pad take kernels that load and store 2, 4 or 8 bytes at a
time: each takes `unaligned_cycles` of an SM, tiles are at most 128 by 128, k is not split, and a step
waits `unaligned_ns` for its loads. m is the length of no row, nor k of weight gradients (one product).

A tile's end is `epilogue_k` long, in elements of k, for a result of the operands' type that is written,
and as much longer as more bytes of result go through it: a weight gradient that is added to f32 reads and
writes 8 bytes an element instead of 2. Layouts (which operand is transposed) make no difference
that measurements show.

For growing m, n, k and bytes of one alignment every term grows, so the latency never falls. The
measurements repeat products back to back with `COPIES` weights, so small ones find everything in the
L2 (of L40S, with 96 MB, most do). Steps read it from memory: no product takes less than its bytes at
the full bandwidth of memory.
"""

from __future__ import annotations

import numpy as np

from flint.backends.cost.chips.families.gpu.hardware import GpuHardware, element_bytes
from flint.backends.cost.chips.kernels import Kernels
from flint.ir.arrays import Float64s, Int64s

#: Heights and widths of tiles where each warp multiplies (A100, L40S, MI300X): CUTLASS's.
WARP_TILES = (
    *((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (32, 128), (128, 32)),
    *((64, 32), (32, 64), (32, 32), (16, 64), (64, 16)),
)
#: And where groups of warps share an instruction whose sides are 64 to 256 and any multiple of 8.
WARP_GROUP_TILES = (
    *((256, 256), (256, 192), (192, 256), (256, 128), (128, 256), (256, 96), (96, 256)),
    *((256, 64), (64, 256), (192, 128), (128, 192), (128, 128), (96, 128), (128, 96)),
    *((64, 128), (128, 64), (64, 64), (32, 128), (128, 32), (16, 128), (128, 16)),
)
#: And of f32 on CUDA cores, on any GPU: 256 high or wide ones make errors no smaller.
CUDA_CORE_TILES = (
    *((128, 128), (128, 64), (64, 128), (64, 64)),
    *((16, 128), (128, 16)),  # of products with no more than `THIN` rows or columns
)
#: The one of batched products there, and the largest of kernels for operands that are not aligned.
COMMON_TILE = 128
#: Bytes that a row's length is a multiple of, where Tensor Cores get it as they want it.
ALIGNED_BYTES = 16
THIN = 16
SPLITS = (1, 2, 4, 8, 16, 32)
#: Weights that the measurements take in turn (benchmarks/data/aiconfigurator/README.md).
COPIES = 6
#: Share of the L2 up to which a working set stays there whole; one as large as the L2 is lost.
L2_SHARE = 0.5
#: Bytes along k that one step loads.
STEP_BYTES = 64
#: Bytes of operands that take `gemm.feed_ns`.
FED_BYTES = 1 << 15
#: Until memory gives its bandwidth. Assumed: fits of five chips give 400 to 1,100 ns.
MEMORY_START_NS = 1000.0
#: Exponent of the norm that joins a burst and what power allows: nearly the longer of both.
POWER_NORM = 8.0
#: Bytes of an element of a result that are read and written, at most: f32 that is added to f32.
MOST_RESULT_BYTES = 8
#: Rows at a time, so that the columns stay in the processor's cache.
CHUNK = 8192


def gemm_ns(kernels: Kernels, hardware: GpuHardware, dtype: str) -> Float64s:
    """Latency of products of matrices, batched or not.

    All rows calculate with `dtype`. Raises FlintError FL705 if the chip has no peak for it.
    """
    chunks = np.split(np.arange(len(kernels)), range(CHUNK, len(kernels), CHUNK))
    return np.concatenate([_chunk_ns(kernels.select(rows), hardware, dtype) for rows in chunks])


def _chunk_ns(kernels: Kernels, hardware: GpuHardware, dtype: str) -> Float64s:
    c, size = hardware.constants, element_bytes(dtype)
    shape = shape_of(kernels)
    epilogue_k = _epilogue_k(kernels, shape, hardware, size)
    compute = _compute_ns(shape, epilogue_k, hardware, dtype)
    memory = _memory_ns(kernels, shape, hardware, size)
    batch, m, n, _ = shape
    best = np.full(len(kernels), np.inf)
    p = c["gemm.overlap"]
    for i, split in enumerate(SPLITS):
        # the parts are f32, written and read once
        parts = 0.0 if split == 1 else 8.0 * batch * m * n * split / hardware.l2_bytes_per_ns
        total = _norm(compute[i], memory + parts, p) + (c["gemm.split_ns"] if split > 1 else 0)
        np.minimum(best, total, out=best)
    launch = c["gemm.launch_ns"]
    best += MEMORY_START_NS * memory / (memory + launch)
    return launch + limited_by_power(best, shape, hardware, dtype)


def limited_by_power(
    burst: Float64s, shape: Float64s, hardware: GpuHardware, dtype: str, share: float = 1.0
) -> Float64s:
    """Nanoseconds at the clock that power allows, of products that take `burst` at the full one.

    `share` is what arithmetic of the type sustains of its peak, over what products of bf16 do.
    """
    c = hardware.constants
    sustained = share * c["gemm.sustained"] * hardware.peak_flops_per_ns(dtype)
    least = 2 * shape.prod(axis=0) / sustained
    longer = _norm(burst, least, POWER_NORM) - burst
    acts = burst**2 / (burst**2 + c["gemm.power_ns"] ** 2)
    result: Float64s = burst + longer * acts
    return result


def _epilogue_k(kernels: Kernels, shape: Float64s, hardware: GpuHardware, size: float) -> Float64s:
    """A tile's start and end, in elements of k of `size` bytes, by the bytes of result."""
    batch, m, n, k = shape
    result_bytes = kernels.moved_bytes - size * batch * (m + n) * k
    each = np.clip(result_bytes / (batch * m * n), size, MOST_RESULT_BYTES) / size
    epilogue_k: Float64s = hardware.constants["gemm.epilogue_k"] * each
    return epilogue_k


def shape_of(kernels: Kernels) -> Float64s:
    """Rows batch, m, n, k; a product without dimensions is a cube of as many FLOP."""
    shape = kernels.dims.T.astype(np.float64)
    unknown = (shape[1:] <= 0).any(axis=0)
    shape[1:, unknown] = np.cbrt(np.maximum(kernels.flops[unknown], 2) / 2)
    return np.maximum(shape, 1)


def _compute_ns(
    shape: Float64s, epilogue_k: Float64s, hardware: GpuHardware, dtype: str
) -> Float64s:
    """The best tile's waves, for each split."""
    c, size = hardware.constants, element_bytes(dtype)
    scalar = hardware.is_on_cuda_cores(dtype)
    rate = c["gemm.efficiency"] * hardware.peak_flops_per_ns(dtype) / hardware.sms
    batch, m, n, k = shape
    step = STEP_BYTES / size
    steps = [np.ceil(k / split / step) for split in SPLITS]
    best = np.full((len(SPLITS), len(k)), np.inf)
    access = _access_bytes(shape, size)
    unaligned = (access < ALIGNED_BYTES) & (not scalar and c["gemm.unaligned_cycles"] > 0)
    access_ns = c["gemm.unaligned_cycles"] / hardware.cycles_per_ns / access * unaligned
    matrix_tiles = WARP_GROUP_TILES if hardware.has_warp_groups else WARP_TILES
    for height, width in CUDA_CORE_TILES if scalar else matrix_tiles:
        tiles = np.ceil(m / height) * np.ceil(n / width) * batch / hardware.sms
        fed = c["gemm.feed_ns"] * (height + width) * STEP_BYTES / FED_BYTES
        step_ns = max(2 * height * width * step / rate, fed) + c["gemm.step_ns"]
        loads_ns = access_ns * (height + width) * STEP_BYTES
        loads_ns = np.maximum(loads_ns, c["gemm.unaligned_ns"] * unaligned)
        end_ns = access_ns * height * width * size
        end_ns += 0.0 if scalar else 2 * height * width / rate * epilogue_k
        small, large = sorted((height, width))
        unfit = unaligned & (large > COMMON_TILE)
        if scalar:
            thick = (small <= THIN) & (np.minimum(m, n) > THIN)
            unfit = thick | ((batch > 1) & (small < COMMON_TILE))
        tile_ns = np.where(unfit, np.inf, end_ns)
        for i, split in enumerate(SPLITS):
            waves_ns = np.ceil(tiles * split) * (steps[i] * np.maximum(step_ns, loads_ns) + tile_ns)
            np.minimum(best[i], waves_ns, out=best[i])
    best[1:, unaligned | (scalar & (batch > 1))] = np.inf
    return best


def _access_bytes(shape: Float64s, size: float) -> Int64s:
    """Bytes at a time that the starts of all rows allow; products with vectors have other kernels."""
    batch, m, n, k = (size * shape).astype(np.int64)
    bytes_of_n = np.gcd(n, ALIGNED_BYTES)
    bytes_of_both = np.where(batch > size, np.gcd(bytes_of_n, k), bytes_of_n)
    return np.where(np.minimum(m, n) > size, bytes_of_both, ALIGNED_BYTES)


def _memory_ns(kernels: Kernels, shape: Float64s, hardware: GpuHardware, size: float) -> Float64s:
    """Bytes over bandwidth, from the L2 as far as they stay there."""
    c = hardware.constants
    batch, _, n, k = shape
    working_set = kernels.moved_bytes + (COPIES - 1) * size * batch * n * k
    resident = np.clip(2 - working_set / (L2_SHARE * hardware.l2_bytes), 0, 1)
    floor = kernels.moved_bytes / hardware.memory_bytes_per_ns
    slow = floor / c["gemm.memory_efficiency"]
    fast = kernels.moved_bytes / hardware.l2_bytes_per_ns
    result: Float64s = np.maximum(resident * fast + (1 - resident) * slow, floor)
    return result


def _norm(a: Float64s, b: Float64s, p: float) -> Float64s:
    high, low = np.maximum(a, b), np.minimum(a, b)
    result: Float64s = high * (1 + (low / high) ** p) ** (1 / p)
    return result
