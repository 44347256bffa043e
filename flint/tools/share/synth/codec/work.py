"""What a row costs: bytes, FLOPs and sizes, by its template and the types that it reads and gives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from flint.ir.dims import NO_DIMS, DimsRow, ReductionDims
from flint.ir.op_class import OpClass
from flint.ir.program import Kind
from flint.passes.work import formulas
from flint.tools.share.rules.elementwise import TWO
from flint.tools.share.synth.codec.shapes.products import sizes_of
from flint.tools.share.synth.codec.template import Template
from flint.tools.share.synth.codec.value_type import ValueType


@dataclass(frozen=True, slots=True)
class Cost:
    """Columns of a row that follow from types: bytes, FLOPs, dims, and what a collective sends."""

    result_bytes: int = 0
    operand_bytes: int = 0
    flops: int = 0
    dims: DimsRow = NO_DIMS
    comm_bytes: int = 0


def cost_of(t: Template, operands: Sequence[ValueType], result: ValueType) -> Cost:
    """The cost of a row. Formulas are those of `flint.passes.work.formulas`, as captures have them."""
    whole = result.num_bytes * t.several // 100
    if t.kind is Kind.COLLECTIVE:
        sent = operands[0].num_bytes
        return Cost(whole, sent, comm_bytes=sent)
    if t.kind is not Kind.COMPUTE:
        return Cost(whole)
    if t.op in _PLACED:
        return _placed(t, operands, result)
    read = sum(o.num_bytes for o in operands)
    if t.arity == 1 and (t.op in TWO or t.op is OpClass.MATMUL):
        read *= 2  # one value, read twice
    if t.op is OpClass.MATMUL:
        work = formulas.product(*sizes_of(t, operands), product=t.product)
        return Cost(whole, read, work.flops, work.dims)
    if t.op is OpClass.CONVOLUTION:
        return _convolution(t, operands, result, read)
    if t.op is OpClass.REDUCE:
        return _reduction(t, operands[0], result, read)
    return Cost(whole, read, t.rate * result.elements)


_PLACED = frozenset(
    {
        *(OpClass.SLICE, OpClass.DYNAMIC_SLICE, OpClass.UPDATE_SLICE),
        *(OpClass.GATHER, OpClass.SCATTER, OpClass.ALL_SLICE),
    }
)


def _placed(t: Template, operands: Sequence[ValueType], result: ValueType) -> Cost:
    """Rows that read or write elements where an index says."""
    if t.op is OpClass.UPDATE_SLICE:
        written = operands[1].num_bytes
        return Cost(written, written)
    if t.op is OpClass.GATHER:
        index = operands[1]
        rows = max(index.elements // t.sizes[0], 1)
        dims = formulas.row_dims(result.elements, result.elements // rows)
        return Cost(result.num_bytes, result.num_bytes + index.num_bytes, 0, dims)
    if t.op is OpClass.SCATTER:
        index, part = operands[1], operands[2]
        rows = max(index.elements // t.arguments[1], 1)
        dims = formulas.row_dims(part.elements, part.elements // rows)
        moved = 2 * part.num_bytes + index.num_bytes
        return Cost(part.num_bytes, moved, t.rate * part.elements, dims)
    return Cost(result.num_bytes, result.num_bytes)


def _reduction(t: Template, operand: ValueType, result: ValueType, read: int) -> Cost:
    rows = result.elements
    reduced = max(operand.elements // rows, 1)
    dims = ReductionDims(rows, reduced).row
    return Cost(result.num_bytes * t.several // 100, read, t.rate * rows * reduced, dims)


def _convolution(t: Template, operands: Sequence[ValueType], result: ValueType, read: int) -> Cost:
    """As implicit GEMM: k is the elements of an operand without one of its dimensions."""
    groups, features_at, operand, without = t.sizes
    features = result.shape[features_at]
    shape = operands[operand].shape
    k = max(math.prod(shape) // shape[without], 1)
    positions = result.elements // features
    batch = groups if features % groups == 0 else 1
    flops = 2 * positions * features * k
    return Cost(result.num_bytes, read, flops, (batch, positions, features // batch, k))


def convolution_sizes(
    dims: DimsRow, operands: Sequence[ValueType], result: ValueType
) -> tuple[int, ...] | None:
    """The `sizes` of the template of a captured convolution; None if nothing gives its k."""
    batch, _, n, k = dims
    features_at = [i for i, d in enumerate(result.shape) if d == batch * n]
    for at in features_at:
        for number, operand in enumerate(operands):
            for without, size in enumerate(operand.shape):
                if size and math.prod(operand.shape) == k * size:
                    return batch, at, number, without
    return None
