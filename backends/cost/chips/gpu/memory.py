"""Kernels that only move bytes: copies, gathers, scatters, sorts. All constants are assumed."""

from __future__ import annotations

import numpy as np

from flint.backends.cost.chips.gpu.bandwidth import bandwidth_ns
from flint.backends.cost.chips.gpu.hardware import Float64s, Hardware
from flint.backends.cost.chips.kernels import Kernels

#: Bytes that one access to memory moves at least (a sector of the L2).
SECTOR_BYTES = 32
#: A radix sort takes 8 bits at a time, and each pass reads and writes keys and values.
RADIX_BITS = 8
KEY_BITS = 32


def copy_ns(kernels: Kernels, hardware: Hardware) -> Float64s:
    """Transposes, slices, concatenations: as element-wise kernels of the same bytes."""
    return bandwidth_ns(kernels, hardware, "elementwise", kernels.elements.astype(np.float64))


def gather_ns(kernels: Kernels, hardware: Hardware) -> Float64s:
    """Look-ups of rows. A row shorter than a sector still moves the whole sector."""
    rows = np.maximum(kernels.dims[:, 1], 0)
    padding = np.maximum(2.0 * SECTOR_BYTES * rows - kernels.moved_bytes, 0)
    result: Float64s = copy_ns(kernels, hardware) + _bytes_ns(padding, hardware)
    return result


def scatter_ns(kernels: Kernels, hardware: Hardware) -> Float64s:
    """Scatters and scatter-adds: a copy, and each updated row read and written once more."""
    size = kernels.written_bytes / np.maximum(kernels.elements, 1)
    row_bytes = np.maximum(size * kernels.dims[:, 3], SECTOR_BYTES)
    updates = 2.0 * np.maximum(kernels.dims[:, 1], 0) * row_bytes
    result: Float64s = copy_ns(kernels, hardware) + _bytes_ns(updates, hardware)
    return result


def _bytes_ns(moved: Float64s, hardware: Hardware) -> Float64s:
    bandwidth = hardware.constants["elementwise.memory_efficiency"] * hardware.memory_bytes_per_ns
    result: Float64s = moved / bandwidth
    return result


def sort_ns(kernels: Kernels, hardware: Hardware) -> Float64s:
    """Radix sorts: a launch and a pass over all bytes per 8 bits of key."""
    one = bandwidth_ns(kernels, hardware, "elementwise", kernels.elements.astype(np.float64))
    result: Float64s = one * (KEY_BITS / RADIX_BITS)
    return result
