"""Rows of what runs once in a step, after all microbatches: tied gradients, norm, loss, optimizer."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flint.ir.mesh import AxisRef, Group
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Kind, Phase, Row
from flint.passes.pipeline.compose.graft import graft
from flint.passes.pipeline.compose.rank_state import Chunk, RankState
from flint.passes.pipeline.split.parts import Key
from flint.steps.captured import Port, Role


def end_step(state: RankState) -> None:
    """Add what turns reduced gradients into new parameters, and what all positions share."""
    _tie(state)
    norm = _norm(state)
    _share_loss(state)
    for chunk in state.chunks:
        if chunk.update is None:
            state.returned.extend(chunk.gradients.values())
            continue
        inputs: dict[Key, int] = {**chunk.held, **chunk.gradients}
        for key in chunk.update.inputs:
            if isinstance(key, Port) and key.role is Role.SQUARED_NORM:
                inputs[key] = norm
        done = graft(state.builder, chunk.update, inputs, turn=state.turn)
        state.returned.extend(done.output(key) for key in chunk.update.outputs)


def _tie(state: RankState) -> None:
    """Sum the gradients of one parameter that two stages hold."""
    for ends in state.plan.captured.tied:
        here = [
            (chunk, Port(Role.GRADIENT, name))
            for stage, name in ends
            for chunk in state.chunks
            if chunk.stage == stage
        ]
        if len(here) == 2:
            _tie_here(state, here)
        elif here:
            _tie_across(state, *here[0], {state.plan.placement.rank_of[stage] for stage, _ in ends})


def _tie_here(state: RankState, found: Sequence[tuple[Chunk, Port]]) -> None:
    (a, key_a), (b, key_b) = found
    tensor = _gradient_row(a, key_a)
    row = state.builder.add(
        "stablehlo.add",
        op=OpClass.ADD,
        deps=[a.gradients[key_a], b.gradients[key_b], state.turn],
        dtype=tensor.dtype,
        shape=tensor.shape,
        result_bytes=tensor.result_bytes,
        operand_bytes=2 * tensor.result_bytes,
        flops=math.prod(tensor.shape),
        scope="pipeline/tied",
        phase=Phase.BACKWARD,
    )
    a.gradients[key_a] = b.gradients[key_b] = row


def _tie_across(state: RankState, chunk: Chunk, key: Port, positions: set[int]) -> None:
    tensor = _gradient_row(chunk, key)
    chunk.gradients[key] = _over_pipe(
        state,
        chunk.gradients[key],
        tensor.dtype,
        tensor.shape,
        tensor.result_bytes,
        f"{key.name} is one parameter with another stage's",
        tuple(sorted(positions)) if len(positions) < state.plan.ranks else (),
    )


def _gradient_row(chunk: Chunk, key: Port) -> Row:
    assert chunk.parts.reduce is not None
    return chunk.parts.reduce.program.row(chunk.parts.reduce.outputs[key])


def _norm(state: RankState) -> int:
    """Sum of the squares of all gradients of all stages, or -1."""
    if all(norm is None for norm in state.plan.norms):
        return -1
    found: list[int] = []
    for chunk in state.chunks:
        if chunk.norm is not None:
            done = graft(state.builder, chunk.norm, dict(chunk.gradients))
            found.extend(done.output(key) for key in chunk.norm.outputs)
    total = state.builder.add(  # a position without gradients contributes zero
        "pipeline.sum",
        Kind.VALUE,
        deps=found or [state.turn],
        dtype="float32",
        result_bytes=4,
        phase=Phase.OPTIMIZER,
    )
    if state.plan.ranks == 1:
        return total
    cause = "the norm of the gradients of all stages"
    return _over_pipe(state, total, "float32", (), 4, cause, phase=Phase.OPTIMIZER)


def _share_loss(state: RankState) -> None:
    """Every stage learns the loss of the last one: those that have none contribute zero."""
    if state.plan.ranks > 1:
        own = state.loss if state.loss >= 0 else state.turn
        cause = "the loss, for every stage"
        row = _over_pipe(state, own, "float32", (), 4, cause, phase=Phase.FORWARD)
        state.returned.append(row)
    elif state.loss >= 0:
        state.returned.append(state.loss)


def _over_pipe(
    state: RankState,
    row: int,
    dtype: str,
    shape: tuple[int, ...],
    num_bytes: int,
    cause: str,
    positions: tuple[int, ...] = (),
    phase: Phase = Phase.BACKWARD,
) -> int:
    """Sum `row` over the positions of the pipeline, all of them if none are named."""
    return state.builder.add(
        "pipeline.all_reduce",
        Kind.COLLECTIVE,
        op=OpClass.ADD,
        deps=[row, state.turn],
        dtype=dtype,
        shape=shape,
        result_bytes=num_bytes,
        operand_bytes=num_bytes,
        collective=Collective.ALL_REDUCE,
        group=Group((AxisRef(state.plan.captured.axis),), positions=positions),
        comm_bytes=num_bytes,
        scope="pipeline",
        cause=cause,
        phase=phase,
    )
