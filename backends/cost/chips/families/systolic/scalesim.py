"""SCALE-Sim's cycle counts of a product of matrices on one array, in closed form.

With an array of R x C, exactly what SCALE-Sim 3.0.0 reports without a bandwidth limit:

| dataflow | stationary tile | cycles |
|---|---|---|
| os | m x n | ceil(m/R) ceil(n/C) (R + C + k - 2) - 1 |
| ws | k x n | ceil(k/R) ceil(n/C) (2R + C + m - 2) - 1 |
| is | k x m | ceil(k/R) ceil(m/C) (2R + C + n - 2) - 1 |

Every fold is loaded, filled and drained before the next one; a partial tile costs a whole one.

What an array waits for with a limit of bandwidth, SCALE-Sim follows request by request, which takes
it minutes for a layer of today. Here it is the words that its double buffers read from DRAM, on
average, over the bandwidth. An operand that fits into half of its SRAM is read once. Of a larger
one, whole halves are read on every turn of its ring:

- a streamed operand turns when the array starts over, which it does for every column of tiles, or
  for every tile that does not fit into the half; and where two tiles meet, because the skewed end of
  one lies between the start of the next: that is outside the window as often as their overlap of
  width x (width - 1) words is long, compared with the half;
- of a stationary operand the rows of a tile are asked for last one first, so each border between
  halves costs a turn.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from flint.backends.cost.chips.families.systolic.constants import systolic_of
from flint.backends.cost.chips.families.systolic.hardware import SystolicHardware, element_bytes
from flint.backends.cost.chips.kernels import Kernels
from flint.ir.arrays import Float64s, Int64s

#: Dataflows by the names of chip files.
DATAFLOWS = ("os", "ws", "is")


def folds(
    m: ArrayLike, n: ArrayLike, k: ArrayLike, rows: ArrayLike, columns: ArrayLike, dataflow: str
) -> tuple[Int64s, Int64s]:
    """How many tiles a product has, and the cycles of each. ValueError for another dataflow."""
    m, n, k, r, c = (np.asarray(x, np.int64) for x in (m, n, k, rows, columns))
    if dataflow == "os":
        return _whole(m, r) * _whole(n, c), r + c + k - 2
    if dataflow == "ws":
        return _whole(k, r) * _whole(n, c), 2 * r + c + m - 2
    if dataflow == "is":
        return _whole(k, r) * _whole(m, c), 2 * r + c + n - 2
    raise ValueError(f"dataflow '{dataflow}' is not one of {', '.join(DATAFLOWS)}")


def cycles(
    m: ArrayLike, n: ArrayLike, k: ArrayLike, rows: ArrayLike, columns: ArrayLike, dataflow: str
) -> Int64s:
    """Cycles of m x k times k x n with unlimited bandwidth, as SCALE-Sim counts them."""
    count, each = folds(m, n, k, rows, columns, dataflow)
    return np.asarray(count * each - 1, np.int64)


def gemm_ns(kernels: Kernels, hardware: SystolicHardware, dtype: str) -> Float64s:
    """Products on all arrays of a chip: tiles are dealt out evenly, each array is SCALE-Sim's.

    A third of VMEM is the double buffer of each operand and of the result; what they read comes at
    the bandwidth of memory (`dram_words`) while arrays work. One array without that limit
    has exactly `cycles`. Types that the arrays multiply faster than bf16 take so much less time.
    """
    systolic = systolic_of(hardware.chip)
    batch, m, n, k = np.maximum(kernels.dims.T, 1)
    shape = (int(hardware.rows), int(hardware.columns))
    count, each = folds(m, n, k, *shape, systolic.dataflow)
    alone = np.ceil(batch * count / hardware.arrays) * each - np.where(
        hardware.arrays > 1, 1, batch
    )
    peak = hardware.peak_flops_per_ns(dtype)
    usual = hardware.chip.peak_flops_per_s.get("bf16")
    faster = max(peak / (usual.value * 1e-9), 1.0) if usual else 1.0
    working = alone / hardware.cycles_per_ns / faster
    size = element_bytes(dtype)
    half = hardware.vmem_bytes / 3 / 2 / size
    words = batch * (dram_words(m, n, k, *shape, systolic.dataflow, half) + m * n)
    moved = np.maximum(kernels.moved_bytes, words * size)
    result: Float64s = np.maximum(working, moved / hardware.memory_bytes_per_ns)
    return result


def _whole(extent: Int64s, tile: Int64s) -> Int64s:
    return np.asarray(-(-extent // tile), np.int64)


def dram_words(
    m: Int64s, n: Int64s, k: Int64s, rows: int, columns: int, dataflow: str, half_words: float
) -> Float64s:
    """Words read for both operands of m x k times k x n, with `half_words` in half of each SRAM."""
    high = -(-(m if dataflow == "os" else k) // rows)
    wide = -(-(m if dataflow == "is" else n) // columns)
    count = high * wide
    if dataflow == "os":
        again = np.where(k * columns > half_words, high, 1)
        return _streamed(m * k, wide, count, rows, half_words) + _streamed(
            k * n, again, count, columns, half_words
        )
    moving, resting = (m * k, k * n) if dataflow == "ws" else (k * n, m * k)
    return _streamed(moving, wide, count, rows, half_words) + _stationary(resting, half_words)


def _streamed(
    words: Int64s, turns: Int64s, tiles: Int64s, width: int, half_words: float
) -> Float64s:
    meeting = np.maximum(tiles - turns, 0) * min(1.0, width * (width - 1) / half_words)
    return np.where(words <= half_words, words, _halves(words, half_words) * (turns + meeting))


def _stationary(words: Int64s, half_words: float) -> Float64s:
    turns = np.ceil(words / half_words)
    return np.where(words <= half_words, words, _halves(words, half_words) * turns)


def _halves(words: Int64s, half_words: float) -> Float64s:
    result: Float64s = np.ceil(words / half_words) * half_words
    return result
