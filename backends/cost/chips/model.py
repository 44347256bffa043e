"""ChipModel: what an estimate asks of a chip, and formulas that chips of several families share.

Only its family knows what a chip is made of.

Fourier transforms: a library transforms one axis after the other. An axis of which one line fits
into the memory of a core is read and written once; a longer one is split into two factors, each a
pass with twiddle factors between them (Bailey, "FFTs in external or hierarchical memory", 1990;
cuFFT and VkFFT do the same). Lines that fit make one kernel for each axis.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from flint.backends.cost.chips.kernels import KernelKind, Kernels, measured_ns
from flint.backends.cost.chips.peaks import ON_GPU, ProductTypes
from flint.cluster.tables import families
from flint.errors import FlintError
from flint.ir.arrays import Float64s
from flint.ir.dims import DeclaredDims, ReductionDims, TransformDims

if TYPE_CHECKING:
    from flint.cluster.models import Chip

H = TypeVar("H", bound="HasRates")
H_contra = TypeVar("H_contra", contravariant=True)
#: Bytes of a complex number of two f32; a real transform works on as many of half the length.
COMPLEX_BYTES = 8


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

    def constants_in_use(self) -> Mapping[str, float]:
        """The constants that prices are made with, the chip's own and borrowed ones; {}: none."""
        return {}

    def libraries(self) -> tuple[str, ...]:
        """The libraries that run and have constants of their own for this chip, or for its lender."""
        return ()

    @property
    def cycles_per_ns(self) -> float:
        """The clock of the cycles that a compiler estimates for such a chip; 0: no compiler does."""
        return 0.0

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
    if chip.family is None:
        return Roofline(chip)
    found = families()[chip.family.table].model(chip)
    assert isinstance(found, ChipModel)
    return found


def latency_ns(kernels: Kernels, chip: Chip) -> Float64s:
    """Nanoseconds of each kernel on a chip: as measured in exactly its shape, else by its model.

    Raises as `ChipModel.latency_ns` does.
    """
    modelled = model_of(chip).latency_ns(kernels)
    if chip.measured_kernels is None:
        return modelled
    measured = measured_ns(chip.measured_kernels, kernels)
    return np.where(np.isnan(measured), modelled, measured)


def peak_type(chip: Chip, dtype: str) -> tuple[str, int]:
    """As `ProductTypes.on`, by the chip's family. Raises FlintError FL705."""
    return model_of(chip).types.on(chip, dtype)


def peak_flops_per_ns(chip: Chip, dtype: str) -> float:
    """As `ProductTypes.flops_per_ns`, by the chip's family. Raises FlintError FL705."""
    return model_of(chip).types.flops_per_ns(chip, dtype)


class HasRates(Protocol):
    """What shared formulas read of a chip."""

    @property
    def constants(self) -> Any: ...
    @property
    def memory_bytes_per_ns(self) -> float: ...
    @property
    def functions_per_ns(self) -> float:
        """Transcendental functions of the whole chip."""

    def peak_flops_per_ns(self, dtype: str) -> float: ...


class AttentionFormula(Protocol[H_contra]):
    """Nanoseconds of attention kernels that calculate in one type."""

    def __call__(
        self, kernels: Kernels, hardware: H_contra, dtype: str, /, *, backward: bool
    ) -> Float64s: ...


class Formulas(NamedTuple, Generic[H]):
    """The formulas of a family, by kind of kernel.

    `simple` are those of kinds whose time does not depend on a type's peak; products and attention
    are asked type by type. Without `convolution`, convolutions are products.
    """

    simple: Mapping[KernelKind, Callable[[Kernels, H], Float64s]]
    product: Callable[[Kernels, H, str], Float64s]
    attention: AttentionFormula[H]
    convolution: Callable[[Kernels, H, str], Float64s] | None = None

    def latency_ns(self, kernels: Kernels, hardware: H) -> Float64s:
        """Nanoseconds of each kernel, 0 for UNPRICED ones."""
        times = np.zeros(len(kernels), np.float64)
        for code in np.unique(kernels.kind):
            kind, rows = KernelKind(code), np.flatnonzero(kernels.kind == code)
            if kind in self.simple:
                times[rows] = self.simple[kind](kernels.select(rows), hardware)
            elif kind != KernelKind.UNPRICED:
                times[rows] = self._by_type(kernels.select(rows), hardware, kind)
        return times

    def _by_type(self, kernels: Kernels, hardware: H, kind: KernelKind) -> Float64s:
        times = np.zeros(len(kernels), np.float64)
        for code in np.unique(kernels.dtype):
            rows = np.flatnonzero(kernels.dtype == code)
            part, dtype = kernels.select(rows), kernels.dtypes[code]
            if kind == KernelKind.CONVOLUTION and self.convolution is not None:
                times[rows] = self.convolution(part, hardware, dtype)
            elif kind in (KernelKind.GEMM, KernelKind.CONVOLUTION):
                times[rows] = self.product(part, hardware, dtype)
            elif kind == KernelKind.DECLARED:
                times[rows] = declared_ns(part, hardware, dtype)
            else:
                backward = kind == KernelKind.ATTENTION_BACKWARD
                times[rows] = self.attention(part, hardware, dtype, backward=backward)
        return times


def declared_ns(kernels: Kernels, hardware: HasRates, dtype: str) -> Float64s:
    """Kernels that are written by hand, by the work that they declare (`pl.CostEstimate`).

        total = launch + max(flops / efficiency, transcendental functions, bytes / bandwidth)

    All rows have `dtype`. Their flops are taken to be those of products: a kernel that calculates
    element by element is bound by its bytes. Launch and efficiencies are those of products: what a
    good kernel reaches. Raises FlintError FL705 without a peak for the type.
    """
    c = hardware.constants
    arithmetic = kernels.flops / (c["gemm.efficiency"] * hardware.peak_flops_per_ns(dtype))
    functions = DeclaredDims.of(kernels.dims).transcendentals / hardware.functions_per_ns
    memory = kernels.moved_bytes / (c["gemm.memory_efficiency"] * hardware.memory_bytes_per_ns)
    longest = np.maximum(np.maximum(arithmetic, functions), memory)
    result: Float64s = c["gemm.launch_ns"] + longest
    return result


def row_elements(kernels: Kernels) -> Float64s:
    """Rows times columns, or the elements of the result where a kernel says no rows."""
    rows, columns = ReductionDims.of(kernels.dims)
    counted = rows.astype(np.float64) * columns
    return np.maximum(counted, kernels.elements)


def fft_passes(kernels: Kernels, line_bytes: float) -> Float64s:
    """How often each transform goes through memory, where a line of `line_bytes` fits on chip.

    Outer axes count as one.
    """
    longest = line_bytes / COMPLEX_BYTES
    outer, _, last = TransformDims.of(kernels.dims)
    found: Float64s = np.where(last > longest, 2.0, 1.0)
    found += np.where(outer > 1, np.where(outer > longest, 2.0, 1.0), 0.0)
    return found
