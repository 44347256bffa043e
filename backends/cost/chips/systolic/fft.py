"""Fourier transforms on a TPU: passes over HBM, or the vector unit's arithmetic. Assumed."""

from __future__ import annotations

import numpy as np

from flint.backends.cost.chips.fft import passes
from flint.backends.cost.chips.kernels import Kernels
from flint.backends.cost.chips.systolic.elementwise import VECTOR_OPERATIONS
from flint.backends.cost.chips.systolic.hardware import Float64s, Hardware

#: Share of VMEM that a line may fill: the next one is read while it is transformed.
LINE_SHARE = 0.5


def fft_ns(kernels: Kernels, hardware: Hardware) -> Float64s:
    """Launches, and the longer of passes over HBM and 5 n log2 n operations."""
    c = hardware.constants
    count = passes(kernels, LINE_SHARE * hardware.vmem_bytes)
    bandwidth = c["elementwise.memory_efficiency"] * hardware.memory_bytes_per_ns
    moving = count * kernels.moved_bytes / bandwidth
    working = kernels.flops / (VECTOR_OPERATIONS * hardware.vector_cycles_per_ns)
    result: Float64s = count * c["norm.launch_ns"] + np.maximum(moving, working)
    return result
