"""Fused attention on a TPU: training and prefill by blocks, decode by the keys' bytes.

A block of queries meets a block of keys as the compiler schedules Pallas' splash attention
(`jax.experimental.pallas.ops.tpu.splash_attention`): the arrays do the products, in which the head
size is one side of a tile (128 elements fill half of an array of 256), the vector unit does the
softmax on registers of 1,024 scores. Both overlap, not perfectly:

    cycles of a pair of blocks = (arrays^3 + vector^3)^(1/3)

Around that a kernel pays for each step of its grid, also those above the diagonal that it skips,
and for each query that begins and ends. A tuner chooses the block: the fastest of `BLOCKS`.
Backward is one kernel with five products (`use_fused_bwd_kernel`, as MaxText's recipes set it);
the gradients of the queries that each block of keys leaves are added up after it. A program that
calls the two kernels of the other backward pass has one of four and one of three products.

Decode, and chunks of queries that follow keys of a cache, were measured on a serving kernel with paged
keys. A chunk meets no more keys than its queries see; its softmax keeps the vector unit longer than
that of splash attention (`prefill.register_cycles`), and so does each query (`prefill.query_cycles`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flint.backends.cost.chips.families.systolic.hardware import SystolicHardware, element_bytes
from flint.backends.cost.chips.kernels import Kernels
from flint.ir.arrays import Float64s
from flint.ir.dims import AttentionDims

#: Queries and keys of one block that a tuner tries.
BLOCKS = (512.0, 1024.0, 2048.0)
#: Products of the forward pass, and of the backward pass, which computes the scores again.
PRODUCTS, BACKWARD_PRODUCTS = 2, 5
#: Scores in a register of the vector unit: 8 sublanes of 128 lanes.
REGISTER = 1024
#: With so few queries per head a kernel decodes: it is bound by the keys' bytes.
DECODE_QUERIES = 8


def attention_ns(
    kernels: Kernels, hardware: SystolicHardware, dtype: str, *, backward: bool = False
) -> Float64s:
    """Latency of fused attention, all rows with `dtype`. Raises FL705 without a peak for it."""
    if backward:
        return _blocks_ns(kernels, hardware, dtype, backward)
    _, queries, keys, _ = AttentionDims.of(kernels.dims)
    few = (queries <= DECODE_QUERIES) & ~kernels.causal
    # the last query sees the last key: those before the first query are in a cache
    chunk = kernels.causal & (keys > queries)
    times = np.empty(len(kernels), np.float64)
    times[few] = _decode_ns(kernels.select(few), hardware, dtype)
    times[chunk] = _chunk_ns(kernels.select(chunk), hardware, dtype)
    blocks = ~few & ~chunk
    times[blocks] = _blocks_ns(kernels.select(blocks), hardware, dtype, backward)
    return times


def _blocks_ns(
    kernels: Kernels, hardware: SystolicHardware, dtype: str, backward: bool
) -> Float64s:
    tried = [_block_ns(kernels, hardware, dtype, backward, block) for block in BLOCKS]
    # where values are wider than keys there is more to do than dims say
    compute = kernels.flops / hardware.peak_flops_per_ns(dtype)
    result: Float64s = hardware.constants["attention.launch_ns"] + np.maximum(
        np.min(tried, axis=0), compute
    )
    return result


def _block_ns(
    kernels: Kernels, hardware: SystolicHardware, dtype: str, backward: bool, block: float
) -> Float64s:
    """With blocks of `block` queries and keys, without the launch."""
    c = hardware.constants
    heads, queries, keys, size = np.maximum(AttentionDims.of(kernels.dims.astype(np.float64)), 1)
    scores = heads * _pairs(queries, keys, kernels.causal, block)
    steps = heads * np.ceil(queries / block) * np.ceil(keys / block)
    around = steps * c["attention.step_cycles"] + heads * queries * c["attention.query_cycles"]
    products = _products(kernels, backward)
    working = working_ns(scores, size, hardware, dtype, backward, products)
    working += around / hardware.vector_cycles_per_ns
    bandwidth = c["gemm.memory_efficiency"] * hardware.memory_bytes_per_ns
    parts = heads * np.ceil(keys / block) * queries * size * element_bytes(dtype)
    parts *= backward & (products > BACKWARD_PRODUCTS - 1)
    memory = (kernels.moved_bytes + parts) / bandwidth
    result: Float64s = np.maximum(working, memory) + parts / bandwidth
    return result


def _products(kernels: Kernels, backward: bool) -> Float64s:
    """How many products of whole heads a kernel does, by its flops.

    A backward pass in two kernels has four and three of them. What says no less than one product
    says how many; nothing has more than the kernels that are described above.
    """
    most = float(BACKWARD_PRODUCTS if backward else PRODUCTS)
    one = 2.0 * np.maximum(kernels.dims, 1).astype(np.float64).prod(axis=1)
    said = kernels.flops * np.where(kernels.causal, 2, 1) / one
    return np.asarray(np.where(said >= 1, np.minimum(said, most), most), np.float64)


def working_ns(
    scores: Float64s,
    size: Float64s,
    hardware: SystolicHardware,
    dtype: str,
    backward: bool,
    products: Float64s | float,
) -> Float64s:
    """Products and softmax of `scores` pairs of a query and a key, on all cores."""
    name = "attention.backward_register_cycles" if backward else "attention.register_cycles"
    vector = scores / REGISTER * hardware.constants[name]
    return _both_ns(_arrays_ns(scores, size, hardware, dtype, products), vector, hardware)


def _both_ns(arrays: Float64s, vector_cycles: Float64s, hardware: SystolicHardware) -> Float64s:
    """Nanoseconds on the arrays and cycles of the vector unit, which overlap."""
    result: Float64s = np.cbrt(arrays**3 + (vector_cycles / hardware.vector_cycles_per_ns) ** 3)
    return result


def _arrays_ns(
    scores: Float64s,
    size: Float64s,
    hardware: SystolicHardware,
    dtype: str,
    products: Float64s | float,
) -> Float64s:
    padded = np.ceil(size / hardware.rows) * hardware.rows
    result: Float64s = 2 * scores * padded * products / hardware.peak_flops_per_ns(dtype)
    return result


def _pairs(queries: Float64s, keys: Float64s, causal: NDArray[np.bool_], block: float) -> Float64s:
    """Scores per head: causal kernels leave out blocks above the diagonal.

    The last query sees all keys. What is shorter than a block is one block of its own length.
    """
    high, wide = np.minimum(queries, block), np.minimum(keys, block)
    square = np.minimum(queries, keys)
    left_out = square * np.maximum(square - np.minimum(high, wide), 0) / 2
    return np.asarray(queries * keys - np.where(causal, left_out, 0), np.float64)


def _chunk_ns(kernels: Kernels, hardware: SystolicHardware, dtype: str) -> Float64s:
    c = hardware.constants
    heads, queries, keys, size = np.maximum(AttentionDims.of(kernels.dims.astype(np.float64)), 1)
    scores = heads * _pairs(queries, keys, kernels.causal, 1)
    vector = scores / REGISTER * c["prefill.register_cycles"]
    vector += heads * queries * c["prefill.query_cycles"]
    working = _both_ns(_arrays_ns(scores, size, hardware, dtype, PRODUCTS), vector, hardware)
    memory = kernels.moved_bytes / (c["gemm.memory_efficiency"] * hardware.memory_bytes_per_ns)
    result: Float64s = c["prefill.launch_ns"] + np.maximum(working, memory)
    return result


def _decode_ns(kernels: Kernels, hardware: SystolicHardware, dtype: str) -> Float64s:
    c = hardware.constants
    bandwidth = c["decode.memory_efficiency"] * hardware.memory_bytes_per_ns
    heads = np.maximum(AttentionDims.of(kernels.dims).heads, 1)
    bytes_ns = heads * c["decode.head_ns"] + kernels.moved_bytes / bandwidth
    compute = kernels.flops / hardware.peak_flops_per_ns(dtype)
    result: Float64s = c["decode.launch_ns"] + np.maximum(bytes_ns, compute)
    return result
