"""GpuModel: prices of kernels on a GPU, by their kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from flint.backends.cost.chips.families.gpu import memory
from flint.backends.cost.chips.families.gpu.constants import (
    constants_note,
    constants_of,
    lender_of,
    libraries_of,
)
from flint.backends.cost.chips.families.gpu.hardware import GpuHardware, hardware_of
from flint.backends.cost.chips.families.gpu.products import gemm_ns
from flint.backends.cost.chips.families.gpu.quantised import (
    NARROW,
    elementwise_or_quantising_ns,
    quantised_product_ns,
)
from flint.backends.cost.chips.kernels import KernelKind, Kernels
from flint.backends.cost.chips.model import ChipModel, Formulas
from flint.ir.arrays import Float64s
from flint.ir.product_types import groups_of

if TYPE_CHECKING:
    from flint.cluster.models import Chip


def product_ns(kernels: Kernels, hardware: GpuHardware, dtype: str) -> Float64s:
    """Products of matrices of one type, by the model of that type."""
    if groups_of(dtype):
        from flint.backends.cost.chips.families.gpu.grouped import grouped_product_ns

        return grouped_product_ns(kernels, hardware, dtype)
    model = quantised_product_ns if dtype.startswith(NARROW) else gemm_ns
    return model(kernels, hardware, dtype)


def convolution_ns(kernels: Kernels, hardware: GpuHardware, dtype: str) -> Float64s:
    """Convolutions, which most language models do not have."""
    from flint.backends.cost.chips.families.gpu import convolutions

    return convolutions.convolution_ns(kernels, hardware, dtype)


def attention_ns(
    kernels: Kernels, hardware: GpuHardware, dtype: str, *, backward: bool
) -> Float64s:
    """Fused attention, which a program that writes its attention out does not have."""
    from flint.backends.cost.chips.families.gpu import attention

    return attention.attention_ns(kernels, hardware, dtype, backward=backward)


FORMULAS: Formulas[GpuHardware] = Formulas(
    simple={
        KernelKind.ELEMENTWISE: elementwise_or_quantising_ns,
        KernelKind.OPTIMIZER: memory.elementwise_ns,
        KernelKind.RANDOM: memory.random_ns,
        KernelKind.REDUCTION: memory.reduction_ns,
        KernelKind.SOFTMAX: memory.softmax_ns,
        KernelKind.NORM: memory.norm_ns,
        KernelKind.COPY: memory.copy_ns,
        KernelKind.HOST_COPY: memory.copy_ns,  # the chip's side of it; `price` has the link's
        KernelKind.GATHER: memory.gather_ns,
        KernelKind.SCATTER: memory.scatter_ns,
        KernelKind.SORT: memory.sort_ns,
        KernelKind.FFT: memory.fft_ns,
        KernelKind.TOP_K: memory.top_k_ns,
    },
    product=product_ns,
    attention=attention_ns,
    convolution=convolution_ns,
)


class GpuModel(ChipModel):
    """Tiles, waves, caches and memory; constants of the chip, or of the one nearest to it."""

    def latency_ns(self, kernels: Kernels) -> Float64s:
        return FORMULAS.latency_ns(kernels, hardware_of(self.chip))

    def constants_in_use(self) -> Mapping[str, float]:
        return constants_of(self.chip).in_use()

    def libraries(self) -> tuple[str, ...]:
        return libraries_of(self.chip)

    def lender(self) -> Chip | None:
        return lender_of(self.chip)

    def note(self) -> str:
        return constants_note(self.chip)
