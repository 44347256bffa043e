"""Kernels on a TPU without arrays: element-wise chains, copies, rows, look-ups, sorts, transforms.

What passes over arrays once takes

    total = launch + max(bytes / (efficiency * bandwidth), bytes in VMEM / its bandwidth)

What crosses the kernel's edge comes from HBM. A kernel whose arrays were left in VMEM by the one
before moves none of that, and pays for reading and writing its elements there.

Sorts and top-k are bitonic networks on the vector unit, in VMEM where a row fits. A network over n
elements has d (d + 1) / 2 stages of compare and exchange, d = log2 n. Each takes `OPERATIONS` of a
lane for each array that is exchanged. Where a row does not fit into VMEM, stages that reach further
than what does go through HBM. XLA's exact top-k takes as long as such a sort of values and
positions: 1,320 us on TPU v5e and 1,010 us on v6e for the 64 largest of 201,088 in 32 rows
(oliverdutton/fast_exact_topk_tpu), 85 us on v5e for 5 of 32,768 in 16 rows (oliverdutton/tallax).
From these three is `OPERATIONS`.

Gathers are fitted; scatters and Fourier transforms are assumed.
"""

from __future__ import annotations

import numpy as np

from flint.backends.cost.chips.families.systolic.hardware import SystolicHardware, element_bytes
from flint.backends.cost.chips.kernels import Kernels
from flint.backends.cost.chips.model import fft_passes, row_elements
from flint.ir.arrays import Float64s
from flint.ir.dims import ReductionDims

#: Integer operations of Threefry-2x32 per 4 random bytes. Assumed: 20 rounds of an addition, a
#: rotation (3 operations) and an exclusive or, and the keys, per 8 bytes (Salmon et al., SC'11).
RANDOM_OPERATIONS = 56
#: A scatter reads what it adds to: each result moves twice.
SCATTER_PASSES = 2.0
#: Of a lane for one element of one array in a stage: comparisons, selections, shuffles.
OPERATIONS = 3.5
#: Rows and columns of a register: arrays are padded to whole ones.
SUBLANES, LANES = 8, 128
#: Bytes of a number while it is sorted.
KEY_BYTES = 4
#: Share of VMEM that a line may fill: the next one is read while it is transformed.
LINE_SHARE = 0.5


def elementwise_ns(kernels: Kernels, hardware: SystolicHardware) -> Float64s:
    """Chains of element-wise operations, optimizer updates and copies; fitted on rotary embedding."""
    return _pass_ns(kernels, hardware, "elementwise", 2 * kernels.elements.astype(np.float64))


def reduction_ns(kernels: Kernels, hardware: SystolicHardware) -> Float64s:
    """Sums and maxima. Assumed: as element-wise kernels over the elements that they read."""
    return _pass_ns(kernels, hardware, "elementwise", row_elements(kernels))


def norm_ns(kernels: Kernels, hardware: SystolicHardware) -> Float64s:
    """Norms and softmax, and their backward passes; fitted on RMS norms in bf16."""
    return _pass_ns(kernels, hardware, "norm", 2.0 * row_elements(kernels))


def random_ns(kernels: Kernels, hardware: SystolicHardware) -> Float64s:
    """Draws of random numbers: an element-wise kernel, or the generator if that takes longer."""
    rate = hardware.vector_operations_per_ns
    draws = kernels.elements * (RANDOM_OPERATIONS / rate)
    result: Float64s = np.maximum(elementwise_ns(kernels, hardware), draws)
    return result


def _pass_ns(
    kernels: Kernels, hardware: SystolicHardware, model: str, touched: Float64s
) -> Float64s:
    c = hardware.constants
    bandwidth = hardware.memory_bytes_per_ns
    sizes = np.array([element_bytes(dtype) for dtype in kernels.dtypes])
    inside = touched * sizes[kernels.dtype] / (c[f"{model}.vmem_ratio"] * bandwidth)
    outside = kernels.moved_bytes / (c["elementwise.memory_efficiency"] * bandwidth)
    result: Float64s = c[f"{model}.launch_ns"] + np.maximum(inside, outside)
    return result


def gather_ns(kernels: Kernels, hardware: SystolicHardware, passes: float = 1.0) -> Float64s:
    """Look-ups of rows, fitted on token embeddings: a copy from HBM is started for each row."""
    c = hardware.constants
    rows = np.maximum(ReductionDims.of(kernels.dims).rows, 0)
    bandwidth = c["elementwise.memory_efficiency"] * hardware.memory_bytes_per_ns
    moving = np.maximum(rows * c["gather.row_ns"], kernels.moved_bytes / bandwidth)
    result: Float64s = c["gather.launch_ns"] + passes * moving
    return result


def scatter_ns(kernels: Kernels, hardware: SystolicHardware) -> Float64s:
    """Scatters and scatter-adds: a gather whose results are read as well."""
    return gather_ns(kernels, hardware, SCATTER_PASSES)


def sort_ns(kernels: Kernels, hardware: SystolicHardware) -> Float64s:
    """Sorts: each operand is an array that is exchanged."""
    return _network_ns(kernels, hardware, np.maximum(kernels.arrays - 1.0, 1.0))


def top_k_ns(kernels: Kernels, hardware: SystolicHardware) -> Float64s:
    """The k largest of each row, exactly: values and their positions."""
    return _network_ns(kernels, hardware, np.full(len(kernels), 2.0))


def _network_ns(kernels: Kernels, hardware: SystolicHardware, arrays: Float64s) -> Float64s:
    c = hardware.constants
    dims = ReductionDims.of(kernels.dims)
    rows = np.maximum(dims.rows, 1).astype(np.float64)
    columns = np.maximum(dims.reduced, 2).astype(np.float64)
    doublings = np.ceil(np.log2(columns))
    stages = doublings * (doublings + 1) / 2
    padded = np.ceil(rows / SUBLANES) * SUBLANES * np.maximum(columns, LANES)
    rate = hardware.vector_operations_per_ns
    working = padded * arrays * stages * (OPERATIONS / rate)
    bandwidth = c["elementwise.memory_efficiency"] * hardware.memory_bytes_per_ns
    far = 2 * KEY_BYTES * rows * columns * arrays * _far_stages(doublings, arrays, hardware)
    moving = (kernels.moved_bytes + far) / bandwidth
    result: Float64s = c["gather.launch_ns"] + np.maximum(working, moving)
    return result


def _far_stages(doublings: Float64s, arrays: Float64s, hardware: SystolicHardware) -> Float64s:
    """Stages that exchange further than half of VMEM reaches, and a pass for what lies between."""
    fits = np.floor(np.log2(hardware.vmem_bytes / (2 * KEY_BYTES * arrays)))
    beyond = np.maximum(doublings - fits, 0)
    result: Float64s = beyond * (beyond + 1) / 2 + beyond
    return result


def fft_ns(kernels: Kernels, hardware: SystolicHardware) -> Float64s:
    """Launches, and the longer of passes over HBM and 5 n log2 n operations."""
    c = hardware.constants
    count = fft_passes(kernels, LINE_SHARE * hardware.vmem_bytes)
    bandwidth = c["elementwise.memory_efficiency"] * hardware.memory_bytes_per_ns
    moving = count * kernels.moved_bytes / bandwidth
    working = kernels.flops / hardware.vector_operations_per_ns
    result: Float64s = count * c["norm.launch_ns"] + np.maximum(moving, working)
    return result
