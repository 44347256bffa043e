"""Kernels that only move bytes: copies, gathers, scatters, sorts. All constants are assumed."""

from __future__ import annotations

import numpy as np

from flint.backends.cost.gpu.bandwidth import bandwidth_ns
from flint.backends.cost.gpu.hardware import Float64s, Hardware
from flint.backends.cost.kernels import Kernels

#: Bytes that one access to memory moves at least (a sector of the L2).
SECTOR_BYTES = 32
#: A radix sort takes 8 bits at a time, and each pass reads and writes keys and values.
RADIX_BITS = 8
KEY_BITS = 32
#: A scatter reads what it adds to: atomic additions move each result twice.
SCATTER_PASSES = 2.0


def copy_ns(kernels: Kernels, hardware: Hardware) -> Float64s:
    """Transposes, slices, concatenations: as element-wise kernels of the same bytes."""
    return bandwidth_ns(kernels, hardware, "elementwise", kernels.elements.astype(np.float64))


def gather_ns(kernels: Kernels, hardware: Hardware, passes: float = 1.0) -> Float64s:
    """Look-ups of rows. A row shorter than a sector still moves the whole sector."""
    moved = np.maximum(kernels.moved_bytes, 1).astype(np.float64)
    rows = np.maximum(kernels.dims[:, 1], 0)
    padded = np.maximum(moved, 2.0 * SECTOR_BYTES * rows)
    whole = bandwidth_ns(kernels, hardware, "elementwise", kernels.elements.astype(np.float64))
    bandwidth = hardware.constants["elementwise.memory_efficiency"] * hardware.memory_bytes_per_ns
    result: Float64s = whole + (padded * passes - kernels.moved_bytes) / bandwidth
    return result


def scatter_ns(kernels: Kernels, hardware: Hardware) -> Float64s:
    """Scatters and scatter-adds: a gather whose results are read as well."""
    return gather_ns(kernels, hardware, SCATTER_PASSES)


def sort_ns(kernels: Kernels, hardware: Hardware) -> Float64s:
    """Sorts and top-k as radix sorts: a launch and a pass over all bytes per 8 bits of key."""
    one = bandwidth_ns(kernels, hardware, "elementwise", kernels.elements.astype(np.float64))
    result: Float64s = one * (KEY_BITS / RADIX_BITS)
    return result
