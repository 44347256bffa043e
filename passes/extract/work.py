"""The sizes of a StableHLO operation that its work depends on (`flint.passes.work.formulas`).

An operation without a rule here, whose class does not tell its work, is unpriced: its bytes are
known, its work is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from flint.ir.product_types import grouped
from flint.passes.extract.op_classes import class_of
from flint.passes.extract.products import product_of
from flint.passes.extract.tensors import Operation
from flint.passes.work import formulas
from flint.passes.work.sliding import Sliding, reduced_elements, used_taps
from flint.passes.work.work import Work

WorkRule = Callable[[Operation], Work]


def work_of(operation: Operation) -> Work:
    """The work of any operation; `unpriced` is set where no rule knows it."""
    rule = RULES.get(operation.name)
    if rule is not None:
        return rule(operation)
    if operation.name in BIT_CASTS:
        return Work()
    elements = operation.results[0].num_elements if operation.results else 0
    found = formulas.by_class(class_of(operation.name), elements)
    return found or Work(unpriced=True)


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
    return formulas.product(batch, m, n, k, product=product_of(o))


def convolution(o: Operation) -> Work:
    """`formulas.convolution`, with the window elements that meet an element."""
    from jaxlib.mlir.dialects import stablehlo

    numbers = stablehlo.ConvDimensionNumbers(o.op.attributes["dimension_numbers"])
    kernel, result = o.operands[1].shape, o.results[0].shape
    groups = int(o.op.attributes["feature_group_count"].value)
    batch_groups = int(o.op.attributes["batch_group_count"].value)
    window = math.prod(kernel[d] for d in numbers.kernel_spatial_dimensions)
    k = window * kernel[numbers.kernel_input_feature_dimension]
    features = result[numbers.output_feature_dimension]
    positions = math.prod(result) // max(features, 1)
    used, taps = used_taps(_slidings(o, numbers))
    return formulas.convolution(
        positions, features, k, groups * batch_groups, product=product_of(o), used=used, taps=taps
    )


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
    rows = o.results[0].num_elements
    return formulas.reduction(inputs[0].num_elements, rows, _body_operations(o.op))


def reduce_window(o: Operation) -> Work:
    """The body runs for each element of a window that its neighbours do not know."""
    reduced = reduced_elements(_reduced_windows(o))
    return formulas.windows(o.results[0].num_elements, *reduced, _body_operations(o.op))


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
    return formulas.select_and_scatter(o.operands[1].num_elements, window)


def sort(o: Operation) -> Work:
    """Along the sorted dimension."""
    shape = o.operands[0].shape
    length = shape[int(o.op.attributes["dimension"].value)] if shape else 1
    return formulas.sort(math.prod(shape), length)


def top_k(o: Operation) -> Work:
    """Along the last dimension."""
    shape = o.operands[0].shape
    return formulas.top_k(math.prod(shape), shape[-1], o.results[0].shape[-1])


def fft(o: Operation) -> Work:
    """Of real numbers the side that has more of them is counted."""
    elements = max(o.operands[0].num_elements, o.results[0].num_elements)
    return formulas.fft(elements, [int(n) for n in o.op.attributes["fft_length"]])


def cholesky(o: Operation) -> Work:
    """Of each matrix of the batch."""
    *batch, n, _ = o.operands[0].shape
    return formulas.cholesky(math.prod(batch), n)


def triangular_solve(o: Operation) -> Work:
    """Of all right-hand sides."""
    return formulas.triangular_solve(o.operands[1].num_elements, o.operands[0].shape[-1])


def gather(o: Operation) -> Work:
    """Indices are the second operand."""
    from jaxlib.mlir.dialects import stablehlo

    result = o.results[0]
    numbers = stablehlo.GatherDimensionNumbers(o.op.attributes["dimension_numbers"])
    row = math.prod(result.shape[d] for d in numbers.offset_dims)
    return formulas.gather(result.num_bytes, o.operands[1].num_bytes, result.num_elements, row)


def slice_(o: Operation) -> Work:
    """What it returns."""
    return formulas.slice_(o.results[0].num_bytes)


def dynamic_update_slice(o: Operation) -> Work:
    """The update is the second operand."""
    return formulas.update_slice(o.operands[1].num_bytes)


def scatter(o: Operation) -> Work:
    """A scatter without arithmetic in its body adds nothing."""
    from jaxlib.mlir.dialects import stablehlo

    results = len(o.results)
    updates = o.operands[results + 1 :]
    numbers = stablehlo.ScatterDimensionNumbers(o.op.attributes["scatter_dimension_numbers"])
    row = math.prod(updates[0].shape[d] for d in numbers.update_window_dims)
    elements = sum(u.num_elements for u in updates)
    adds = elements if _body_operations(o.op, least=0) else 0
    written = sum(u.num_bytes for u in updates)
    return formulas.scatter(adds, written, o.operands[results].num_bytes, elements, row)


def rng(o: Operation) -> Work:
    """All results together."""
    return formulas.random(sum(r.num_bytes for r in o.results))


def ragged_dot(o: Operation) -> Work:
    """Each row of the left side meets one group's matrix: 2 x m x n x k.

    Where the contracted dimension is ragged, each group's share of k makes its own result.
    """
    from jaxlib.mlir.dialects import chlo

    numbers = chlo.RaggedDotDimensionNumbers(o.op.attributes["ragged_dot_dimension_numbers"])
    lhs, result = o.operands[0].shape, o.results[0].shape
    k = math.prod(lhs[d] for d in numbers.lhs_contracting_dimensions)
    m, n = math.prod(lhs) // max(k, 1), result[-1]
    sums = len(result) == len(lhs) + 1
    name = grouped(product_of(o), o.operands[2].shape[-1], sums=sums)
    return formulas.product(1, m, n, k, product=name)


def custom_call(o: Operation) -> Work:
    """Annotations do not run; of other calls `custom_calls` knows the work."""
    if o.op.attributes["call_target_name"].value in FREE_TARGETS:
        return Work(operand_bytes=0, result_bytes=0)
    # not above: it needs all that is known of kernels that are written by hand
    from flint.passes.extract.custom_calls import work_of_custom_call

    return work_of_custom_call(o)


def _body_operations(op: Any, least: int = 1) -> int:
    """Arithmetic operations in the body of a reduction: all but its return."""
    block = op.regions[0].blocks[0] if len(op.regions) else ()
    names: list[str] = [inner.operation.name for inner in block]
    return max(sum(n.split(".")[-1] != "return" for n in names), least)


#: Operations that see the same bits as another type.
BIT_CASTS = frozenset({"stablehlo.bitcast_convert"})
#: Custom calls that are annotations and do not run.
FREE_TARGETS = frozenset({"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate"})
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
