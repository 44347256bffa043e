"""Kernels that are written by hand, by the work that they declare (`pl.CostEstimate`).

    total = launch + max(flops / efficiency, transcendental functions, bytes / bandwidth)

Their flops are taken to be those of products, on the arrays: a kernel that calculates element by
element is bound by its bytes. Launch and efficiencies are those of products: what a good kernel
reaches.
"""

from __future__ import annotations

import numpy as np

from flint.backends.cost.chips.kernels import Kernels
from flint.backends.cost.chips.systolic.hardware import Float64s, Hardware

#: Transcendental functions of one core per cycle: a register of 8 x 128 lanes, as XLA's TPU compiler
#: schedules them for v6e (libtpu 0.0.52, capacity 1 of its unit EUP).
TRANSCENDENTALS = 1024


def declared_ns(kernels: Kernels, hardware: Hardware, dtype: str) -> Float64s:
    """Latency by declared work, all rows with `dtype`. Raises FL705 without a peak for it."""
    c = hardware.constants
    arrays = kernels.flops / (c["gemm.efficiency"] * hardware.peak_flops_per_ns(dtype))
    functions = kernels.dims[:, 1] / (TRANSCENDENTALS * hardware.vector_cycles_per_ns)
    memory = kernels.moved_bytes / (c["gemm.memory_efficiency"] * hardware.memory_bytes_per_ns)
    longest = np.maximum(np.maximum(arrays, functions), memory)
    result: Float64s = c["gemm.launch_ns"] + longest
    return result
