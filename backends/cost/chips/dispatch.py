"""Kernels of all kinds to the latency model of each, for any kind of chip."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from flint.backends.cost.chips.kernels import KernelKind, Kernels

Float64s = NDArray[np.float64]
H = TypeVar("H")
H_contra = TypeVar("H_contra", contravariant=True)


class AttentionModel(Protocol[H_contra]):
    """Nanoseconds of attention kernels that calculate in one type."""

    def __call__(
        self, kernels: Kernels, hardware: H_contra, dtype: str, /, *, backward: bool
    ) -> Float64s: ...


def dispatched_ns(
    kernels: Kernels,
    hardware: H,
    models: Mapping[KernelKind, Callable[[Kernels, H], Float64s]],
    product: Callable[[Kernels, H, str], Float64s],
    attention: AttentionModel[H],
    declared: Callable[[Kernels, H, str], Float64s],
) -> Float64s:
    """Nanoseconds of each kernel, 0 for UNPRICED ones.

    `models` are those of kinds whose time does not depend on a type's peak; products, attention and
    kernels with declared work are asked type by type.
    """
    times = np.zeros(len(kernels), np.float64)
    for code in np.unique(kernels.kind):
        kind, rows = KernelKind(code), np.flatnonzero(kernels.kind == code)
        if kind in models:
            times[rows] = models[kind](kernels.select(rows), hardware)
        elif kind != KernelKind.UNPRICED:
            times[rows] = _by_type(
                kernels.select(rows), hardware, kind, product, attention, declared
            )
    return times


def _by_type(
    kernels: Kernels,
    hardware: H,
    kind: KernelKind,
    product: Callable[[Kernels, H, str], Float64s],
    attention: AttentionModel[H],
    declared: Callable[[Kernels, H, str], Float64s],
) -> Float64s:
    times = np.zeros(len(kernels), np.float64)
    for code in np.unique(kernels.dtype):
        rows = np.flatnonzero(kernels.dtype == code)
        part, dtype = kernels.select(rows), kernels.dtypes[code]
        if kind in (KernelKind.GEMM, KernelKind.CONVOLUTION):
            times[rows] = product(part, hardware, dtype)
        elif kind == KernelKind.DECLARED:
            times[rows] = declared(part, hardware, dtype)
        else:
            backward = kind == KernelKind.ATTENTION_BACKWARD
            times[rows] = attention(part, hardware, dtype, backward=backward)
    return times
