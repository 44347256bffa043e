"""Latency of kernels on systolic arrays: each kind to its model, products by the chip's mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flint.backends.cost.chips.dispatch import dispatched_ns
from flint.backends.cost.chips.kernels import KernelKind, Kernels
from flint.backends.cost.chips.systolic import gemm, scalesim
from flint.backends.cost.chips.systolic.attention import attention_ns
from flint.backends.cost.chips.systolic.constants import systolic_of
from flint.backends.cost.chips.systolic.declared import declared_ns
from flint.backends.cost.chips.systolic.elementwise import (
    elementwise_ns,
    norm_ns,
    random_ns,
    reduction_ns,
)
from flint.backends.cost.chips.systolic.fft import fft_ns
from flint.backends.cost.chips.systolic.hardware import Float64s, Hardware, hardware_of
from flint.backends.cost.chips.systolic.lookups import gather_ns, scatter_ns
from flint.backends.cost.chips.systolic.sorting import sort_ns, top_k_ns
from flint.cluster.models import Chip

Model = Callable[[Kernels, Hardware], Float64s]
#: Models of kinds whose time does not depend on the type's peak.
MODELS: Mapping[KernelKind, Model] = {
    KernelKind.ELEMENTWISE: elementwise_ns,
    KernelKind.OPTIMIZER: elementwise_ns,
    KernelKind.COPY: elementwise_ns,
    KernelKind.HOST_COPY: elementwise_ns,  # the chip's side of it; `price` has the link's
    KernelKind.RANDOM: random_ns,
    KernelKind.REDUCTION: reduction_ns,
    KernelKind.SOFTMAX: norm_ns,
    KernelKind.NORM: norm_ns,
    KernelKind.GATHER: gather_ns,
    KernelKind.SCATTER: scatter_ns,
    KernelKind.SORT: sort_ns,
    KernelKind.FFT: fft_ns,
    KernelKind.TOP_K: top_k_ns,
}
#: Models of products by `Systolic.mode`.
PRODUCTS: Mapping[str, Callable[[Kernels, Hardware, str], Float64s]] = {
    "tpu": gemm.gemm_ns,
    "scalesim": scalesim.gemm_ns,
}


def latency_ns(
    kernels: Kernels, chip: Chip, constants: Mapping[str, float] | None = None
) -> Float64s:
    """How long each kernel runs on the chip, in nanoseconds; 0 for UNPRICED kernels.

    `constants` replace those of the chip (`constants.py` names them). Raises FlintError FL705 if
    the chip has no systolic arrays or no peak for a type that a kernel calculates with.
    """
    hardware = hardware_of(chip, constants)
    product = PRODUCTS[systolic_of(chip).mode]
    return dispatched_ns(kernels, hardware, MODELS, product, attention_ns, declared_ns)
