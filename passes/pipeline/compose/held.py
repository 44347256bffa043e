"""Rows of what a position holds: parameters, state, the batch, activations, sums of gradients."""

from __future__ import annotations

import math

from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Kind, Phase, Program, Row
from flint.passes.pipeline.compose.graft import add_value, graft
from flint.passes.pipeline.compose.plan import PipelinePlan, partial_keys
from flint.passes.pipeline.compose.rank_state import Chunk, RankState, stash
from flint.passes.pipeline.split.parts import Partial
from flint.passes.pipeline.split.reach import whole_row
from flint.passes.pipeline.split.reduce_part import gradient_dtype, pieces
from flint.steps.captured import Port, Role


def hold(state: RankState) -> None:
    """Add what is there before the first unit, whole parameters that are gathered once included."""
    batch: dict[str, int] = {}
    for chunk in state.chunks:
        _arguments(state, chunk, batch)
        add_accumulators(state, chunk)
    _stash(state)
    for chunk in state.chunks:
        _gather(state, chunk)


def _arguments(state: RankState, chunk: Chunk, batch: dict[str, int]) -> None:
    """PARAMETER rows: weights, the batch (once for all chunks), optimizer state."""
    once = (part for part in (chunk.parts.gather, chunk.update) if part is not None)
    for part in (*chunk.parts.passes, *once):
        for key, row in part.inputs.items():
            if key in chunk.held or not isinstance(key, Port):
                continue
            if key.role in (Role.PARAMETER, Role.STATE):
                chunk.held[key] = _parameter(state, chunk, part.program, row)
            elif key.role is Role.BATCH:
                if key.name not in batch:
                    batch[key.name] = _batch(state, part.program, row)
                chunk.held[key] = batch[key.name]


def _parameter(state: RankState, chunk: Chunk, program: Program, row: int) -> int:
    name = program.strings[program.name[row]]
    if len(state.chunks) > 1:
        name = f"stage{chunk.stage}.{name}"
    return add_value(state.builder, "parameter", program, row, kind=Kind.PARAMETER, name=name)


def _batch(state: RankState, program: Program, row: int) -> int:
    """An argument of the whole step: all microbatches, one after another."""
    tensor, count = program.row(row), state.plan.captured.microbatches
    shape = (tensor.shape[0] * count, *tensor.shape[1:]) if tensor.shape else ()
    return state.builder.add(
        "parameter",
        Kind.PARAMETER,
        dtype=tensor.dtype,
        shape=shape,
        result_bytes=tensor.result_bytes * (count if shape else 1),
        name=tensor.name,
        cause=tensor.cause,
    )


def _stash(state: RankState) -> None:
    """Memory of the activations of all microbatches in flight but the one that is worked on."""
    state.stash = stash(state.order, [chunk.parts for chunk in state.chunks])
    others, size, _ = state.stash
    if size > 0:
        state.returned.append(
            state.builder.add(
                "pipeline.stash",
                Kind.VALUE,
                op=OpClass.STASH,
                shape=(size,),
                dtype="int8",
                result_bytes=size,
                name=f"activations of {others} microbatches",
                scope="pipeline/activations",
                phase=Phase.FORWARD,
            )
        )


def _gather(state: RankState, chunk: Chunk) -> None:
    part = chunk.parts.gather
    if part is not None:
        done = graft(state.builder, part, chunk.held)
        chunk.held.update({key: done.output(key) for key in part.outputs})


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


def _sum_type(plan: PipelinePlan, tensor: Row) -> tuple[str, int]:
    """Type and bytes of a sum of gradients like `tensor`."""
    if not plan.captured.gradient_dtype:
        return tensor.dtype, tensor.result_bytes
    dtype, element_bytes = gradient_dtype(plan.captured.gradient_dtype)
    return dtype, element_bytes * math.prod(tensor.shape)
