"""CapturedPipeline -> Workload: one program for each different position of the pipeline's axis."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from flint.errors import FlintError
from flint.ir.mesh import AxisRef, Group
from flint.ir.op_class import OpClass
from flint.ir.program import COLUMNS, TABLES, Collective, Kind, Phase, Program, Row
from flint.ir.rank_class import RankClass
from flint.ir.workload import Workload
from flint.passes.pipeline.compose.graft import graft
from flint.passes.pipeline.compose.held import hold
from flint.passes.pipeline.compose.plan import Neighbours, PipelinePlan, once_a_step
from flint.passes.pipeline.compose.rank_state import Chunk, RankState, first_state, memory_of
from flint.passes.pipeline.compose.unit_rows import add_units
from flint.passes.pipeline.schedule.schedules import SCHEDULES, Order, orders, placement
from flint.passes.pipeline.schedule.units import UnitWork
from flint.passes.pipeline.split.parts import (
    Key,
    PartitionedBody,
    StageParts,
    partition_body,
)
from flint.passes.pipeline.split.reduce_part import in_gradient_dtype
from flint.passes.pipeline.split.split import split
from flint.passes.rewrites.reduce_scatter import FormReduceScatter
from flint.steps.captured import Body, CapturedPipeline, Port, Role

# Rows of what runs once in a step, after all microbatches: tied gradients, norm, loss, optimizer.


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


Partition = Callable[[Body], PartitionedBody]
#: The parts of a body that is not partitioned as one; `splits` is whether backward passes are in two.
MakeParts = Callable[[CapturedPipeline, Body, bool], StageParts]


def compose(
    captured: CapturedPipeline,
    partition: Partition = partition_body,
    make_parts: MakeParts | None = None,
) -> Workload:
    """Partition every body, split it, and put the programs of all positions together.

    With `make_parts` that gives the parts of stages, and `partition` is for the optimizer alone.
    Raises FlintError FL246 for a schedule that is not known or does not fit the numbers, FL240 for
    a gradient type or a stage that communicates along the pipeline's axis, and what partitioning
    raises.
    """
    return workload_of(make_plan(captured, partition, make_parts))


def workload_of(plan: PipelinePlan) -> Workload:
    """The programs of all positions, equal ones once."""
    captured = plan.captured
    programs: list[Program] = []
    classes: list[RankClass] = []
    for position in range(plan.ranks):
        program = rank_program(plan, position)
        number = _same(programs, program)
        if number == len(programs):
            program.verify()
            programs.append(program)
        where = {captured.axis: (position,)}
        classes.append(RankClass(_name(plan, position), number, where))
    return Workload(captured.mesh, tuple(programs), tuple(classes), _metadata(plan))


def make_plan(
    captured: CapturedPipeline,
    partition: Partition = partition_body,
    make_parts: MakeParts | None = None,
) -> PipelinePlan:
    """Everything that does not depend on the position."""
    ranks = captured.mesh.axis_size(captured.axis)
    order = _orders(captured, ranks)
    splits = any(u.work is UnitWork.WEIGHT_BACKWARD for units in order for u in units)
    make = make_parts or functools.partial(_split, partition)
    parts = [_parts(captured, make(captured, b.step, splits)) for b in captured.bodies]
    norms = tuple(once_a_step(partition(b.norm) if b.norm else None) for b in captured.bodies)
    updates = tuple(once_a_step(partition(b.update) if b.update else None) for b in captured.bodies)
    return PipelinePlan(
        *(captured, tuple(parts), norms, updates, order),
        Neighbours(
            captured.axis, placement(captured.schedule, ranks, captured.chunks), _crossing(captured)
        ),
    )


def _orders(captured: CapturedPipeline, ranks: int) -> tuple[Order, ...]:
    """What each position runs; in inference, the forward passes of the schedule."""
    found = orders(captured.schedule, ranks, captured.microbatches, captured.chunks)
    given = {port.role for body in captured.bodies for port in body.step.results}
    if not given & {Role.GRADIENT, Role.INPUT_GRADIENT}:
        return tuple(tuple(u for u in order if u.work is UnitWork.FORWARD) for order in found)
    if not SCHEDULES[captured.schedule].trains:
        training = ", ".join(name for name, schedule in SCHEDULES.items() if schedule.trains)
        raise FlintError(
            "FL246",
            f"schedule '{captured.schedule}' has no backward passes, but the step trains",
            help=f"one of: {training}; or a pipeline without loss, optimizer and backward",
        )
    return found


def _split(
    partition: Partition, captured: CapturedPipeline, body: Body, splits: bool
) -> StageParts:
    found = partition(body)
    return split(
        found,
        zero_bubble=splits,
        keep_gathered=not captured.reshard_after_forward,
        accumulates=captured.accumulates,
    )


def _parts(captured: CapturedPipeline, parts: StageParts) -> StageParts:
    """The parts with gradients of the type that the pipeline adds up."""
    if parts.reduce is None:
        return parts
    return replace(parts, reduce=in_gradient_dtype(parts.reduce, captured.gradient_dtype))


def _crossing(captured: CapturedPipeline) -> int:
    ports = (p for b in captured.bodies for p in b.step.arguments if p.role is Role.INPUT)
    return max((p.number + 1 for p in ports), default=1)


def _same(programs: Sequence[Program], program: Program) -> int:
    """The number of an equal program, or that of a new one."""
    for number, other in enumerate(programs):
        if len(other) == len(program) and all(
            getattr(other, table) == getattr(program, table) for table in TABLES
        ):
            columns = ((getattr(other, c), getattr(program, c)) for c in COLUMNS)
            if all(a.shape == b.shape and bool((a == b).all()) for a, b in columns):
                return number
    return len(programs)


def _name(plan: PipelinePlan, position: int) -> str:
    labels = (plan.captured.labels[stage] for stage in plan.stages_of(position))
    return f"{plan.captured.axis} {position}: {'; '.join(labels)}"


def _metadata(plan: PipelinePlan) -> dict[str, object]:
    captured = plan.captured
    pipeline = {
        "axis": captured.axis,
        "schedule": captured.schedule,
        "microbatches": captured.microbatches,
        "chunks": captured.chunks,
        "positions": [memory_of(plan, p) for p in range(plan.ranks)],
    }
    metadata: dict[str, object] = {
        "producer": "flint",
        "name": captured.name,
        "source": captured.source,
        "partitioner": "xla",
        "pipeline": pipeline,
        **captured.metadata,
    }
    warnings = (*captured.warnings, *_undeferred(plan))
    if warnings:
        metadata["warnings"] = list(warnings)
    return metadata


def _undeferred(plan: PipelinePlan) -> Iterator[str]:
    """A sentence about gradients that are not added up before they are reduced."""
    names = dict.fromkeys(name for parts in plan.parts for name in parts.undeferred)
    if names:
        yield (
            f"{len(names)} gradient{'s are' if len(names) > 1 else ' is'} reduced over devices "
            "for each microbatch, because the sums cannot wait for the last one: "
            f"{', '.join(names)}"
        )


def rank_program(plan: PipelinePlan, position: int) -> Program:
    """Compose the program of all ranks at `position` of the pipeline's axis."""
    state = first_state(plan, position)
    hold(state)
    add_units(state)
    if plan.trains:
        end_step(state)
    state.builder.add("func.return", Kind.VALUE, op=OpClass.RESULT, deps=state.returned)
    return FormReduceScatter().apply(state.builder.build())
