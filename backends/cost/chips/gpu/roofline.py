"""The plain roofline: the bound that every model is shown beside."""

from __future__ import annotations

import numpy as np

from flint.backends.cost.chips.gpu.hardware import Float64s, hardware_of
from flint.backends.cost.chips.kernels import KernelKind, Kernels
from flint.cluster.models import Chip

#: Kinds that calculate with Tensor Cores.
TENSOR = (
    KernelKind.GEMM,
    KernelKind.CONVOLUTION,
    KernelKind.ATTENTION,
    KernelKind.ATTENTION_BACKWARD,
)


def roofline_ns(kernels: Kernels, chip: Chip) -> Float64s:
    """The longer of FLOP over peak and bytes over memory bandwidth, per kernel.

    FLOP count for products of matrices and attention; what element-wise kernels calculate is not
    in datasheets. Raises FlintError FL705 if the chip has no peak for a type.
    """
    hardware = hardware_of(chip)
    times: Float64s = kernels.moved_bytes / hardware.memory_bytes_per_ns
    tensor = np.isin(kernels.kind, TENSOR)
    for code in np.unique(kernels.dtype[tensor]):
        rows = tensor & (kernels.dtype == code)
        peak = hardware.peak_flops_per_ns(kernels.dtypes[code])
        times[rows] = np.maximum(times[rows], kernels.flops[rows] / peak)
    return times
