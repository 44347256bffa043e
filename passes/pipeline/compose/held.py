"""Rows of what a position holds all step long: parameters, state, the batch, activations in flight."""

from __future__ import annotations

from flint.ir.op_class import OpClass
from flint.ir.program import Kind, Phase, Program
from flint.passes.pipeline.compose.gradient_rows import add_accumulators
from flint.passes.pipeline.compose.graft import add_value, graft
from flint.passes.pipeline.compose.memory import stash
from flint.passes.pipeline.compose.rank_state import Chunk, RankState
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
