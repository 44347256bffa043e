"""Chips of which only peaks are known: the longer of calculating and moving bytes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flint.backends.cost.chips.kernels import Kernels
from flint.backends.cost.chips.peaks import peak_flops_per_ns
from flint.cluster.models import Chip
from flint.errors import FlintError


def latency_ns(kernels: Kernels, chip: Chip) -> NDArray[np.float64]:
    """Nanoseconds of each kernel: max(flops / peak, bytes / bandwidth), at full efficiency.

    A type without a peak of its own has the chip's highest.
    """
    peak = np.array([_peak_flops_per_s(chip, name) for name in kernels.dtypes])[kernels.dtype]
    calculating = kernels.flops / peak
    moving = kernels.moved_bytes / chip.memory_bandwidth_bytes_per_s.value
    return np.asarray(1e9 * np.maximum(calculating, moving), dtype=np.float64)


def _peak_flops_per_s(chip: Chip, dtype: str) -> float:
    try:
        return peak_flops_per_ns(chip, dtype) * 1e9
    except FlintError:
        return max(quantity.value for quantity in chip.peak_flops_per_s.values())


def note(chip: Chip) -> str:
    """What an estimate says of such a chip."""
    return f"{chip.name} has no model of its kernels: they are priced by a plain roofline"
