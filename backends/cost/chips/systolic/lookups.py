"""Kernels that go to rows by index. Gathers are fitted, scatters assumed."""

from __future__ import annotations

import numpy as np

from flint.backends.cost.chips.kernels import Kernels
from flint.backends.cost.chips.systolic.hardware import Float64s, Hardware

#: A scatter reads what it adds to: each result moves twice.
SCATTER_PASSES = 2.0


def gather_ns(kernels: Kernels, hardware: Hardware, passes: float = 1.0) -> Float64s:
    """Look-ups of rows, fitted on token embeddings: a copy from HBM is started for each row."""
    c = hardware.constants
    rows = np.maximum(kernels.dims[:, 1], 0)
    bandwidth = c["elementwise.memory_efficiency"] * hardware.memory_bytes_per_ns
    moving = np.maximum(rows * c["gather.row_ns"], kernels.moved_bytes / bandwidth)
    result: Float64s = c["gather.launch_ns"] + passes * moving
    return result


def scatter_ns(kernels: Kernels, hardware: Hardware) -> Float64s:
    """Scatters and scatter-adds: a gather whose results are read as well."""
    return gather_ns(kernels, hardware, SCATTER_PASSES)
