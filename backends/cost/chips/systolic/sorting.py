"""Sorts and top-k on a TPU: bitonic networks on the vector unit, in VMEM where a row fits.

A network over n elements has d (d + 1) / 2 stages of compare and exchange, d = log2 n. Each takes
`OPERATIONS` of a lane for each array that is exchanged. Where a row does not fit into VMEM, stages
that reach further than what does go through HBM.

XLA's exact top-k takes as long as such a sort of values and positions: 1,320 us on TPU v5e and
1,010 us on v6e for the 64 largest of 201,088 in 32 rows (oliverdutton/fast_exact_topk_tpu), 85 us on
v5e for 5 of 32,768 in 16 rows (oliverdutton/tallax). From these three is `OPERATIONS`.
"""

from __future__ import annotations

import numpy as np

from flint.backends.cost.chips.kernels import Kernels
from flint.backends.cost.chips.systolic.elementwise import VECTOR_OPERATIONS
from flint.backends.cost.chips.systolic.hardware import Float64s, Hardware

#: Of a lane for one element of one array in a stage: comparisons, selections, shuffles.
OPERATIONS = 3.5
#: Rows and columns of a register: arrays are padded to whole ones.
SUBLANES, LANES = 8, 128
#: Bytes of a number while it is sorted.
KEY_BYTES = 4


def sort_ns(kernels: Kernels, hardware: Hardware) -> Float64s:
    """Sorts: each operand is an array that is exchanged."""
    return _network_ns(kernels, hardware, np.maximum(kernels.arrays - 1.0, 1.0))


def top_k_ns(kernels: Kernels, hardware: Hardware) -> Float64s:
    """The k largest of each row, exactly: values and their positions."""
    return _network_ns(kernels, hardware, np.full(len(kernels), 2.0))


def _network_ns(kernels: Kernels, hardware: Hardware, arrays: Float64s) -> Float64s:
    c = hardware.constants
    rows = np.maximum(kernels.dims[:, 1], 1).astype(np.float64)
    columns = np.maximum(kernels.dims[:, 3], 2).astype(np.float64)
    doublings = np.ceil(np.log2(columns))
    stages = doublings * (doublings + 1) / 2
    padded = np.ceil(rows / SUBLANES) * SUBLANES * np.maximum(columns, LANES)
    rate = VECTOR_OPERATIONS * hardware.vector_cycles_per_ns
    working = padded * arrays * stages * (OPERATIONS / rate)
    bandwidth = c["elementwise.memory_efficiency"] * hardware.memory_bytes_per_ns
    far = 2 * KEY_BYTES * rows * columns * arrays * _far_stages(doublings, arrays, hardware)
    moving = (kernels.moved_bytes + far) / bandwidth
    result: Float64s = c["gather.launch_ns"] + np.maximum(working, moving)
    return result


def _far_stages(doublings: Float64s, arrays: Float64s, hardware: Hardware) -> Float64s:
    """Stages that exchange further than half of VMEM reaches, and a pass for what lies between."""
    fits = np.floor(np.log2(hardware.vmem_bytes / (2 * KEY_BYTES * arrays)))
    beyond = np.maximum(doublings - fits, 0)
    result: Float64s = beyond * (beyond + 1) / 2 + beyond
    return result
