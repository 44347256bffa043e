"""The pieces that a pipeline's programs are put together from, and how they fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from flint.errors import FlintError
from flint.ir.mesh import AxisRef
from flint.ir.program import Kind, Program
from flint.passes.partition.shardy import partition_with_results
from flint.steps.captured import Body, Port


@dataclass(frozen=True, eq=False)
class PartitionedBody:
    """A body of a stage as the program of one device, and which rows its ports are.

    `arguments[i]` is the PARAMETER row `argument_rows[i]`; `results[i]` is what row
    `result_rows[i]` holds at the end (a row inside a loop: in its last iteration).
    """

    program: Program
    arguments: tuple[Port, ...]
    results: tuple[Port, ...]
    argument_rows: tuple[int, ...]
    result_rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Saved:
    """A value that one part of a stage computes and a later part reads, by its row in the body."""

    row: int


@dataclass(frozen=True, slots=True)
class Partial:
    """The gradient of a parameter as one microbatch gives it, before it is reduced over devices."""

    name: str


#: What a part reads or gives.
Key = Port | Saved | Partial


@dataclass(frozen=True, eq=False)
class StageProgram:
    """Some of a body's work as a program of its own.

    Its first rows are PARAMETER rows, one for each thing that it reads (`inputs`: key to row, in
    row order). `outputs` says which row holds what it gives. It has no `func.return`.
    """

    program: Program
    inputs: Mapping[Key, int]
    outputs: Mapping[Key, int]


@dataclass(frozen=True, eq=False)
class StageParts:
    """A stage's work in the units that a schedule orders, and what runs once in a step.

    `forward` gives the stage's OUTPUT or LOSS and what the backward pass reads (`Saved`).
    `backward` gives INPUT_GRADIENT and `Partial` gradients; None in inference. Where it is split
    for a zero-bubble schedule, `backward` has what the stage before waits for, `weights` the rest.
    `reduce` turns accumulated `Partial` into GRADIENT; `gather` turns PARAMETER into `Saved`
    whole parameters that the others read, where these are kept gathered all step long.
    `undeferred` names parameters whose gradients are reduced for each microbatch: nothing allows
    to add up the microbatches first.
    """

    forward: StageProgram
    backward: StageProgram | None = None
    weights: StageProgram | None = None
    reduce: StageProgram | None = None
    gather: StageProgram | None = None
    undeferred: tuple[str, ...] = ()

    @property
    def passes(self) -> tuple[StageProgram, ...]:
        """The parts that run for each microbatch, in order."""
        return (self.forward, *self.backward_passes)

    @property
    def backward_passes(self) -> tuple[StageProgram, ...]:
        """`backward` and `weights`, where there are such."""
        return tuple(part for part in (self.backward, self.weights) if part is not None)


def partition_body(body: Body) -> PartitionedBody:
    """Partition with Shardy. Raises FlintError FL401, FL402 or FL403."""
    program, results = partition_with_results(body.captured)
    assert len(results) == len(body.results), f"{len(results)} results, {len(body.results)} ports"
    arguments = tuple(range(len(body.arguments)))  # the walk begins with a row for each argument
    return PartitionedBody(program, body.arguments, body.results, arguments, results)


def refuse_axis(program: Program, axis: str) -> None:
    """Raise FlintError FL240 if a stage communicates along `axis`, where the others are.

    The positions of a pipeline run different programs: none of the others would take part.
    """
    for row in np.flatnonzero(program.kind >= Kind.COLLECTIVE).tolist():
        if axis in {ref.name for ref in _axes(program, row)}:
            what, scope = program.row(row), program.strings[program.scope[row]]
            raise FlintError(
                "FL240",
                f"{what.opcode.partition('.')[2]} over {what.group or what.route} runs inside a "
                f"stage{f' ({scope})' if scope else ''}: '{axis}' is where the other stages lie",
                place=what.location or None,
                help=f"in a stage, communicate along other axes. jax.shard_map takes all axes of "
                f"the mesh: give it axis_names without '{axis}', or leave check_vma on",
            )


def _axes(program: Program, row: int) -> tuple[AxisRef, ...]:
    group, route = int(program.group[row]), int(program.route[row])
    if group >= 0:
        return program.groups[group].axes
    return program.routes[route].axes if route >= 0 else ()
