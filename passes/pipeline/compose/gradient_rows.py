"""Rows that add up the gradients of microbatches, and reduce the sums over devices."""

from __future__ import annotations

import math

from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Kind, Phase, Program, Row
from flint.passes.pipeline.compose.graft import graft
from flint.passes.pipeline.compose.plan import Plan, partial_keys
from flint.passes.pipeline.compose.rank_state import Chunk, RankState
from flint.passes.pipeline.split.parts import Partial
from flint.passes.pipeline.split.reach import whole_row
from flint.passes.pipeline.split.reduce_part import gradient_dtype, pieces


def add_accumulators(state: RankState, chunk: Chunk) -> None:
    """Add the buffers that gradients are added to, and note what is to be reduced."""
    if chunk.parts.reduce is not None:
        chunk.pieces = pieces(chunk.parts.reduce)
    if not state.plan.captured.accumulates:
        return
    for key, (part, row) in partial_keys(chunk.parts).items():
        tensor = whole_row(part.program, row)
        dtype, size = _sum_type(state.plan, tensor)
        chunk.accumulators[key] = state.builder.add(
            "pipeline.accumulator",
            Kind.VALUE,
            op=OpClass.ACCUMULATOR,
            dtype=dtype,
            shape=tensor.shape,
            result_bytes=size,
            name=key.name,
            scope=tensor.scope,
            phase=Phase.BACKWARD,
        )


def accumulate(
    state: RankState, chunk: Chunk, partial: Partial, program: Program, row: int, here: int
) -> int:
    """Add a microbatch's gradient, `row` of its part and `here`, to the sum: the row of the sum."""
    if partial not in chunk.accumulators:
        return here
    into, tensor = chunk.accumulators[partial], whole_row(program, row)
    dtype, size = _sum_type(state.plan, tensor)
    return state.builder.add(
        "stablehlo.add",
        op=OpClass.ADD,
        deps=[into, here],
        dtype=dtype,
        shape=tensor.shape,
        result_bytes=size,
        operand_bytes=size + tensor.result_bytes,
        flops=math.prod(tensor.shape),
        name=partial.name,
        scope=tensor.scope,
        phase=Phase.BACKWARD,
        flags=Flag.IN_PLACE,
        alias=into,
    )


def reduce_complete(state: RankState, chunk: Chunk, partial: Partial, summed: int) -> None:
    """Sum over devices whatever `partial` makes complete: once in a step, as soon as can be."""
    part = chunk.parts.reduce
    chunk.summed[partial] = summed
    if part is None:
        return
    complete = [p for p in chunk.pieces if p.partials <= chunk.summed.keys()]
    chunk.pieces = [p for p in chunk.pieces if p not in complete]
    for piece in complete:
        done = graft(state.builder, part, {**chunk.held, **chunk.summed}, only=piece.rows)
        chunk.gradients.update({g: done.output(g) for g in piece.gradients})


def _sum_type(plan: Plan, tensor: Row) -> tuple[str, int]:
    """Type and bytes of a sum of gradients like `tensor`."""
    if not plan.captured.gradient_dtype:
        return tensor.dtype, tensor.result_bytes
    dtype, element_bytes = gradient_dtype(plan.captured.gradient_dtype)
    return dtype, element_bytes * math.prod(tensor.shape)
