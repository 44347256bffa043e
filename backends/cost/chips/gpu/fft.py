"""Fourier transforms on a GPU: passes over memory, or the arithmetic. All constants are assumed."""

from __future__ import annotations

import numpy as np

from flint.backends.cost.chips.fft import passes
from flint.backends.cost.chips.gpu.hardware import Float64s, Hardware
from flint.backends.cost.chips.kernels import Kernels

#: Of a line that one block of threads transforms. Assumed: 8,192 complex numbers of two f32, what
#: two blocks of an A100's 164 KB of shared memory hold (NVIDIA's A100 whitepaper); VkFFT's authors
#: take 4,096 for 32 KB.
LINE_BYTES = 65_536
#: Operations of f32 that an SM does in a cycle, additions or multiplications: 128 lanes. A fused
#: multiply-add counts once: butterflies are mostly additions. Assumed for all generations.
OPERATIONS = 128


def fft_ns(kernels: Kernels, hardware: Hardware) -> Float64s:
    """Launches, and the longer of passes over memory and 5 n log2 n operations."""
    c = hardware.constants
    count = passes(kernels, LINE_BYTES)
    bandwidth = c["elementwise.memory_efficiency"] * hardware.memory_bytes_per_ns
    moving = count * kernels.moved_bytes / bandwidth
    working = kernels.flops / (OPERATIONS * hardware.sms * hardware.cycles_per_ns)
    result: Float64s = count * c["elementwise.launch_ns"] + np.maximum(moving, working)
    return result
