"""What holds on any chip that prices kernels by kind: which formula is asked, and shared ones.

Fourier transforms: a library transforms one axis after the other. An axis of which one line fits
into the memory of a core is read and written once; a longer one is split into two factors, each a
pass with twiddle factors between them (Bailey, "FFTs in external or hierarchical memory", 1990;
cuFFT and VkFFT do the same). Lines that fit make one kernel for each axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from flint.backends.cost.chips.kernels import KernelKind, Kernels

Float64s = NDArray[np.float64]
H = TypeVar("H", bound="HasRates")
H_contra = TypeVar("H_contra", contravariant=True)
#: Bytes of a complex number of two f32; a real transform works on as many of half the length.
COMPLEX_BYTES = 8


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
    are asked type by type.
    """

    simple: Mapping[KernelKind, Callable[[Kernels, H], Float64s]]
    product: Callable[[Kernels, H, str], Float64s]
    attention: AttentionFormula[H]

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
            if kind in (KernelKind.GEMM, KernelKind.CONVOLUTION):
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
    functions = kernels.dims[:, 1] / hardware.functions_per_ns
    memory = kernels.moved_bytes / (c["gemm.memory_efficiency"] * hardware.memory_bytes_per_ns)
    longest = np.maximum(np.maximum(arithmetic, functions), memory)
    result: Float64s = c["gemm.launch_ns"] + longest
    return result


def row_elements(kernels: Kernels) -> Float64s:
    """Rows times columns, or the elements of the result where a kernel says no rows."""
    counted = kernels.dims[:, 1].astype(np.float64) * kernels.dims[:, 3]
    return np.maximum(counted, kernels.elements)


def fft_passes(kernels: Kernels, line_bytes: float) -> Float64s:
    """How often each transform goes through memory, where a line of `line_bytes` fits on chip.

    dims are (outer axes, transforms, 1, last axis): outer axes count as one.
    """
    longest = line_bytes / COMPLEX_BYTES
    outer, last = kernels.dims[:, 0], kernels.dims[:, 3]
    found: Float64s = np.where(last > longest, 2.0, 1.0)
    found += np.where(outer > 1, np.where(outer > longest, 2.0, 1.0), 0.0)
    return found
