"""What one operation costs to run: floating-point operations, GEMM dimensions, bytes.

A multiply-add counts 2. Elementwise arithmetic counts 1 for each result element, whatever the
function; moving and converting data counts 0. An operation without a rule here is unpriced: its
bytes are known, its work is not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from flint.ir.op_class import DATA_MOVEMENT, ELEMENTWISE, GENERATED, LAYOUT, OpClass
from flint.passes.extract.op_classes import class_of
from flint.passes.extract.precision import product_of
from flint.passes.extract.tensors import Tensor
from flint.passes.mlir import (
    attention_mask,
    attention_name,
    is_attention,
    is_attention_backward,
    is_heads_first,
    target_of,
)
from flint.passes.work.fourier import fft_work
from flint.passes.work.hand_written import PALLAS_TARGETS, Array, declared_work, work_of_kernel
from flint.passes.work.sliding import Sliding, used_taps
from flint.passes.work.work import Work


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation with its local operands and results. `op` is the MLIR operation."""

    name: str
    op: Any
    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]


WorkRule = Callable[[Operation], Work]


def work_of(operation: Operation) -> Work:
    """The work of any operation; `unpriced` is set where no rule knows it."""
    rule = RULES.get(operation.name)
    if rule is not None:
        return rule(operation)
    op = class_of(operation.name)
    if op in NO_ARITHMETIC or operation.name in BIT_CASTS:
        return Work()
    if op in ELEMENTWISE:
        return Work(flops=operation.results[0].num_elements)
    return Work(unpriced=True)


def dot_general(o: Operation) -> Work:
    """2 x batch x m x n x k, with local sizes."""
    from jaxlib.mlir.dialects import stablehlo

    numbers = stablehlo.DotDimensionNumbers(o.op.attributes["dot_dimension_numbers"])
    lhs, rhs = o.operands[0].shape, o.operands[1].shape
    lhs_contract = list(numbers.lhs_contracting_dimensions)
    lhs_batch = list(numbers.lhs_batching_dimensions)
    rhs_used = [*numbers.rhs_contracting_dimensions, *numbers.rhs_batching_dimensions]
    batch = math.prod(lhs[d] for d in lhs_batch)
    k = math.prod(lhs[d] for d in lhs_contract)
    m = math.prod(s for d, s in enumerate(lhs) if d not in lhs_contract and d not in lhs_batch)
    n = math.prod(s for d, s in enumerate(rhs) if d not in rhs_used)
    return Work(flops=2 * batch * m * n * k, dims=(batch, m, n, k), product=product_of(o))


def convolution(o: Operation) -> Work:
    """As implicit GEMM: m = output positions, n = output features, k = window x input features.

    For grouped convolutions batch is the number of groups. Of a dilated or mostly padded input
    (the gradient of a strided convolution) only window elements that meet an element count.
    """
    from jaxlib.mlir.dialects import stablehlo

    numbers = stablehlo.ConvDimensionNumbers(o.op.attributes["dimension_numbers"])
    kernel, result = o.operands[1].shape, o.results[0].shape
    groups = int(o.op.attributes["feature_group_count"].value)
    batch_groups = int(o.op.attributes["batch_group_count"].value)
    window = math.prod(kernel[d] for d in numbers.kernel_spatial_dimensions)
    k = window * kernel[numbers.kernel_input_feature_dimension]
    features = result[numbers.output_feature_dimension]
    positions = math.prod(result) // max(features, 1)
    split = max(min(groups * batch_groups, features), 1)
    n = features // split
    used, taps = used_taps(_slidings(o, numbers))
    k_used = -(-k * used // max(taps, 1))
    flops = 2 * positions * features * k * used // max(taps, 1)
    return Work(flops=flops, dims=(split, positions, n, k_used), product=product_of(o))


def _slidings(o: Operation, numbers: Any) -> list[Sliding]:
    """The spatial dimensions of a convolution, whole: a shard's share is the same."""
    count = len(numbers.input_spatial_dimensions)
    inputs, kernel = o.operands[0].global_shape, o.operands[1].global_shape
    outputs = o.results[0].global_shape
    strides, base, dilation = (
        integers(o.op, name, [1] * count)
        for name in ("window_strides", "lhs_dilation", "rhs_dilation")
    )
    padding = integers(o.op, "padding", [0] * 2 * count)
    return [
        Sliding(
            kernel[numbers.kernel_spatial_dimensions[d]],
            inputs[numbers.input_spatial_dimensions[d]],
            outputs[numbers.output_spatial_dimensions[d]],
            strides[d],
            padding[2 * d],
            padding[2 * d + 1],
            base[d],
            dilation[d],
        )
        for d in range(count)
    ]


def integers(op: Any, name: str, default: list[int]) -> list[int]:
    """An attribute that holds integers, flat; `default` where it is left out."""
    from jaxlib.mlir import ir

    if name not in op.attributes:
        return default
    attribute = op.attributes[name]
    try:
        return [int(v) for v in ir.DenseI64ArrayAttr(attribute)]
    except ValueError:
        return [int(v) for v in np.array(ir.DenseIntElementsAttr(attribute)).ravel()]


def reduce(o: Operation) -> Work:
    """One operation of the body for each input element; dims are (1, rows, 1, reduced)."""
    inputs = o.operands[: len(o.operands) // 2] or o.operands
    elements = inputs[0].num_elements
    rows = max(o.results[0].num_elements, 1)
    body = _body_operations(o.op)
    return Work(flops=elements * body, dims=(1, rows, 1, max(elements // rows, 1)))


def reduce_window(o: Operation) -> Work:
    """Window size operations of the body for each result element; one where it runs along.

    A running reduction (cumsum) is written as windows that reach to the start, and done in one
    pass.
    """
    window = math.prod(1 if s.is_running else s.size for s in _reduced_windows(o))
    elements = o.results[0].num_elements
    return Work(flops=elements * window * _body_operations(o.op), dims=(1, elements, 1, window))


def _reduced_windows(o: Operation) -> list[Sliding]:
    inputs, outputs = o.operands[0].global_shape, o.results[0].global_shape
    sizes, strides, base, dilation = (
        integers(o.op, name, [1] * len(inputs))
        for name in ("window_dimensions", "window_strides", "base_dilations", "window_dilations")
    )
    padding = integers(o.op, "padding", [0] * 2 * len(inputs))
    low, high = padding[::2], padding[1::2]
    return list(map(Sliding, sizes, inputs, outputs, strides, low, high, base, dilation))


def select_and_scatter(o: Operation) -> Work:
    """One comparison for each window element of each source element, and one addition."""
    window = math.prod(int(w) for w in o.op.attributes["window_dimensions"])
    return Work(flops=o.operands[1].num_elements * (window + 1))


def sort(o: Operation) -> Work:
    """n log2 n comparisons along the sorted dimension."""
    shape = o.operands[0].shape
    dimension = int(o.op.attributes["dimension"].value)
    length = shape[dimension] if shape else 1
    rows = math.prod(shape) // max(length, 1)
    steps = max(math.ceil(math.log2(max(length, 2))), 1)
    return Work(flops=rows * length * steps, dims=(1, rows, 1, length))


def top_k(o: Operation) -> Work:
    """One comparison for each element and each doubling of k."""
    shape = o.operands[0].shape
    k = o.results[0].shape[-1]
    steps = max(math.ceil(math.log2(max(k, 2))), 1)
    rows = math.prod(shape[:-1])
    return Work(flops=math.prod(shape) * steps, dims=(1, rows, 1, shape[-1]))


def fft(o: Operation) -> Work:
    """5 n log2 n for each transform of length n (Cooley-Tukey, split radix upper bound)."""
    *outer, last = (int(n) for n in o.op.attributes["fft_length"])
    elements = max(o.operands[0].num_elements, o.results[0].num_elements)
    return fft_work(elements, math.prod(outer), last)


def cholesky(o: Operation) -> Work:
    """n^3 / 3 for each matrix (Golub and Van Loan, section 4.2)."""
    *batch, n, _ = o.operands[0].shape
    return Work(flops=math.prod(batch) * n**3 // 3)


def triangular_solve(o: Operation) -> Work:
    """n^2 x right-hand sides for each matrix (Golub and Van Loan, section 3.1)."""
    n = o.operands[0].shape[-1]
    return Work(flops=o.operands[1].num_elements * n)


def gather(o: Operation) -> Work:
    """Reads what it returns, and the indices; never the whole operand."""
    return Work(operand_bytes=o.results[0].num_bytes + o.operands[1].num_bytes)


def slice_(o: Operation) -> Work:
    """Reads what it returns."""
    return Work(operand_bytes=o.results[0].num_bytes)


def dynamic_update_slice(o: Operation) -> Work:
    """Reads and writes the update; the rest of the buffer stays where it is."""
    update = o.operands[1].num_bytes
    return Work(operand_bytes=update, result_bytes=update, in_place=True)


def scatter(o: Operation) -> Work:
    """Reads updates, indices and the places written; one operation for each update element."""
    results = len(o.results)
    updates = o.operands[results + 1 :]
    update_bytes = sum(u.num_bytes for u in updates)
    adds = sum(u.num_elements for u in updates) if _body_operations(o.op, least=0) else 0
    return Work(
        flops=adds,
        operand_bytes=2 * update_bytes + o.operands[results].num_bytes,
        result_bytes=update_bytes,
        in_place=True,
    )


def rng(o: Operation) -> Work:
    """About ten integer operations for each 32-bit word (Philox 4x32: 10 rounds for 4 words)."""
    return Work(flops=10 * sum(r.num_bytes for r in o.results) // 4)


def ragged_dot(o: Operation) -> Work:
    """Each row of the left side meets one group's matrix: 2 x m x n x k.

    Where the contracted dimension is ragged, each group's share of k makes its own result.
    """
    from jaxlib.mlir.dialects import chlo

    numbers = chlo.RaggedDotDimensionNumbers(o.op.attributes["ragged_dot_dimension_numbers"])
    lhs, result = o.operands[0].shape, o.results[0].shape
    k = math.prod(lhs[d] for d in numbers.lhs_contracting_dimensions)
    m, n = math.prod(lhs) // max(k, 1), result[-1]
    return Work(flops=2 * m * n * k, dims=(1, m, n, k), product=product_of(o))


def custom_call(o: Operation) -> Work:
    """Known targets are priced from shapes, others by the cost estimate that they carry."""
    target = o.op.attributes["call_target_name"].value
    if target in FREE_TARGETS:
        return Work(operand_bytes=0, result_bytes=0)
    if is_attention(target):
        return _attention(o, backward=is_attention_backward(target))
    if target in FACTORIZATIONS:
        *batch, m, n = o.operands[0].shape
        return Work(flops=math.prod(batch) * FACTORIZATIONS[target](m, n))
    config = _config(o.op)
    estimate = config.get("custom_call_config", config).get("cost_estimate")
    results = _arrays(o.results)
    if target in PALLAS_TARGETS:
        return work_of_kernel(_kernel_name(o.op, config), _arrays(o.operands), results, estimate)
    return declared_work(f"custom_call.{target}", results, estimate)


def _arrays(tensors: tuple[Tensor, ...]) -> list[Array]:
    return [Array(t.shape, "float" in t.dtype, t.num_bytes) for t in tensors]


def _kernel_name(op: Any, config: dict[str, Any]) -> str:
    """Mosaic keeps it beside the configuration, Flint's own lowering in it."""
    if "kernel_name" in op.attributes:
        return str(op.attributes["kernel_name"].value)
    return str(config.get("name", ""))


def _lu(m: int, n: int) -> int:
    """m n^2 - n^3 / 3 for m >= n (Golub and Van Loan, section 3.2)."""
    m, n = max(m, n), min(m, n)
    return m * n**2 - n**3 // 3


def _qr(m: int, n: int) -> int:
    """2 n^2 (m - n / 3) for m >= n (Golub and Van Loan, section 5.2)."""
    m, n = max(m, n), min(m, n)
    return 2 * n**2 * m - 2 * n**3 // 3


def _attention(o: Operation, *, backward: bool) -> Work:
    """Two matrix products forward, five backward (FlashAttention, arXiv 2205.14135, app. B).

    Queries are (batch, heads, sequence, size) or (batch, sequence, heads, size), as the call's
    configuration says. Keys may have fewer heads (grouped queries), values another size. Masks
    are not credited: a causal kernel that skips blocks does about half of this.
    """
    q, k, v = o.operands[:3]
    size, value_size = q.shape[-1], v.shape[-1]
    sequence = 2 if is_heads_first(o.op) else 1
    queries, keys = int(q.shape[sequence]), int(k.shape[sequence])
    heads = q.num_elements // max(size * queries, 1)
    sizes = 3 * size + 2 * value_size if backward else size + value_size
    flops = 2 * heads * queries * keys * sizes
    return Work(
        flops=flops,
        dims=(heads, queries, keys, size),
        product=product_of(o),
        mask=attention_mask(o.op),
        op=OpClass.ATTENTION_BACKWARD if backward else OpClass.ATTENTION,
        called=attention_name(target_of(o.op), attention_mask(o.op)),
    )


def _config(op: Any) -> dict[str, Any]:
    """The backend configuration of a custom call as a JSON object; empty if it is none."""
    for key in ("backend_config", "mhlo.backend_config"):
        text = getattr(op.attributes[key], "value", "") if key in op.attributes else ""
        if isinstance(text, str | bytes):
            try:
                document = json.loads(text or "{}")
            except ValueError:
                continue
            if isinstance(document, dict):
                return document
    return {}


def _body_operations(op: Any, least: int = 1) -> int:
    """Arithmetic operations in the body of a reduction: all but its return."""
    block = op.regions[0].blocks[0] if len(op.regions) else ()
    names: list[str] = [inner.operation.name for inner in block]
    return max(sum(n.split(".")[-1] != "return" for n in names), least)


#: Operations that move, make or convert data without arithmetic.
NO_ARITHMETIC = DATA_MOVEMENT | LAYOUT | GENERATED | {OpClass.CONVERT, OpClass.REDUCE_PRECISION}
#: Operations that see the same bits as another type.
BIT_CASTS = frozenset({"stablehlo.bitcast_convert"})
#: Custom calls that are annotations and do not run.
FREE_TARGETS = frozenset({"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate"})
#: Targets of custom calls that factor matrices: flops of one m x n matrix.
FACTORIZATIONS: dict[str, Callable[[int, int], int]] = {
    "cusolver_potrf_ffi": lambda _, n: n**3 // 3,
    "cusolver_getrf_ffi": _lu,
    "LuDecomposition": _lu,
    "cusolver_geqrf_ffi": _qr,
    "Qr": _qr,
}
#: Operation name to rule.
RULES: dict[str, WorkRule] = {
    "stablehlo.dot_general": dot_general,
    "stablehlo.convolution": convolution,
    "stablehlo.reduce": reduce,
    "stablehlo.reduce_window": reduce_window,
    "stablehlo.select_and_scatter": select_and_scatter,
    "stablehlo.sort": sort,
    "chlo.top_k": top_k,
    "stablehlo.fft": fft,
    "stablehlo.cholesky": cholesky,
    "stablehlo.triangular_solve": triangular_solve,
    "stablehlo.gather": gather,
    "stablehlo.dynamic_gather": gather,
    "stablehlo.slice": slice_,
    "stablehlo.dynamic_slice": slice_,
    "stablehlo.dynamic_update_slice": dynamic_update_slice,
    "stablehlo.scatter": scatter,
    "stablehlo.rng": rng,
    "stablehlo.rng_bit_generator": rng,
    "stablehlo.custom_call": custom_call,
    "chlo.ragged_dot": ragged_dot,
    "sdy.all_slice": slice_,
}
