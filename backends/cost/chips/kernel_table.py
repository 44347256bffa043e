"""Program -> Kernels: what each COMPUTE row is to a latency model.

Of attention the masks say which scores a kernel calculates (`Program.mask`). A causal mask leaves
out the keys after each query, about half of all. A window omits those too, and of the others
all but the last of its keys. Kernels skip the blocks that a mask omits whole; blocks at its
edges are counted by the latency models. The last query sees the last key.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flint.backends.cost.chips.kernels import KernelKind, Kernels
from flint.ir.dims import AttentionDims, ProductDims, ReductionDims
from flint.ir.op_class import DATA_MOVEMENT, ELEMENTWISE, GENERATED, LAYOUT, OpClass
from flint.ir.program import Flag, Int64s, Kind, Phase, Program

#: The kind of kernel that a row of each class is.
KINDS: dict[OpClass, KernelKind] = {
    **dict.fromkeys(ELEMENTWISE | GENERATED, KernelKind.ELEMENTWISE),
    **dict.fromkeys(LAYOUT | DATA_MOVEMENT, KernelKind.COPY),
    OpClass.ALL_SLICE: KernelKind.COPY,
    OpClass.RANDOM: KernelKind.RANDOM,
    OpClass.DROPOUT: KernelKind.RANDOM,
    OpClass.GATHER: KernelKind.GATHER,
    OpClass.SCATTER: KernelKind.SCATTER,
    OpClass.REDUCE: KernelKind.REDUCTION,
    OpClass.REDUCE_SCATTERED: KernelKind.SCATTER,
    OpClass.SCAN: KernelKind.REDUCTION,
    OpClass.SOFTMAX: KernelKind.SOFTMAX,
    OpClass.BATCH_NORM: KernelKind.NORM,
    OpClass.NORM: KernelKind.NORM,
    OpClass.MATMUL: KernelKind.GEMM,
    OpClass.CONVOLUTION: KernelKind.CONVOLUTION,
    OpClass.CONVOLUTION_BACKWARD: KernelKind.CONVOLUTION,
    OpClass.ATTENTION: KernelKind.ATTENTION,
    OpClass.ATTENTION_BACKWARD: KernelKind.ATTENTION_BACKWARD,
    OpClass.SORT: KernelKind.SORT,
    OpClass.SOLVE: KernelKind.SORT,
    OpClass.TOP_K: KernelKind.TOP_K,
    OpClass.FFT: KernelKind.FFT,
    OpClass.DECLARED: KernelKind.DECLARED,
    OpClass.OPTIMIZER: KernelKind.OPTIMIZER,
    OpClass.TO_HOST: KernelKind.HOST_COPY,
    OpClass.FROM_HOST: KernelKind.HOST_COPY,
    OpClass.FUSED: KernelKind.ELEMENTWISE,
    OpClass.FUSED_LOOP: KernelKind.ELEMENTWISE,
    OpClass.FUSED_LAYOUT: KernelKind.COPY,
    OpClass.FUSED_ATTENTION: KernelKind.ATTENTION,
    OpClass.FUSED_ATTENTION_BACKWARD: KernelKind.ATTENTION_BACKWARD,
    OpClass.FUSED_SOFTMAX: KernelKind.SOFTMAX,
    OpClass.FUSED_NORM: KernelKind.NORM,
    OpClass.FUSED_REDUCTION: KernelKind.REDUCTION,
    OpClass.FUSED_OPTIMIZER: KernelKind.OPTIMIZER,
}
#: The same as a table of all classes; the kind of a class without one follows from its work.
_TABLE = np.full(256, KernelKind.UNPRICED, dtype=np.uint8)
_TABLE[list(KINDS)] = list(KINDS.values())
#: Classes whose kind follows from their work.
_BY_WORK = frozenset({OpClass.OTHER, OpClass.COMPILED, OpClass.EFFECT})


def kernel_rows(program: Program) -> Int64s:
    """The rows that launch a kernel."""
    moves = (program.result_bytes + program.operand_bytes > 0) & ((program.flags & Flag.VIEW) == 0)
    return np.flatnonzero((program.kind == Kind.COMPUTE) & (moves | (program.flops > 0)))


def kernels_of(program: Program, *, tf32: Collection[KernelKind] = ()) -> tuple[Kernels, Int64s]:
    """The kernels of a program, and the row of each.

    Products of the kinds `tf32` that have f32 operands are done in TF32.
    """
    kernels, rows = unmasked_kernels_of(program, tf32=tf32)
    return behind_masks(kernels, masks_of(program).select(rows)), rows


def unmasked_kernels_of(
    program: Program, *, tf32: Collection[KernelKind] = ()
) -> tuple[Kernels, Int64s]:
    """The same as if attention calculated all scores."""
    rows = kernel_rows(program)
    kind = _kinds(program, rows)
    updates = _updates(program, rows, kind)
    kind[updates] = KernelKind.OPTIMIZER
    kernels = Kernels(
        kind=kind,
        dtype=_dtypes(program, rows, kind, tf32),
        dims=program.dims[rows],
        flops=program.flops[rows],
        read_bytes=program.operand_bytes[rows],
        written_bytes=program.result_bytes[rows],
        elements=np.maximum(
            _elements(program, rows), np.where(updates, _reduced(program, rows), 0)
        ),
        arrays=np.diff(program.dep_start)[rows] + 1,
        causal=np.zeros(len(rows), dtype=np.bool_),
        indexed=(program.flags[rows] & Flag.INDEXED) != 0,
        dtypes=(*map(element_type, program.dtypes), "tf32", *_products(program)),
        phase=program.phase[rows],
    )
    return kernels, rows


def behind_masks(kernels: Kernels, masks: Masks) -> Kernels:
    """The kernels with what masks leave of the attention that calculates all scores."""
    dims, flops, read = kernels.dims, kernels.flops, kernels.read_bytes
    attends = (kernels.kind == KernelKind.ATTENTION) | (
        kernels.kind == KernelKind.ATTENTION_BACKWARD
    )
    return replace(
        kernels,
        dims=_with_keys(dims, band_keys(dims, masks)),
        flops=np.where(attends, masked_flops(flops, dims, masks), flops),
        read_bytes=np.where(attends, _seen_bytes(kernels, masks), read),
        causal=masks.causal,
        all_keys=np.where(attends & (masks.window > 0), AttentionDims.of(dims).keys, 0),
    )


def _with_keys(dims: Int64s, keys: Int64s) -> Int64s:
    """`dims`, in which attention has the keys that a query sees on average."""
    found = dims.copy()
    AttentionDims.of(found).keys[:] = keys
    return found


def _seen_bytes(kernels: Kernels, masks: Masks) -> Int64s:
    """What attention reads: of keys and values behind a window no more than its queries see.

    Queries are taken to have the bytes of the result, and the rest to be keys and values.
    """
    _, queries, keys, _ = AttentionDims.of(kernels.dims)
    read = kernels.read_bytes
    pairs = np.maximum(read - kernels.written_bytes, 0)
    seen = np.minimum(masks.window + queries - 1, keys) / np.maximum(keys, 1)
    unseen = np.where(masks.window > 0, pairs * (1 - seen), 0)
    found: Int64s = read - unseen.astype(np.int64)
    return found


def _kinds(program: Program, rows: Int64s) -> NDArray[np.uint8]:
    """Kinds by class. An operation of no class whose work is known is told by its work.

    It multiplies matrices (fusions of HLO that hold a product), copies, or calculates element by
    element (pooling, losses). Of what a program calls by name, only products are known. What is
    UNKNOWN or flagged UNPRICED has no price.
    """
    op = program.op[rows]
    kind = _TABLE[op]
    other = np.isin(op, sorted(_BY_WORK))
    works = program.flops[rows] > 0
    kind[other] = np.where(works, KernelKind.ELEMENTWISE, KernelKind.COPY)[other]
    shaped = (program.dims[rows] > 0).all(axis=1)
    multiplies = (program.product[rows] > 0) | (ProductDims.of(program.dims[rows]).n > 1)
    kind[other & shaped & multiplies] = KernelKind.GEMM
    kind[(op == OpClass.CALL) & shaped] = KernelKind.GEMM
    kind[(program.flags[rows] & Flag.UNPRICED) != 0] = KernelKind.UNPRICED
    return kind


def _updates(program: Program, rows: Int64s, kind: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """The kernels that update what an optimizer keeps.

    One that also reduces what it updates (the norm of a weight, for the log or a trust ratio) is
    told from a reduction by what it writes: no less than a byte for each element reduced.
    """
    element = (kind == KernelKind.ELEMENTWISE) | (kind == KernelKind.COPY)
    reduced = _reduced(program, rows)
    whole = (reduced > 0) & (program.result_bytes[rows] >= reduced)
    also_reduces = (kind == KernelKind.REDUCTION) & whole
    found: NDArray[np.bool_] = (element | also_reduces) & (program.phase[rows] == Phase.OPTIMIZER)
    return found


def _elements(program: Program, rows: Int64s) -> Int64s:
    """Elements of each result. Of an array that is updated in place only those that are written."""
    sizes = np.array([math.prod(s) for s in program.shapes] or [0], dtype=np.int64)
    bits = [_BITS.get(element_type(d), 8) for d in program.dtypes]
    width = np.array(bits or [8], dtype=np.int64)[program.dtype[rows]]
    found: Int64s = np.minimum(sizes[program.shape[rows]], program.result_bytes[rows] * 8 // width)
    return found


def _reduced(program: Program, rows: Int64s) -> Int64s:
    """How many elements a reduction reads."""
    dims = ReductionDims.of(program.dims[rows])
    found: Int64s = dims.rows * dims.reduced
    return found


#: An operand of this share of the largest says nothing of the type of a kernel.
SMALL = 8
#: Bits of the types that matrices are multiplied in.
_BITS = {"f64": 64, "f32": 32, "bf16": 16, "f16": 16, "i8": 8, "ui8": 8, "i4": 4}


def _dtypes(
    program: Program, rows: Int64s, kind: NDArray[np.uint8], tf32: Collection[KernelKind]
) -> NDArray[np.uint8]:
    """What each kernel calculates with: what its product multiplies, else its result's type.

    Where the program does not say what a product multiplies, it is the narrowest operand.
    Operands much smaller than the largest do not count in kernels of several products: they are
    masks and tables.
    """
    names = [*map(element_type, program.dtypes), "tf32", *_products(program)]
    bits = [_BITS.get(n, 8 if n.startswith("f8") else 0) for n in names]
    found: NDArray[np.uint8] = program.dtype[rows].copy()
    start, deps, dtypes = program.dep_start, program.deps, program.dtype
    several = (kind == KernelKind.DECLARED) | (kind == KernelKind.ATTENTION)
    several |= kind == KernelKind.ATTENTION_BACKWARD
    said = np.where(kind <= KernelKind.ATTENTION_BACKWARD, program.product[rows], 0)
    found[said > 0] = len(program.dtypes) + said[said > 0]
    searched = several | (kind <= KernelKind.CONVOLUTION)
    for at in np.flatnonzero(searched & (said == 0)).tolist():
        row = int(rows[at])
        read = deps[start[row] : start[row + 1]]
        if several[at]:
            read = read[
                program.result_bytes[read] * SMALL >= program.result_bytes[read].max(initial=0)
            ]
        operands = {int(dtypes[d]) for d in read}
        known = [d for d in operands if bits[d]]
        if known:
            found[at] = min(known, key=lambda d: (bits[d], d))
    f32 = np.array([name == "f32" for name in names], dtype=np.bool_)[found]
    found[f32 & np.isin(kind, list(tf32))] = names.index("tf32")
    return found


def _products(program: Program) -> list[str]:
    """Names of what products multiply, with StableHLO's names of types."""
    parts = (name.partition(":") for name in program.products[1:])
    return [element_type(dtype) + colon + how for dtype, colon, how in parts]


#: numpy's names of types in a Program whose StableHLO names are not made by rule.
_ELEMENT_TYPES = {
    "bfloat16": "bf16",
    "bool": "i1",
    "float8_e4m3fn": "f8E4M3FN",
    "float8_e5m2": "f8E5M2",
    "float8_e4m3fnuz": "f8E4M3FNUZ",
    "float8_e5m2fnuz": "f8E5M2FNUZ",
    "float8_e4m3b11fnuz": "f8E4M3B11FNUZ",
    "float8_e8m0fnu": "f8E8M0FNU",
    "float4_e2m1fn": "f4E2M1FN",
}


def element_type(dtype: str) -> str:
    """StableHLO's name of a type in a Program (`float32` is f32), as chips' files have it."""
    if dtype in _ELEMENT_TYPES:
        return _ELEMENT_TYPES[dtype]
    for name, prefix in (("float", "f"), ("uint", "ui"), ("int", "i")):
        if dtype.startswith(name) and dtype[len(name) :].isdigit():
            return prefix + dtype[len(name) :]
    return dtype


def unpriced(kernels: Kernels) -> NDArray[np.bool_]:
    """For each kernel, whether nothing is known of its work."""
    return np.asarray(kernels.kind == KernelKind.UNPRICED, dtype=np.bool_)


@dataclass(frozen=True, eq=False)
class Masks:
    """Masks of rows in columns. `window` are keys that a query sees, 0 for all."""

    causal: NDArray[np.bool_]
    window: Int64s

    def select(self, rows: Int64s) -> Masks:
        """Those of some rows."""
        return Masks(self.causal[rows], self.window[rows])


def masks_of(program: Program) -> Masks:
    """The mask of every row. A window of all keys or more is causal."""
    window = np.maximum(program.mask, 0).astype(np.int64)
    wide = (window > 0) & (window >= AttentionDims.of(program.dims).keys)
    return Masks((program.mask < 0) | wide, np.where(wide, 0, window))


def band_keys(dims: Int64s, masks: Masks) -> Int64s:
    """For each kernel, how many keys a query sees on average behind a window, else all of them."""
    _, queries, keys, _ = AttentionDims.of(dims)
    queries, window = np.maximum(queries, 1), masks.window
    seeing = np.minimum(queries, keys)  # those before the first key see none
    # the first of them see fewer keys than a window has
    early = np.clip(window - 1 - np.maximum(keys - queries, 0), 0, seeing)
    pairs = seeing * window - early * (early + 1) // 2
    return np.where(window > 0, -(-pairs // queries), keys)


def masked_flops(flops: Int64s, dims: Int64s, masks: Masks) -> Int64s:
    """Of the flops of whole squares, those that are left by the masks."""
    behind = band_keys(dims, masks) / np.maximum(AttentionDims.of(dims).keys, 1)
    banded = np.where(masks.window > 0, (flops * behind).astype(np.int64), flops)
    return np.where(masks.causal, banded // 2, banded)
