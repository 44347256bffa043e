"""What Fourier transforms cost on any chip: passes over memory, and operations.

A library transforms one axis after the other. An axis of which one line fits into the memory of a
core is read and written once; a longer one is split into two factors, each a pass with twiddle
factors between them (Bailey, "FFTs in external or hierarchical memory", 1990; cuFFT and VkFFT do
the same). Lines that fit make one kernel for each axis.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flint.backends.cost.chips.kernels import Kernels

Float64s = NDArray[np.float64]
#: Bytes of a complex number of two f32; a real transform works on as many of half the length.
COMPLEX_BYTES = 8


def passes(kernels: Kernels, line_bytes: float) -> Float64s:
    """How often each transform goes through memory, where a line of `line_bytes` fits on chip.

    dims are (outer axes, transforms, 1, last axis): outer axes count as one.
    """
    longest = line_bytes / COMPLEX_BYTES
    outer, last = kernels.dims[:, 0], kernels.dims[:, 3]
    found: Float64s = np.where(last > longest, 2.0, 1.0)
    found += np.where(outer > 1, np.where(outer > longest, 2.0, 1.0), 0.0)
    return found
