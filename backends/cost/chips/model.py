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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from flint.backends.cost.chips.kernels import KernelKind, Kernels, measured_ns
from flint.cluster.tables import families
from flint.errors import FlintError
from flint.ir.arrays import Float64s
from flint.ir.dims import DeclaredDims, ReductionDims, TransformDims
from flint.plugins import CHIP_FAMILIES, blamed

if TYPE_CHECKING:
    from flint.cluster.models import Chip


# Which peak of a chip's file a product runs at, by what it multiplies, and how many make one.
#
# A GPU multiplies f32 on its CUDA cores (`f32:highest`, `f32:ieee`) or its Tensor Cores in TF32:
# XLA takes those unless the precision is HIGHEST (`GetBlasComputationType` in its
# stream_executor/gpu/gpu_blas_lt.cc: up to HIGH). A TPU has bf16 only, and makes f32 of 3 products of
# halves at HIGH, 6 at HIGHEST (docs.jax.dev, `jax.lax.Precision`).


@dataclass(frozen=True)
class ProductTypes:
    """What chips of a family multiply for a type.

    `same` are the types that are as fast, where a chip's file has no peak of the type's own; `f8`
    those of all floats of 8 bits. `f32` says what is done for f32 that is asked for in a certain
    way: in which type, and how many products of that.
    """

    same: Mapping[str, tuple[str, ...]]
    f8: tuple[str, ...]
    f32: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    def on(self, chip: Chip, dtype: str) -> tuple[str, int]:
        """The type whose peak products of `dtype` run at, and how many of it are done for one.

        `dtype` is a name of `flint.ir.product_types`. Raises FlintError FL705 if the chip's file
        has no peak for it.
        """
        name, _, how = dtype.partition(",")[0].partition(":")
        name, products = (name, int(how)) if how.isdigit() else self.f32.get(how, (name, 1))
        instead = self.f8 if name.startswith("f8") else self.same.get(name, ())
        for candidate in (name, *instead):
            if candidate in chip.peak_flops_per_s:
                return candidate, products
        raise FlintError(
            "FL705",
            f"chip '{chip.name}' has no peak for {name}",
            help=f"add {name} to [chip.peak_flops_per_s] of the cluster file",
        )

    def flops_per_ns(self, chip: Chip, dtype: str) -> float:
        """Dense rate of products of `dtype`. Raises FlintError FL705 as `on` does."""
        name, products = self.on(chip, dtype)
        return chip.peak_flops_per_s[name].value * 1e-9 / products


#: 32-bit integers multiply at the rate of f32 on A100 and at half of it on H100 (NVIDIA's
#: whitepapers).
ON_GPU = ProductTypes(
    same={
        "f16": ("bf16",),
        "bf16": ("f16",),
        "ui8": ("i8",),
        "tf32": ("f32",),
        "i32": ("f32",),
        "ui32": ("f32",),
    },
    f8=("f8E4M3FN", "f8E5M2"),
    f32={"high": ("tf32", 1), "tf32": ("tf32", 1)},
)
#: Operands are converted on the way into the arrays.
ON_TPU = ProductTypes(
    same={
        "f16": ("bf16",),
        "f32": ("bf16",),
        "tf32": ("bf16",),
        "ui8": ("i8",),
        "i4": ("i8",),
        "ui4": ("i8",),
    },
    f8=("bf16",),
    f32={"high": ("f32", 3), "highest": ("f32", 6)},
)

_PRODUCTS = frozenset(
    {KernelKind.GEMM, KernelKind.CONVOLUTION, KernelKind.ATTENTION, KernelKind.ATTENTION_BACKWARD}
)
#: Profiles of PyTorch. `torch.backends.cudnn.allow_tf32` is true unless a program says otherwise,
#: `torch.backends.cuda.matmul.allow_tf32` is false (docs.pytorch.org, "CUDA semantics").
_TORCH = ("eager", "torch", "inductor", "megatron")


def tf32_kinds(profile: str, chip: Chip) -> frozenset[KernelKind]:
    """The kinds of kernels that use TF32 where they multiply f32: none on a chip without it.

    XLA for GPUs uses it for all, PyTorch for convolutions only. That is for products of which the
    program says no more than f32 (`flint.ir.product_types`): others are done as they say.
    """
    if "tf32" not in chip.peak_flops_per_s:
        return frozenset()
    if profile.startswith("xla-gpu"):
        return _PRODUCTS
    return frozenset({KernelKind.CONVOLUTION}) if profile in _TORCH else frozenset()


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

    def lender(self) -> Chip | None:
        """The chip whose constants stand for those that this one's file does not have; None: it has all."""
        return None

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
        return f"{self.chip.name} has no kernel models: its kernels are priced by a plain roofline"


def model_of(chip: Chip) -> ChipModel:
    """The model of a chip, which the table in its cluster file has."""
    if chip.family is None:
        return Roofline(chip)
    name = chip.family.table
    with blamed(CHIP_FAMILIES, name, f"price {chip.name}"):
        found = families()[name].model(chip)
        if not isinstance(found, ChipModel):
            raise TypeError("its prices are no ChipModel")
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
