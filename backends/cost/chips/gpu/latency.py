"""Latency of kernels on a GPU: each kind to its model."""

from __future__ import annotations

from collections.abc import Callable

from flint.backends.cost.chips.dispatch import dispatched_ns
from flint.backends.cost.chips.gpu.attention import attention_ns
from flint.backends.cost.chips.gpu.declared import declared_ns
from flint.backends.cost.chips.gpu.elementwise import elementwise_ns, random_ns
from flint.backends.cost.chips.gpu.fft import fft_ns
from flint.backends.cost.chips.gpu.gemm import gemm_ns
from flint.backends.cost.chips.gpu.hardware import Float64s, Hardware, hardware_of
from flint.backends.cost.chips.gpu.memory import copy_ns, gather_ns, scatter_ns, sort_ns
from flint.backends.cost.chips.gpu.rows import norm_ns, reduction_ns, softmax_ns
from flint.backends.cost.chips.gpu.top_k import top_k_ns
from flint.backends.cost.chips.kernels import KernelKind, Kernels
from flint.cluster.models import Chip

Model = Callable[[Kernels, Hardware], Float64s]
#: Models of kinds whose time does not depend on the type's peak.
MODELS: dict[KernelKind, Model] = {
    KernelKind.ELEMENTWISE: elementwise_ns,
    KernelKind.OPTIMIZER: elementwise_ns,
    KernelKind.RANDOM: random_ns,
    KernelKind.REDUCTION: reduction_ns,
    KernelKind.SOFTMAX: softmax_ns,
    KernelKind.NORM: norm_ns,
    KernelKind.COPY: copy_ns,
    KernelKind.HOST_COPY: copy_ns,  # the chip's side of it; `price` has the link's
    KernelKind.GATHER: gather_ns,
    KernelKind.SCATTER: scatter_ns,
    KernelKind.SORT: sort_ns,
    KernelKind.FFT: fft_ns,
    KernelKind.TOP_K: top_k_ns,
}


def latency_ns(kernels: Kernels, chip: Chip) -> Float64s:
    """How long each kernel runs on the chip, in nanoseconds; 0 for UNPRICED kernels.

    Constants come from the chip or from the nearest one (`constants_note`). Raises FlintError
    FL705 if the chip is no GPU or has no peak for a type that a kernel calculates with.
    """
    hardware = hardware_of(chip)
    return dispatched_ns(kernels, hardware, MODELS, gemm_ns, attention_ns, declared_ns)
