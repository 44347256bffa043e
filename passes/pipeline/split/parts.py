"""The pieces that a pipeline's programs are put together from, and a body while it is taken apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from flint.ir.columns import Mask, barrier_views, edges, is_any, past_barriers, rewired
from flint.ir.edit import Editor
from flint.ir.op_class import OpClass
from flint.ir.program import Kind, Program
from flint.passes.partition.xla import position_with_results
from flint.passes.pipeline.split.reach import common_region, dependent, needed, producers
from flint.steps.captured import Body, Port, Positions, Role

#: Arguments that differ from microbatch to microbatch.
MICROBATCH_ROLES = frozenset({Role.BATCH, Role.INPUT, Role.COTANGENT})


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
    """Partition for one position; raises what `position_with_results` does."""
    program, results = position_with_results(body.captured, body.axis, Positions.STAGES)
    assert len(results) == len(body.results), f"{len(results)} results, {len(body.results)} ports"
    arguments = tuple(range(len(body.arguments)))  # the walk begins with a row for each argument
    return PartitionedBody(program, body.arguments, body.results, arguments, results)


@dataclass(frozen=True, eq=False)
class OpenBody:
    """A program, what its PARAMETER rows are, and which rows hold what it gives."""

    program: Program
    arguments: Mapping[int, Key]
    results: Mapping[Key, int]

    def moved(
        self,
        edit: Editor,
        results: Mapping[Key, int] | None = None,
        arguments: Mapping[int, Key] | None = None,
    ) -> OpenBody:
        """The body after an edit, with other results and more arguments where given."""
        program, place = edit.build()
        given = {**self.arguments, **(arguments or {})}
        wanted = self.results if results is None else results
        return OpenBody(
            program,
            {int(place[row]): key for row, key in given.items() if place[row] >= 0},
            {key: int(place[row]) for key, row in wanted.items()},
        )

    def rows_of(self, *roles: Role) -> list[int]:
        """Rows of the arguments that have one of `roles`."""
        found = self.arguments.items()
        return [row for row, key in found if isinstance(key, Port) and key.role in roles]

    def varying(self) -> Mask:
        """Rows that are another value for each microbatch: its arguments, and random numbers."""
        return self.seeds(*MICROBATCH_ROLES) | is_any(self.program, OpClass.RANDOM)

    def seeds(self, *roles: Role) -> Mask:
        """A mask of `rows_of`."""
        mask = np.zeros(len(self.program), dtype=np.bool_)
        mask[self.rows_of(*roles)] = True
        return mask


def opened(body: PartitionedBody) -> OpenBody:
    """The live rows of a body. Arguments that no result needs are dropped too."""
    program = _shared_past_barriers(body)
    passed = _passed_on(program)
    edit = Editor(program)
    for row in range(len(program)):
        deps = program.dependencies(row).tolist()
        if any(d in passed for d in deps):
            new = {d: _seen_from(program, passed, d, row) for d in deps}
            alias = int(program.alias[row])
            edit.change(row, deps=new.values(), alias=new.get(alias, -1))
    results: dict[Key, int] = {
        port: _seen_from(program, passed, row, -1)
        for port, row in zip(body.results, body.result_rows, strict=True)
    }
    arguments = dict(zip(body.argument_rows, body.arguments, strict=True))
    whole = OpenBody(program, arguments, {}).moved(edit, results)
    return alive(whole)


def alive(body: OpenBody) -> OpenBody:
    """The rows that results need."""
    keep = np.flatnonzero(needed(body.program, body.results.values())).tolist()
    return body.moved(Editor(body.program, keep))


def _shared_past_barriers(body: PartitionedBody) -> Program:
    """The program in which nobody waits for what is the same for every microbatch.

    The turns of a schedule order passes, and the backward pass may read what the forward pass gathered.
    """
    program = body.program
    views = barrier_views(program)
    if not views.any():
        return program
    varying = is_any(program, OpClass.RANDOM)
    ports = zip(body.argument_rows, body.arguments, strict=True)
    varying[[row for row, port in ports if port.role in MICROBATCH_ROLES]] = True
    shown = np.arange(len(program))
    for row in np.flatnonzero(views & ~dependent(past_barriers(program), varying)).tolist():
        shown[row] = shown[program.alias[row]]
    alias = np.where(program.alias < 0, -1, shown[program.alias]).astype(np.int32)
    owner, target = edges(program)
    return rewired(program.with_rows(alias=alias), (owner, shown[target]))


def _passed_on(program: Program) -> dict[int, int]:
    """Carried rows that a loop passes on as they came, and the rows that they came from."""
    found = {}
    for carried, produced in producers(program).items():
        deps = program.dependencies(carried)
        if carried == produced and len(deps) == 1 and program.kind[carried] == Kind.VALUE:
            found[carried] = int(deps[0])
    return found


def _seen_from(program: Program, passed: Mapping[int, int], row: int, reader: int) -> int:
    """What `reader` (-1: from outside all loops) reads as `row`, around loops that pass it on."""
    while row in passed:
        inside = reader >= 0 and common_region(program, row, reader) == program.region[row]
        if inside:
            return row
        row = passed[row]
    return row
