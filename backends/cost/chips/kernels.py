"""The kernels of a program as columns: what the latency models of all chips are asked about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flint.ir.program import Int64s

if TYPE_CHECKING:
    from flint.cluster.kernel_times import KernelTable, Key


class KernelKind(IntEnum):
    """What a kernel is to a latency model. `dims` holds, by kind, the numbers in brackets."""

    GEMM = 0  #: product of matrices (batch, m, n, k)
    CONVOLUTION = 1  #: as an implicit product of matrices (batch, m, n, k)
    ATTENTION = 2  #: fused attention (batch x heads, queries, keys, head size)
    ATTENTION_BACKWARD = 3  #: its backward pass (batch x heads, queries, keys, head size)
    ELEMENTWISE = 4  #: chains of element-wise operations, casts and broadcasts
    REDUCTION = 5  #: sums, maxima (1, rows, 1, reduced)
    SOFTMAX = 6  #: (1, rows, 1, columns)
    NORM = 7  #: layer norm, RMS norm and their backward passes (1, rows, 1, columns)
    COPY = 8  #: transposes, slices, concatenations: bytes move, nothing is calculated
    GATHER = 9  #: embedding look-ups, takes (1, rows, 1, columns)
    SCATTER = 10  #: and scatter-adds (1, rows, 1, columns)
    SORT = 11  #: sorts (1, rows, 1, columns)
    OPTIMIZER = 12  #: an optimizer's update of a parameter: element-wise over several arrays
    RANDOM = 13  #: draws of random numbers
    UNPRICED = 14  #: nothing is known of its work
    DECLARED = 15  #: written by hand: flops and bytes as declared (1, transcendentals, 1, 1)
    FFT = 16  #: Fourier transforms (outer axes, transforms, 1, last axis)
    TOP_K = 17  #: the k largest of each row (1, rows, 1, columns)
    HOST_COPY = 18  #: to or from the memory of the host: bytes over the chip's link


@dataclass(frozen=True, eq=False)
class Kernels:
    """Kernels in columns of one length.

    | column | meaning |
    |---|---|
    | kind | `KernelKind` |
    | dtype | index into `dtypes` (StableHLO's names) of what it calculates with |
    | dims | (batch, m, n, k), see `KernelKind`; 0 where a kind has none |
    | flops | of one execution; of causal attention, the half that is calculated |
    | read_bytes, written_bytes | what crosses the edge of the kernel |
    | elements | number of elements of its largest result |
    | arrays | number of arrays that it reads and writes |
    | causal | whether an attention kernel omits the upper half |
    | indexed | whether it finds the place of each element, or place in a window of an image (`Flag.INDEXED`); None: no kernel does |
    | all_keys | of attention behind a window, the keys that there are; 0 where queries see them all |
    | phase | `Phase` of the step that it belongs to; UNKNOWN of kernels that were only measured |
    """

    kind: NDArray[np.uint8]
    dtype: NDArray[np.uint8]
    dims: Int64s
    flops: Int64s
    read_bytes: Int64s
    written_bytes: Int64s
    elements: Int64s
    arrays: Int64s
    causal: NDArray[np.bool_]
    dtypes: tuple[str, ...]
    indexed: NDArray[np.bool_] | None = None
    #: Of grouped products by their number of groups, shares (layers, groups) of the rows of each
    #: group; what is not there is balanced.
    spread: Mapping[int, NDArray[np.float64]] = field(default_factory=dict)
    all_keys: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    phase: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))

    def __post_init__(self) -> None:
        for name in ("all_keys", "phase"):
            column = getattr(self, name)
            if len(column) != len(self.kind):
                object.__setattr__(self, name, np.zeros(len(self.kind), column.dtype))

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def moved_bytes(self) -> Int64s:
        """Bytes read and written."""
        return self.read_bytes + self.written_bytes

    def select(self, rows: NDArray[np.bool_] | Int64s) -> Kernels:
        """Some of the kernels, by mask or index."""
        columns = {
            name: value[rows]
            for name, value in vars(self).items()
            if name not in ("dtypes", "spread") and value is not None
        }
        return Kernels(**columns, dtypes=self.dtypes, spread=self.spread)

    @property
    def indexed_elements(self) -> Int64s:
        """Elements whose places are found one by one."""
        return (
            np.zeros_like(self.elements) if self.indexed is None else self.indexed * self.elements
        )


#: Kinds whose dimensions and type say all.
_PLAIN = ("gemm", "convolution")


def keys_of(kernels: Kernels) -> list[Key]:
    """What each kernel is found by in a table of measured times."""
    from flint.cluster.kernel_times import Key

    names = [KernelKind(k).name.lower() for k in kernels.kind.tolist()]
    rows = zip(
        names,
        kernels.dtype.tolist(),
        kernels.dims.tolist(),
        kernels.causal.tolist(),
        kernels.read_bytes.tolist(),
        kernels.written_bytes.tolist(),
        (kernels.indexed_elements > 0).tolist(),
        strict=True,
    )
    return [
        Key(kind, kernels.dtypes[dtype], b, m, n, k, causal, read * said, written * said, indexed)
        for kind, dtype, (b, m, n, k), causal, read, written, indexed in rows
        for said in (0 if kind in _PLAIN else 1,)
    ]


def measured_ns(table: KernelTable, kernels: Kernels) -> NDArray[np.float64]:
    """The time of each kernel in a table, NaN for those that were not measured."""
    found = [table.times.get(key, np.nan) for key in keys_of(kernels)]
    return np.array(found, dtype=np.float64)
