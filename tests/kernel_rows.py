"""Kernels one by one, to hold prices against formulas that are written in plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from flint.backends.cost.chips.kernels import KernelKind, Kernels

_ATTENTION = (KernelKind.ATTENTION, KernelKind.ATTENTION_BACKWARD)
_PRODUCTS = (KernelKind.GEMM, KernelKind.CONVOLUTION)


@dataclass(frozen=True)
class Row:
    """One kernel, as a row of `Kernels`."""

    kind: KernelKind
    dims: tuple[float, float, float, float]
    flops: int
    read: int
    written: int
    elements: int
    arrays: int = 3
    causal: bool = False
    dtype: str = "bf16"

    @property
    def moved(self) -> int:
        """Bytes that cross its edge."""
        return self.read + self.written

    @property
    def sides(self) -> tuple[float, ...]:
        """Its dimensions, 1 where it says none."""
        return tuple(max(side, 1) for side in self.dims)

    @property
    def touched(self) -> float:
        """Elements of rows that it reads."""
        return max(self.dims[1] * self.dims[3], self.elements)

    def with_dims(self, dims: tuple[float, float, float, float]) -> Row:
        """The same with other dimensions."""
        return replace(self, dims=dims)


def columns_of(rows: Sequence[Row]) -> Kernels:
    """Rows as columns."""
    dtypes = sorted({row.dtype for row in rows})

    def column(values: Sequence[int]) -> np.ndarray:
        return np.array(values, np.int64)

    return Kernels(
        kind=np.array([row.kind for row in rows], np.uint8),
        dtype=np.array([dtypes.index(row.dtype) for row in rows], np.uint8),
        dims=np.array([row.dims for row in rows], np.int64),
        flops=column([row.flops for row in rows]),
        read_bytes=column([row.read for row in rows]),
        written_bytes=column([row.written for row in rows]),
        elements=column([row.elements for row in rows]),
        arrays=column([row.arrays for row in rows]),
        causal=np.array([row.causal for row in rows]),
        dtypes=tuple(dtypes),
    )


def drawn_rows(kind: KernelKind, dtypes: Sequence[str], seed: int, count: int = 120) -> list[Row]:
    """Kernels of a kind, small and large, with sizes at powers of two and beside them."""
    random = Random(seed)
    return [_drawn(kind, random.choice(list(dtypes)), random) for _ in range(count)]


def without_dimensions(kind: KernelKind) -> list[Row]:
    """Kernels of a kind of which nothing but flops, bytes and elements are known."""
    some = (0, 1, 2, 5, 10**4, 10**9)
    return [
        Row(kind, (0, 0, 0, 0), flops, read, written, elements)
        for flops in (0, 1, 2, 10**3, 10**12)
        for read, written, elements in zip(some, reversed(some), some[1:] + some[:1], strict=True)
    ]


def _drawn(kind: KernelKind, dtype: str, random: Random) -> Row:
    batch, m, n, k = (_extent(random, top) for top in (7, 15, 15, 13))
    if kind in _ATTENTION:
        batch, k = _extent(random, 7), random.choice((32, 64, 80, 128, 160, 192, 256, 512, 1024))
        m = random.choice((1, 7, 8, 9, m))
    elif kind not in _PRODUCTS:
        n = 1
    if kind is KernelKind.FFT:
        batch, k = _extent(random, 20), _extent(random, 24)
    if kind in (KernelKind.SORT, KernelKind.TOP_K):
        k = _extent(random, 28)
    if kind is KernelKind.DECLARED:
        m = _extent(random, 34)
    flops = 2 * batch * m * n * k * (2 if kind in _ATTENTION else 1)
    return Row(
        kind,
        (batch, m, n, k),
        int(flops * random.choice((0.3, 0.5, 1, 1, 1, 1.3, 4))),
        _extent(random, 30),
        _extent(random, 28),
        _extent(random, 4) * m if kind is KernelKind.TOP_K else _extent(random, 26),
        random.randint(1, 6),
        kind in _ATTENTION and random.random() < 0.5,
        dtype,
    )


def _extent(random: Random, top: int) -> int:
    """A power of two up to 2 ** top, one more or less, or anything."""
    near: int = 2 ** random.randint(0, top)
    return max(random.choice((near, near + 1, near - 1, random.randint(1, near))), 1)


def kernels(
    kind: KernelKind,
    dims: tuple[int, int, int, int] = (0, 0, 0, 0),
    *,
    count: int = 1,
    flops: int = 0,
    read: int = 0,
    written: int = 0,
    elements: int = 0,
    causal: bool = False,
    dtype: str = "bf16",
) -> Kernels:
    """`count` kernels that are all alike."""

    def column(value: int) -> np.ndarray:
        return np.full(count, value, np.int64)

    return Kernels(
        kind=column(kind).astype(np.uint8),
        dtype=np.zeros(count, np.uint8),
        dims=np.tile(np.array(dims, np.int64), (count, 1)),
        flops=column(flops),
        read_bytes=column(read),
        written_bytes=column(written),
        elements=column(elements),
        arrays=column(3),
        causal=np.full(count, causal),
        dtypes=(dtype,),
    )


def gemm(m: int, n: int, k: int, batch: int = 1, dtype: str = "bf16", size: int = 2) -> Kernels:
    """A product of (m x k) by (k x n), of numbers of `size` bytes."""
    return kernels(
        KernelKind.GEMM,
        (batch, m, n, k),
        flops=2 * batch * m * n * k,
        read=size * batch * (m * k + k * n),
        written=size * batch * m * n,
        elements=batch * m * n,
        dtype=dtype,
    )
