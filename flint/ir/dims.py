"""What the four numbers of a row's `dims` are, by class: the sizes that a price depends on.

`X(...).row` is what a row holds, `X.of(dims)` names what rows hold: of one row, or of a column of
rows, first index rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeAlias, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    S = TypeVar("S", bound=np.generic)

#: What a row holds; all zero if its class has no sizes.
DimsRow: TypeAlias = tuple[int, int, int, int]
NO_DIMS: DimsRow = (0, 0, 0, 0)
#: A number, or a number for each row.
N = TypeVar("N")


class ProductDims(NamedTuple, Generic[N]):
    """A product of (m, k) with (k, n) matrices, `batch` times. MATMUL, CONVOLUTION, ..."""

    batch: N
    m: N
    n: N
    k: N

    @property
    def row(self) -> tuple[N, N, N, N]:
        """(batch, m, n, k)."""
        return self.batch, self.m, self.n, self.k

    @classmethod
    def of(cls, dims: NDArray[S]) -> ProductDims[NDArray[S]]:
        """Named numbers of rows."""
        return ProductDims(*(dims[..., i] for i in range(4)))


class AttentionDims(NamedTuple, Generic[N]):
    """The product of queries and keys, each of `size` numbers. ATTENTION, FUSED_ATTENTION, ..."""

    heads: N
    queries: N
    keys: N
    size: N

    @property
    def row(self) -> tuple[N, N, N, N]:
        """(heads, queries, keys, size)."""
        return self.heads, self.queries, self.keys, self.size

    @classmethod
    def of(cls, dims: NDArray[S]) -> AttentionDims[NDArray[S]]:
        """Named numbers of rows."""
        return AttentionDims(*(dims[..., i] for i in range(4)))


class ReductionDims(NamedTuple, Generic[N]):
    """Each of `rows` results is made of `reduced` elements. REDUCE, SOFTMAX, NORM, SORT, TOP_K."""

    rows: N
    reduced: N

    @property
    def row(self) -> tuple[int, N, int, N]:
        """(1, rows, 1, reduced)."""
        return 1, self.rows, 1, self.reduced

    @classmethod
    def of(cls, dims: NDArray[S]) -> ReductionDims[NDArray[S]]:
        """Named numbers of rows."""
        return ReductionDims(dims[..., 1], dims[..., 3])


class TransformDims(NamedTuple, Generic[N]):
    """`transforms` of `outer` x `last` elements, of which `last` are those of the last axis. FFT."""

    outer: N
    transforms: N
    last: N

    @property
    def row(self) -> tuple[N, N, int, N]:
        """(outer, transforms, 1, last)."""
        return self.outer, self.transforms, 1, self.last

    @classmethod
    def of(cls, dims: NDArray[S]) -> TransformDims[NDArray[S]]:
        """Named numbers of rows."""
        return TransformDims(dims[..., 0], dims[..., 1], dims[..., 3])


class DeclaredDims(NamedTuple, Generic[N]):
    """Transcendental functions that a kernel declares, at least 1. DECLARED."""

    transcendentals: N

    @property
    def row(self) -> tuple[int, N, int, int]:
        """(1, transcendentals, 1, 1)."""
        return 1, self.transcendentals, 1, 1

    @classmethod
    def of(cls, dims: NDArray[S]) -> DeclaredDims[NDArray[S]]:
        """Named numbers of rows."""
        return DeclaredDims(dims[..., 1])


class StashDims(NamedTuple, Generic[N]):
    """What an earlier pass of a pipeline saved: how many more of it wait in the stash, for which
    chunk, and which of the values that this saves it is. SAVED."""

    waiting: N
    chunk: N
    number: N

    @property
    def row(self) -> tuple[N, N, N, int]:
        """(waiting, chunk, number, 0)."""
        return self.waiting, self.chunk, self.number, 0

    @classmethod
    def of(cls, dims: NDArray[S]) -> StashDims[NDArray[S]]:
        """Named numbers of rows."""
        return StashDims(dims[..., 0], dims[..., 1], dims[..., 2])
