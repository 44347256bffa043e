"""Kernels that are written by hand, by the work that they declare (`pl.CostEstimate`).

    total = launch + max(flops / efficiency, transcendental functions, bytes / bandwidth)

Their flops are taken to be those of products, on the Tensor Cores. Launch and efficiencies are
those of products: what a good kernel reaches.
"""

from __future__ import annotations

import numpy as np

from flint.backends.cost.chips.gpu.hardware import Float64s, Hardware
from flint.backends.cost.chips.kernels import Kernels

#: Transcendental functions of one SM per cycle (CUDA C++ programming guide, throughput of native
#: arithmetic instructions, compute capability 8.0 to 9.0).
TRANSCENDENTALS = 16


def declared_ns(kernels: Kernels, hardware: Hardware, dtype: str) -> Float64s:
    """Latency by declared work, all rows with `dtype`. Raises FL705 without a peak for it."""
    c = hardware.constants
    cores = kernels.flops / (c["gemm.efficiency"] * hardware.peak_flops_per_ns(dtype))
    functions = kernels.dims[:, 1] / (TRANSCENDENTALS * hardware.sms * hardware.cycles_per_ns)
    memory = kernels.moved_bytes / (c["gemm.memory_efficiency"] * hardware.memory_bytes_per_ns)
    longest = np.maximum(np.maximum(cores, functions), memory)
    result: Float64s = c["gemm.launch_ns"] + longest
    return result
