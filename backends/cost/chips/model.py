"""ChipModel: what an estimate asks of a chip. Only its family knows what it is made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from flint.backends.cost.chips.kernels import Kernels
from flint.backends.cost.chips.peaks import ON_GPU, ProductTypes
from flint.errors import FlintError

if TYPE_CHECKING:
    from flint.cluster.models import Chip

Float64s = NDArray[np.float64]


class ChipModel(ABC):
    """A chip as its family prices it. What is not said otherwise is that of a GPU."""

    #: Whose collectives run on such chips.
    library: ClassVar[str] = "NCCL"
    #: What such chips multiply for each type.
    types: ClassVar[ProductTypes] = ON_GPU

    def __init__(self, chip: Chip) -> None:
        self.chip = chip

    @abstractmethod
    def latency_ns(self, kernels: Kernels) -> Float64s:
        """How long each kernel runs, in nanoseconds; 0 for UNPRICED ones.

        Raises FlintError FL705 if the chip has no peak for a type that a kernel calculates with.
        """

    @abstractmethod
    def note(self) -> str:
        """What the constants of the model were not made for; "" if nothing."""

    def profile(self, captured: str, recorded: bool) -> str:
        """Whose kernels run: those that the program was captured for, or its usual compiler's.

        `captured` is "" where nothing says; `recorded` is whether PyTorch ran the program.
        """
        if captured and captured != "xla-tpu":
            return captured
        return "eager" if recorded else "xla-gpu"


class Roofline(ChipModel):
    """A chip of no family: max(flops / peak, bytes / bandwidth), at full efficiency.

    A type without a peak of its own has the chip's highest.
    """

    def latency_ns(self, kernels: Kernels) -> Float64s:
        peak = np.array([self._peak_flops_per_s(name) for name in kernels.dtypes])[kernels.dtype]
        calculating = kernels.flops / peak
        moving = kernels.moved_bytes / self.chip.memory_bandwidth_bytes_per_s.value
        return np.asarray(1e9 * np.maximum(calculating, moving), dtype=np.float64)

    def _peak_flops_per_s(self, dtype: str) -> float:
        try:
            return self.types.flops_per_ns(self.chip, dtype) * 1e9
        except FlintError:
            return max(quantity.value for quantity in self.chip.peak_flops_per_s.values())

    def note(self) -> str:
        return f"{self.chip.name} has no model of its kernels: they are priced by a plain roofline"


def model_of(chip: Chip) -> ChipModel:
    """The model of a chip, which the table in its cluster file has."""
    return Roofline(chip) if chip.family is None else chip.family.model(chip)


def latency_ns(kernels: Kernels, chip: Chip) -> Float64s:
    """Nanoseconds of each kernel on a chip, as `ChipModel.latency_ns`."""
    return model_of(chip).latency_ns(kernels)


def peak_type(chip: Chip, dtype: str) -> tuple[str, int]:
    """As `ProductTypes.on`, by the chip's family. Raises FlintError FL705."""
    return model_of(chip).types.on(chip, dtype)


def peak_flops_per_ns(chip: Chip, dtype: str) -> float:
    """As `ProductTypes.flops_per_ns`, by the chip's family. Raises FlintError FL705."""
    return model_of(chip).types.flops_per_ns(chip, dtype)
