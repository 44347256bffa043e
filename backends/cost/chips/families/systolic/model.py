"""SystolicModel: prices of kernels on systolic arrays, by their kind, as a TPU or SCALE-Sim."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from flint.backends.cost.chips.families.systolic import scalesim, vector
from flint.backends.cost.chips.families.systolic.attention import attention_ns
from flint.backends.cost.chips.families.systolic.constants import (
    CLOCK,
    constants_note,
    constants_of,
)
from flint.backends.cost.chips.families.systolic.hardware import SystolicHardware, hardware_of
from flint.backends.cost.chips.families.systolic.products import gemm_ns
from flint.backends.cost.chips.kernels import KernelKind, Kernels
from flint.backends.cost.chips.model import ON_TPU, ChipModel, Formulas, ProductTypes
from flint.ir.arrays import Float64s

if TYPE_CHECKING:
    from flint.cluster.models import Chip

FORMULAS: Formulas[SystolicHardware] = Formulas(
    simple={
        KernelKind.ELEMENTWISE: vector.elementwise_ns,
        KernelKind.OPTIMIZER: vector.elementwise_ns,
        KernelKind.COPY: vector.elementwise_ns,
        KernelKind.HOST_COPY: vector.elementwise_ns,  # the chip's side; `price` has the link's
        KernelKind.RANDOM: vector.random_ns,
        KernelKind.REDUCTION: vector.reduction_ns,
        KernelKind.SOFTMAX: vector.norm_ns,
        KernelKind.NORM: vector.norm_ns,
        KernelKind.GATHER: vector.gather_ns,
        KernelKind.SCATTER: vector.scatter_ns,
        KernelKind.SORT: vector.sort_ns,
        KernelKind.FFT: vector.fft_ns,
        KernelKind.TOP_K: vector.top_k_ns,
    },
    product=gemm_ns,
    attention=attention_ns,
)


class SystolicModel(ChipModel):
    """Folds in a pipeline, as a TPU runs them. `constants` replace those of the chip."""

    library: ClassVar[str] = "XLA"
    types: ClassVar[ProductTypes] = ON_TPU
    formulas: ClassVar[Formulas[SystolicHardware]] = FORMULAS

    def __init__(self, chip: Chip, constants: Mapping[str, float] | None = None) -> None:
        super().__init__(chip)
        self.constants = constants

    def latency_ns(self, kernels: Kernels) -> Float64s:
        return self.formulas.latency_ns(kernels, hardware_of(self.chip, self.constants))

    def constants_in_use(self) -> Mapping[str, float]:
        return constants_of(self.chip)

    @property
    def cycles_per_ns(self) -> float:
        return hardware_of(self.chip, self.constants).constants[CLOCK]

    def note(self) -> str:
        return constants_note(self.chip)

    def profile(self, captured: str, recorded: bool) -> str:
        return "xla-tpu"


class ScaleSimModel(SystolicModel):
    """Products as SCALE-Sim counts their cycles; the rest as on a TPU."""

    formulas: ClassVar[Formulas[SystolicHardware]] = FORMULAS._replace(product=scalesim.gemm_ns)

    def note(self) -> str:
        return ""
