"""What is known while the program of one position of a pipeline is put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from flint.ir.builder import ProgramBuilder
from flint.ir.op_class import OpClass
from flint.ir.program import Kind
from flint.passes.pipeline.compose.memory import Stash
from flint.passes.pipeline.compose.plan import Plan
from flint.passes.pipeline.schedule.units import Unit
from flint.passes.pipeline.split.parts import Key, Partial, StageParts, StageProgram
from flint.passes.pipeline.split.reduce_part import ReducePiece


@dataclass
class Chunk:
    """One of the stages that a position holds, and the rows of the program that are of it.

    `held` are what it keeps all step long, `summed` its partial gradients once the last microbatch
    has given them, `pieces` what of its reductions has not begun, `gradients` what they gave.
    """

    stage: int
    parts: StageParts
    norm: StageProgram | None
    update: StageProgram | None
    held: dict[Key, int] = field(default_factory=dict)
    accumulators: dict[Partial, int] = field(default_factory=dict)
    summed: dict[Key, int] = field(default_factory=dict)
    pieces: list[ReducePiece] = field(default_factory=list)
    gradients: dict[Key, int] = field(default_factory=dict)


@dataclass
class RankState:
    """The program of a position so far.

    `turn` is the row that what comes next waits for: the end of the unit before it. `returned` are
    rows that hold what the step gives, `loss` the row of the loss or -1. `stash` is what waits of other
    microbatches.
    """

    plan: Plan
    position: int
    builder: ProgramBuilder
    chunks: tuple[Chunk, ...]
    turn: int = -1
    loss: int = -1
    returned: list[int] = field(default_factory=list)
    stash: Stash = field(default_factory=lambda: Stash(0, 0))

    @property
    def order(self) -> tuple[Unit, ...]:
        """The units of this position."""
        return self.plan.orders[self.position]

    def end_turn(self, rows: Sequence[int]) -> None:
        """Let what comes next wait for `rows`."""
        self.turn = self.builder.add(
            "pipeline.turn", Kind.VALUE, op=OpClass.TURN, deps=rows or [self.turn]
        )


def first_state(plan: Plan, position: int) -> RankState:
    """The program of a position before its first row."""
    chunks = tuple(
        Chunk(stage, plan.parts[body], plan.norms[body], plan.updates[body])
        for stage in plan.stages_of(position)
        for body in (plan.captured.stages[stage],)
    )
    return RankState(plan, position, ProgramBuilder(plan.captured.mesh), chunks)
