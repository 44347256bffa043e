"""Kernels that read rows and need all of a row: reductions, softmax and norms."""

from __future__ import annotations

import numpy as np

from flint.backends.cost.chips.gpu.bandwidth import bandwidth_ns
from flint.backends.cost.chips.gpu.hardware import Float64s, Hardware
from flint.backends.cost.chips.kernels import Kernels


def reduction_ns(kernels: Kernels, hardware: Hardware) -> Float64s:
    """Sums and maxima. Assumed: as element-wise kernels over the elements that they read."""
    return bandwidth_ns(kernels, hardware, "elementwise", row_elements(kernels))


def softmax_ns(kernels: Kernels, hardware: Hardware) -> Float64s:
    """Softmax and its backward pass, fitted on forward passes in f32."""
    return bandwidth_ns(kernels, hardware, "softmax", row_elements(kernels))


def norm_ns(kernels: Kernels, hardware: Hardware) -> Float64s:
    """Layer norm, RMS norm and their backward passes, fitted on forward layer norms in f32.

    A block of threads takes a row: loads, sums, waits for the sums, stores. Narrow rows are bound
    by that latency (`norm.row_cycles` of an SM per row), wide ones by their bytes.
    """
    c = hardware.constants
    by_bytes = kernels.moved_bytes / (c["norm.memory_efficiency"] * hardware.memory_bytes_per_ns)
    rows = np.maximum(kernels.dims[:, 1], 0) / (hardware.sms * hardware.cycles_per_ns)
    result: Float64s = c["norm.launch_ns"] + np.maximum(by_bytes, rows * c["norm.row_cycles"])
    return result


def row_elements(kernels: Kernels) -> Float64s:
    """Rows times columns, or the elements of the result where a kernel says no rows."""
    counted = kernels.dims[:, 1].astype(np.float64) * kernels.dims[:, 3]
    return np.maximum(counted, kernels.elements)
