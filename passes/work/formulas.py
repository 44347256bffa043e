"""What operations cost to run: the one place that counts FLOPs, whichever form they were read from.

A reader (StableHLO, HLO, PyTorch) finds sizes in its own form of an operation and asks here. A
multiply-add counts 2. Elementwise arithmetic counts 1 for each result element, unless its reader
knows better; moving and converting data counts 0. Sizes are of one device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from flint.ir.dims import NO_DIMS, AttentionDims, DimsRow, ProductDims, ReductionDims, TransformDims
from flint.ir.op_class import DATA_MOVEMENT, ELEMENTWISE, GENERATED, LAYOUT, OpClass
from flint.passes.work.work import Work

#: Classes that move, make or convert data without arithmetic.
NO_ARITHMETIC = DATA_MOVEMENT | LAYOUT | GENERATED | {OpClass.CONVERT, OpClass.REDUCE_PRECISION}


def by_class(op: OpClass, elements: int, per_element: int = 1) -> Work | None:
    """The work that a class alone tells, of a result of `elements`; None for other classes."""
    if op in NO_ARITHMETIC:
        return Work()
    return Work(flops=elements * per_element) if op in ELEMENTWISE else None


#: The target of cuDNN's product of operands with a scale for each block of k.
SCALED_DOT = "__op$block_scaled_dot"


def product(batch: int, m: int, n: int, k: int, *, product: str, added: int = 0) -> Work:
    """2 x batch x m x n x k, and `added` operations for what is added to the product."""
    return Work(
        flops=2 * batch * m * n * k + added, dims=ProductDims(batch, m, n, k).row, product=product
    )


def convolution(
    positions: int,
    features: int,
    k: int,
    groups: int,
    *,
    product: str,
    used: int = 1,
    taps: int = 1,
) -> Work:
    """As implicit GEMM: m = output positions, n = output features, k = window x input features.

    For grouped convolutions batch is the number of groups. Of `taps` window elements over all
    positions `used` meet an element: fewer where the input is dilated or mostly padding (the
    gradient of a strided convolution).
    """
    split, taps = max(min(groups, features), 1), max(taps, 1)
    flops = 2 * positions * features * k * used // taps
    dims = ProductDims(split, positions, features // split, -(-k * used // taps))
    return Work(flops=flops, dims=dims.row, product=product)


def attention(
    heads: int,
    queries: int,
    keys: int,
    size: int,
    value_size: int,
    *,
    backward: bool,
    product: str,
    scores: int = 0,
) -> Work:
    """Two matrix products forward, five backward (FlashAttention, arXiv 2205.14135, app. B).

    `heads` are those of all sequences of the batch. Keys may have fewer heads (grouped queries).
    `scores` are those of one head, where they are not queries x keys.
    Masks are not credited: a causal kernel that skips blocks does about half of this.
    """
    sizes = 3 * size + 2 * value_size if backward else size + value_size
    flops = 2 * heads * (scores or queries * keys) * sizes
    return Work(
        flops=flops,
        dims=AttentionDims(heads, queries, keys, size).row,
        product=product,
        op=OpClass.ATTENTION_BACKWARD if backward else OpClass.ATTENTION,
    )


def reduction(elements: int, rows: int, per_element: int = 1) -> Work:
    """`per_element` operations for each input element."""
    rows = max(rows, 1)
    dims = ReductionDims(rows, max(elements // rows, 1))
    return Work(flops=elements * per_element, dims=dims.row)


def windows(elements: int, operations: int, windows: int, per_element: int) -> Work:
    """`elements` results of windows, of which `windows` take `operations` times `per_element`."""
    done = elements * operations // max(windows, 1)
    reduced = -(-done // max(elements, 1))
    return Work(flops=done * per_element, dims=ReductionDims(elements, reduced).row)


def select_and_scatter(elements: int, window: int) -> Work:
    """One comparison for each window element of each source element, and one addition."""
    return Work(flops=elements * (window + 1))


def batch_norm(elements: int) -> Work:
    """About eight operations an element: mean, variance, scale and shift (two passes)."""
    return Work(flops=8 * elements)


def doublings(length: int) -> int:
    """How often 1 is doubled to reach `length`, at least once."""
    return max(math.ceil(math.log2(max(length, 2))), 1)


def sort(elements: int, length: int) -> Work:
    """n log2 n comparisons along the sorted dimension, of `length`."""
    length = max(length, 1)
    rows = elements // length
    return Work(flops=rows * length * doublings(length), dims=ReductionDims(rows, length).row)


def top_k(elements: int, length: int, k: int) -> Work:
    """One comparison for each element and each doubling of k."""
    dims = ReductionDims(elements // max(length, 1), length)
    return Work(flops=elements * doublings(k), dims=dims.row)


def fft(elements: int, lengths: Sequence[int]) -> Work:
    """5 n log2 n operations for each transform of n elements (Cooley and Tukey's upper bound).

    `lengths` are those of the transformed axes.
    """
    *outer_lengths, last = lengths
    outer = math.prod(outer_lengths)
    length = max(outer * last, 1)
    flops = int(5 * elements * math.log2(max(length, 2)))
    return Work(flops=flops, dims=TransformDims(outer, elements // length, last).row)


def cholesky(matrices: int, n: int) -> Work:
    """n^3 / 3 for each matrix (Golub and Van Loan, section 4.2)."""
    return Work(flops=matrices * n**3 // 3)


def lu(matrices: int, m: int, n: int) -> Work:
    """m n^2 - n^3 / 3 for m >= n (Golub and Van Loan, section 3.2)."""
    m, n = max(m, n), min(m, n)
    return Work(flops=matrices * (m * n**2 - n**3 // 3))


def qr(matrices: int, m: int, n: int) -> Work:
    """2 n^2 (m - n / 3) for m >= n (Golub and Van Loan, section 5.2)."""
    m, n = max(m, n), min(m, n)
    return Work(flops=matrices * (2 * n**2 * m - 2 * n**3 // 3))


def triangular_solve(elements: int, n: int) -> Work:
    """n^2 for each right-hand side, of which all have `elements` (Golub and Van Loan, 3.1)."""
    return Work(flops=elements * n)


def random(num_bytes: int) -> Work:
    """About ten integer operations for each 32-bit word (Philox 4x32: 10 rounds for 4 words)."""
    return Work(flops=10 * num_bytes // 4)


def slice_(result_bytes: int) -> Work:
    """It reads what it returns."""
    return Work(operand_bytes=result_bytes)


def gather(result_bytes: int, index_bytes: int, elements: int, row: int) -> Work:
    """Rows of `row` elements, `elements` in all: it reads what it returns, and indices.

    Never the whole operand.
    """
    return Work(operand_bytes=result_bytes + index_bytes, dims=row_dims(elements, row))


def row_dims(elements: int, row: int) -> DimsRow:
    """Dims of look-ups and writes by index: `elements` in rows of `row` elements each."""
    return ReductionDims(elements // row, row).row if elements and row else NO_DIMS


def update_slice(update_bytes: int) -> Work:
    """Reads and writes the update; the rest of the buffer stays where it is."""
    return Work(operand_bytes=update_bytes, result_bytes=update_bytes, in_place=True)


def scatter(
    adds: int, update_bytes: int, index_bytes: int, whole_bytes: int, elements: int, row: int
) -> Work:
    """Rows of `row` elements, `elements` in all: it reads them, indices and the places written.

    One operation for each element added. No more is read of the `whole_bytes` that it adds to than there is.
    """
    return Work(
        flops=adds,
        operand_bytes=update_bytes + index_bytes + min(update_bytes, whole_bytes),
        result_bytes=update_bytes,
        in_place=True,
        dims=row_dims(elements, row),
    )


# Factorizations of matrices that are calls of a library, by the target of the call.

_GPU: dict[str, Callable[[int, int, int], Work]] = {
    "potrf": lambda matrices, _, n: cholesky(matrices, n),
    "getrf": lu,
    "geqrf": qr,
}
#: Target to the work of so many m x n matrices; names of GPUs, of StableHLO, then of TPUs.
FACTORIZATIONS: dict[str, Callable[[int, int, int], Work]] = {
    **{f"{gpu}solver_{name}_ffi": work for gpu in ("cu", "hip") for name, work in _GPU.items()},
    "LuDecomposition": lu,
    "Qr": qr,
    "Cholesky": _GPU["potrf"],
    "LuDecompositionBlock": lu,
    "QrDecompositionBlock": qr,
}
