"""Fused attention on a TPU: training and prefill by arithmetic, decode by the keys' bytes.

Both products of attention have the head size as one side of a tile: a head of 128 elements fills
half of an array of 256. No public measurements of training kernels are known: their efficiency
over such padded products is assumed. Decode was measured on a serving kernel with paged keys.
"""

from __future__ import annotations

import numpy as np

from flint.backends.cost.kernels import Kernels
from flint.backends.cost.systolic.hardware import Float64s, Hardware

#: Queries and keys of one block. Assumed: MaxText configures 512 and more.
BLOCK = 512
#: Products of the backward pass over those of the forward pass: five instead of two.
BACKWARD_FLOPS = 2.5
#: With so few queries per head a kernel decodes: it is bound by the keys' bytes.
DECODE_QUERIES = 8


def attention_ns(
    kernels: Kernels, hardware: Hardware, dtype: str, *, backward: bool = False
) -> Float64s:
    """Latency of fused attention, all rows with `dtype`. Raises FL705 without a peak for it."""
    few = (kernels.dims[:, 1] <= DECODE_QUERIES) & ~kernels.causal & (not backward)
    times = np.empty(len(kernels), np.float64)
    times[few] = _decode_ns(kernels.select(few), hardware)
    times[~few] = _blocks_ns(kernels.select(~few), hardware, dtype, backward)
    return times


def _blocks_ns(kernels: Kernels, hardware: Hardware, dtype: str, backward: bool) -> Float64s:
    c = hardware.constants
    heads, queries, keys, head_size = np.maximum(kernels.dims.T.astype(np.float64), 1)
    scores = np.ceil(head_size / hardware.rows) * hardware.rows  # k of queries x keys
    values = np.ceil(head_size / hardware.columns) * hardware.columns  # n of scores x values
    flops = 2 * heads * _pairs(kernels, queries, keys) * (scores + values)
    rate = c["attention.efficiency"] * hardware.peak_flops_per_ns(dtype)
    if backward:
        rate *= c["attention.backward_efficiency"] / BACKWARD_FLOPS
    memory = kernels.moved_bytes / (c["gemm.memory_efficiency"] * hardware.memory_bytes_per_ns)
    result: Float64s = c["attention.launch_ns"] + np.maximum(flops / rate, memory)
    return result


def _pairs(kernels: Kernels, queries: Float64s, keys: Float64s) -> Float64s:
    """Pairs of a query and a key per head: causal kernels leave out blocks above the diagonal.

    The last query sees all keys.
    """
    left_out = np.minimum(queries, keys) * np.maximum(np.minimum(queries, keys) - BLOCK, 0) / 2
    return np.asarray(queries * keys - np.where(kernels.causal, left_out, 0), np.float64)


def _decode_ns(kernels: Kernels, hardware: Hardware) -> Float64s:
    c = hardware.constants
    bandwidth = c["decode.memory_efficiency"] * hardware.memory_bytes_per_ns
    heads = np.maximum(kernels.dims[:, 0], 1)
    result: Float64s = (
        c["decode.launch_ns"] + heads * c["decode.head_ns"] + kernels.moved_bytes / bandwidth
    )
    return result
