"""GpuModel: prices of kernels on a GPU, by their kind."""

from __future__ import annotations

from collections.abc import Mapping

from flint.backends.cost.chips.families.gpu import memory
from flint.backends.cost.chips.families.gpu.attention import attention_ns
from flint.backends.cost.chips.families.gpu.constants import constants_note, constants_of
from flint.backends.cost.chips.families.gpu.hardware import Float64s, GpuHardware, hardware_of
from flint.backends.cost.chips.families.gpu.products import convolution_ns, gemm_ns
from flint.backends.cost.chips.kernels import KernelKind, Kernels
from flint.backends.cost.chips.model import ChipModel, Formulas

FORMULAS: Formulas[GpuHardware] = Formulas(
    simple={
        KernelKind.ELEMENTWISE: memory.elementwise_ns,
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
    product=gemm_ns,
    attention=attention_ns,
    convolution=convolution_ns,
)


class GpuModel(ChipModel):
    """Tiles, waves, caches and memory; constants of the chip, or of the one nearest to it."""

    def latency_ns(self, kernels: Kernels) -> Float64s:
        return FORMULAS.latency_ns(kernels, hardware_of(self.chip))

    def constants_in_use(self) -> Mapping[str, float]:
        return constants_of(self.chip).in_use()

    def note(self) -> str:
        return constants_note(self.chip)
