"""Fused attention on a GPU, by head size: prefill and training, backward, and decode.

Prefill and training: blocks of 128 queries walk along the keys in blocks of 128; causal attention
leaves out blocks above the diagonal. Time is the arithmetic of those blocks at the efficiency of
the head size, never less than that of the longest block on one SM, and the bytes. Both add up:
a block loads its queries before it calculates and stores its result after:

    total = launch_ns + max(arithmetic, longest block) + bytes / (memory_efficiency * bandwidth)

The backward pass has 2.5 times the arithmetic at `attention.backward_efficiency` of forward's.

Decode, `DECODE_QUERIES` or fewer that are not causal: the bytes of keys and values, a floor, and
what each head costs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flint.backends.cost.chips.families.gpu.constants import HEAD_SIZES
from flint.backends.cost.chips.families.gpu.hardware import Float64s, GpuHardware
from flint.backends.cost.chips.kernels import Kernels
from flint.ir.dims import AttentionDims

#: Queries and keys of one block of the kernels (FlashAttention-2 and -3).
BLOCK = 128
#: FLOP of the backward pass over those of the forward pass: five products instead of two.
BACKWARD_FLOPS = 2.5
#: With so few queries per head the kernels are those of decoding: bound by the keys' bytes.
DECODE_QUERIES = 8


def attention_ns(
    kernels: Kernels, hardware: GpuHardware, dtype: str, *, backward: bool = False
) -> Float64s:
    """Latency of fused attention, all rows with `dtype`.

    A kernel without dimensions is priced by its FLOP. Raises FL705 without a peak for the type.
    """
    known = (kernels.dims > 0).all(axis=1)
    few = (
        known
        & (AttentionDims.of(kernels.dims).queries <= DECODE_QUERIES)
        & ~kernels.causal
        & (not backward)
    )
    times = np.empty(len(kernels), np.float64)
    if few.any():
        times[few] = _decode_ns(kernels.select(few), hardware, dtype)
    if not few.all():
        times[~few] = _blocks_ns(kernels.select(~few), hardware, dtype, backward)
    return times


def _blocks_ns(kernels: Kernels, hardware: GpuHardware, dtype: str, backward: bool) -> Float64s:
    c = hardware.constants
    heads, queries, keys, head_size = np.maximum(
        AttentionDims.of(kernels.dims.astype(np.float64)), 1
    )
    passes = BACKWARD_FLOPS if backward else 1.0
    efficiency = head_efficiency(hardware, head_size)
    if backward:
        efficiency = efficiency * c["attention.backward_efficiency"]
    rate = efficiency * hardware.peak_flops_per_ns(dtype)
    all_ns = 4 * heads * _block_area(queries, keys, kernels.causal) * head_size * passes / rate
    unknown = (kernels.dims <= 0).any(axis=1)
    # where values are wider than keys there is more to do than dims say
    all_ns = np.maximum(np.where(unknown, 0, all_ns), kernels.flops / rate)
    longest = BLOCK * np.ceil(keys / BLOCK) * BLOCK
    one_ns = 4 * longest * head_size * passes / rate * hardware.sms
    compute = np.maximum(all_ns, one_ns)
    bandwidth = c["attention.memory_efficiency"] * hardware.memory_bytes_per_ns
    result: Float64s = c["attention.launch_ns"] + compute + kernels.moved_bytes / bandwidth
    return result


def head_efficiency(hardware: GpuHardware, head_size: Float64s) -> Float64s:
    """Efficiency by head size: straight between the sizes that were fitted, level outside."""
    known = sorted(
        (float(name.removeprefix(HEAD_SIZES)), value)
        for name, value in hardware.constants.values.items()
        if name.startswith(HEAD_SIZES)
    )
    sizes, values = zip(*known, strict=True)
    result: Float64s = np.interp(np.log2(head_size), np.log2(sizes), values)
    return result


def _block_area(queries: Float64s, keys: Float64s, causal: NDArray[np.bool_]) -> Float64s:
    """Pairs of a query and a key in the blocks that are calculated, per head."""
    high, wide = np.ceil(queries / BLOCK) * BLOCK, np.ceil(keys / BLOCK) * BLOCK
    # the last query sees all keys: rows of blocks grow by one block up to `wide`
    first = np.maximum(wide - high + BLOCK, BLOCK)
    half = high * (np.minimum(first, wide) + wide) / 2
    result: Float64s = np.where(causal, half, high * wide)
    return result


def _decode_ns(kernels: Kernels, hardware: GpuHardware, dtype: str) -> Float64s:
    c = hardware.constants
    bandwidth = c["decode.memory_efficiency"] * hardware.memory_bytes_per_ns
    heads = np.maximum(AttentionDims.of(kernels.dims).heads, 1) / hardware.sms
    bytes_ns = kernels.moved_bytes / bandwidth + heads * c["decode.head_ns"]
    compute = kernels.flops / hardware.peak_flops_per_ns(dtype)
    result: Float64s = c["decode.launch_ns"] + np.maximum(bytes_ns, compute)
    return result
