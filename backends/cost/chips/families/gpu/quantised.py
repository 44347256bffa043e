"""Products of numbers of 8 and 4 bits with scales on a GPU, and the kernels that make such numbers.

Their kernels are other ones than those of bf16: written for a few tiles, never split along k. One of three sets of constants stands for each way of scaling:

| set | operands |
|---|---|
| `fp8` | 8 bits, a scale for each tensor, row or column |
| `fp8-block` | 8 bits, a scale for each block of k (`f8E4M3FN:block`): DeepSeek's, MXFP8 |
| `fp4` | 4 bits, which always have a scale for each block: NVFP4, MXFP4 |

The time is that of waves of tiles joined with that of the bytes:

    tile   = (2 h w (k + epilogue_k)) / (efficiency * peak / SMs)  +  step_ns * steps along k
    waves  = ceil(batch * ceil(m / h) * ceil(n / w) / SMs)
    memory = (reads + writes / WRITES) / (memory_efficiency * bandwidth)
    burst  = ((waves * tile)^2 + memory^2)^(1/2)

with the best of `TILES` no narrower than `least_width`; a library that has one tile for a number of
rows says up to how many rows it is the narrow one (`narrow_rows`). Nothing is taken to be in the L2.
Power limits a burst as it does in `gpu.products`, with `power_share` of what bf16 sustains of its
peak; the start (`launch_ns`) and what the scales of columns take (`column_ns`) come on top.

What such numbers are made of is read once, its largest magnitude found, and the result written:
launch_ns + bytes / (memory_efficiency * bandwidth), `quantise.*`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flint.backends.cost.chips.families.gpu.hardware import GpuHardware, element_bytes
from flint.backends.cost.chips.families.gpu.memory import bandwidth_ns, elementwise_ns
from flint.backends.cost.chips.families.gpu.products import limited_by_power, shape_of
from flint.backends.cost.chips.kernels import Kernels
from flint.ir.arrays import Float64s
from flint.ir.dims import ProductDims
from flint.ir.product_types import is_by_block

#: Heights and widths of tiles.
TILES = (
    *((256, 256), (256, 128), (128, 256), (128, 128), (64, 128)),
    *((64, 256), (256, 64), (128, 64), (64, 64)),
)
#: Bytes along k that one step loads.
STEP_BYTES = 128
#: Rows up to which a library that chooses by rows alone has tiles of 64 by 64.
FEW_ROWS = 64
#: Exponent of the norm that joins arithmetic and memory, and the speed of writes over that of reads:
#: the rows do not tell them from the other constants.
OVERLAP, WRITES = 2.0, 0.9
#: Beginnings of the types' names.
NARROW = ("f8", "f4")


def constants_for(dtype: str) -> str:
    """The set of constants for products of a type: "fp8", "fp8-block" or "fp4"."""
    if dtype.startswith("f4"):
        return "fp4"
    return "fp8-block" if is_by_block(dtype) else "fp8"


def quantised_product_ns(kernels: Kernels, hardware: GpuHardware, dtype: str) -> Float64s:
    """Latency of products of numbers of 8 or 4 bits, all rows with `dtype`.

    A product without dimensions is a cube of as many FLOP. Raises FL705 without a peak for the type.
    """
    c, model = hardware.constants, constants_for(dtype)
    shape = ProductDims.of(shape_of(kernels).T)
    compute = waves_ns(shape, hardware, dtype)
    moved = kernels.read_bytes + kernels.written_bytes / WRITES
    memory = moved / (c[f"{model}.memory_efficiency"] * hardware.memory_bytes_per_ns)
    joined = (compute**OVERLAP + memory**OVERLAP) ** (1 / OVERLAP)
    limited = limited_by_power(
        joined, np.stack(shape), hardware, dtype, share=c[f"{model}.power_share"]
    )
    result: Float64s = c[f"{model}.launch_ns"] + c[f"{model}.column_ns"] * shape.n + limited
    return result


def waves_ns(shape: ProductDims[Float64s], hardware: GpuHardware, dtype: str) -> Float64s:
    """The time of the tiles on all SMs: with the best tile, or with that which the rows choose."""
    c, model = hardware.constants, constants_for(dtype)
    rows = c[f"{model}.narrow_rows"]
    if rows:
        return _with_tile(shape, hardware, dtype, *_by_rows(shape.m, rows))
    best = np.full(len(shape.m), np.inf)
    for height, width in TILES:
        if width >= c[f"{model}.least_width"]:
            sizes = np.array([height]), np.array([width])
            np.minimum(best, _with_tile(shape, hardware, dtype, *sizes), out=best)
    return best


def _by_rows(m: Float64s, narrow_rows: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Height and width of the tile of a library that looks at the rows alone."""
    return np.where(m > narrow_rows, 128, 64), np.where(m > FEW_ROWS, 128, 64)


def _with_tile(
    shape: ProductDims[Float64s],
    hardware: GpuHardware,
    dtype: str,
    height: NDArray[np.int64],
    width: NDArray[np.int64],
) -> Float64s:
    c, model, size = hardware.constants, constants_for(dtype), element_bytes(dtype)
    rate = c[f"{model}.efficiency"] * hardware.peak_flops_per_ns(dtype) / hardware.sms
    batch, m, n, k = shape
    step = STEP_BYTES / size
    flops_per_k = 2 * height * width / rate
    steps = np.ceil(k / step)
    tile = steps * (flops_per_k * step + c[f"{model}.step_ns"])
    tile += flops_per_k * c[f"{model}.epilogue_k"]
    tiles = np.ceil(m / height) * np.ceil(n / width) * batch
    result: Float64s = np.ceil(tiles / hardware.sms) * tile
    return result


def elementwise_or_quantising_ns(kernels: Kernels, hardware: GpuHardware) -> Float64s:
    """Element-wise kernels; those whose result is of 8 or 4 bits with scales quantize."""
    narrow = [at for at, name in enumerate(kernels.dtypes) if name.startswith(NARROW)]
    if not narrow:
        return elementwise_ns(kernels, hardware)
    quantises = np.isin(kernels.dtype, narrow)
    times = np.empty(len(kernels), np.float64)
    times[~quantises] = elementwise_ns(kernels.select(~quantises), hardware)
    times[quantises] = quantise_ns(kernels.select(quantises), hardware)
    return times


def quantise_ns(kernels: Kernels, hardware: GpuHardware) -> Float64s:
    """A pass that finds the largest magnitudes and writes narrow numbers and their scales."""
    return bandwidth_ns(kernels, hardware, "quantise", kernels.elements.astype(np.float64))
