"""The sizes of a StableHLO operation that its work depends on (`flint.passes.work.formulas`).

An operation without a rule here, whose class does not tell its work, is unpriced: its bytes are
known, its work is not.
"""

from __future__ import annotations

import math
import pkgutil
from collections.abc import Callable
from functools import cache

from flint.ir.product_types import grouped
from flint.passes.extract.op_classes import class_of
from flint.passes.extract.products import product_of
from flint.passes.extract.tensors import Operation
from flint.passes.mlir import body_operations
from flint.passes.work import formulas
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


def reduce(o: Operation) -> Work:
    """One operation of the body for each input element; dims are (1, rows, 1, reduced)."""
    inputs = o.operands[: len(o.operands) // 2] or o.operands
    rows = o.results[0].num_elements
    return formulas.reduction(inputs[0].num_elements, rows, body_operations(o.op))


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
    adds = elements if body_operations(o.op, least=0) else 0
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
    return _elsewhere("custom_calls:work_of_custom_call")(o)


def _elsewhere(place: str) -> WorkRule:
    """A rule of a module of this folder that few programs need: it is imported when it is asked."""
    return lambda o: _rule(place)(o)


@cache
def _rule(place: str) -> WorkRule:
    found: WorkRule = pkgutil.resolve_name(f"flint.passes.extract.{place}")
    return found


#: Operations that see the same bits as another type.
BIT_CASTS = frozenset({"stablehlo.bitcast_convert"})
#: Custom calls that are annotations and do not run.
FREE_TARGETS = frozenset({"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate"})
#: Operation name to rule.
RULES: dict[str, WorkRule] = {
    "stablehlo.dot_general": dot_general,
    "stablehlo.convolution": _elsewhere("sliding:convolution"),
    "stablehlo.reduce": reduce,
    "stablehlo.reduce_window": _elsewhere("sliding:reduce_window"),
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
