"""Kernels that pass over arrays once: element-wise chains, copies, reductions, softmax, norms.

    total = launch + max(bytes / (efficiency * bandwidth), bytes in VMEM / its bandwidth)

What crosses the kernel's edge comes from HBM. A kernel whose arrays were left in VMEM by the one
before moves none of that, and pays for reading and writing its elements there.
"""

from __future__ import annotations

import numpy as np

from flint.backends.cost.chips.kernels import Kernels
from flint.backends.cost.chips.systolic.hardware import Float64s, Hardware, element_bytes

#: Integer operations of Threefry-2x32 per 4 random bytes. Assumed: 20 rounds of an addition, a
#: rotation (3 operations) and an exclusive or, and the keys, per 8 bytes (Salmon et al., SC'11).
RANDOM_OPERATIONS = 56
#: Operations of one core's vector unit per cycle. Assumed: 4 units of 8 x 128 lanes
#: (jax-ml/scaling-book); one core per array pair at least does as much.
VECTOR_OPERATIONS = 4096


def elementwise_ns(kernels: Kernels, hardware: Hardware) -> Float64s:
    """Chains of element-wise operations, optimizer updates and copies; fitted on rotary embedding."""
    return _pass_ns(kernels, hardware, "elementwise", 2 * kernels.elements.astype(np.float64))


def reduction_ns(kernels: Kernels, hardware: Hardware) -> Float64s:
    """Sums and maxima. Assumed: as element-wise kernels over the elements that they read."""
    return _pass_ns(kernels, hardware, "elementwise", row_elements(kernels))


def norm_ns(kernels: Kernels, hardware: Hardware) -> Float64s:
    """Norms and softmax, and their backward passes; fitted on RMS norms in bf16."""
    return _pass_ns(kernels, hardware, "norm", 2.0 * row_elements(kernels))


def random_ns(kernels: Kernels, hardware: Hardware) -> Float64s:
    """Draws of random numbers: an element-wise kernel, or the generator if that takes longer."""
    rate = VECTOR_OPERATIONS * hardware.vector_cycles_per_ns
    draws = kernels.elements * (RANDOM_OPERATIONS / rate)
    result: Float64s = np.maximum(elementwise_ns(kernels, hardware), draws)
    return result


def row_elements(kernels: Kernels) -> Float64s:
    """Rows times columns, or the elements of the result where a kernel says no rows."""
    counted = kernels.dims[:, 1].astype(np.float64) * kernels.dims[:, 3]
    result: Float64s = np.maximum(counted, kernels.elements)
    return result


def _pass_ns(kernels: Kernels, hardware: Hardware, model: str, touched: Float64s) -> Float64s:
    c = hardware.constants
    bandwidth = hardware.memory_bytes_per_ns
    sizes = np.array([element_bytes(dtype) for dtype in kernels.dtypes] or [2])
    inside = touched * sizes[kernels.dtype] / (c[f"{model}.vmem_ratio"] * bandwidth)
    outside = kernels.moved_bytes / (c["elementwise.memory_efficiency"] * bandwidth)
    result: Float64s = c[f"{model}.launch_ns"] + np.maximum(inside, outside)
    return result
