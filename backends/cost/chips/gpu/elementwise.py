"""Element-wise chains, optimizer updates and random numbers: bytes, and a little arithmetic."""

from __future__ import annotations

import numpy as np

from flint.backends.cost.chips.gpu.bandwidth import bandwidth_ns
from flint.backends.cost.chips.gpu.hardware import Float64s, Hardware
from flint.backends.cost.chips.kernels import Kernels

#: Integer instructions per 4 random bytes of Philox and Threefry, over what one SM executes in a
#: cycle. Assumed: Philox4x32-10 has 10 rounds of 2 wide multiplications and 4 exclusive ors per
#: 16 bytes (Salmon et al., SC'11), and an SM executes 64 of them per cycle.
RANDOM_CYCLES = 0.3


def elementwise_ns(kernels: Kernels, hardware: Hardware) -> Float64s:
    """Chains of element-wise operations; an optimizer's update is one over several arrays.

    Fitted on single operations in f32 (add to gelu) on five GPUs.
    """
    return bandwidth_ns(kernels, hardware, "elementwise", kernels.elements.astype(np.float64))


def random_ns(kernels: Kernels, hardware: Hardware) -> Float64s:
    """Draws of random numbers: an element-wise kernel with the generator's instructions."""
    draws = kernels.elements * (RANDOM_CYCLES / (hardware.sms * hardware.cycles_per_ns))
    result: Float64s = elementwise_ns(kernels, hardware) + draws
    return result
