"""What is known before programs are composed: the parts of every stage, and the orders of units."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flint.ir.columns import kept
from flint.ir.op_class import OpClass
from flint.ir.program import Phase
from flint.passes.pipeline.compose.messages import Neighbours
from flint.passes.pipeline.schedule.units import StagePlacement, Unit
from flint.passes.pipeline.split.parts import (
    Key,
    Partial,
    PartitionedBody,
    StageParts,
    StageProgram,
)
from flint.steps.captured import CapturedPipeline, Port, Role


@dataclass(frozen=True, eq=False)
class Plan:
    """A pipeline with its bodies split into parts, and the order of units of every position.

    `parts`, `norms` and `updates` go by body, as `captured.bodies` does.
    """

    captured: CapturedPipeline
    parts: tuple[StageParts, ...]
    norms: tuple[StageProgram | None, ...]
    updates: tuple[StageProgram | None, ...]
    orders: tuple[tuple[Unit, ...], ...]
    neighbours: Neighbours

    @property
    def ranks(self) -> int:
        """Number of positions along the pipeline's axis."""
        return self.placement.ranks

    @property
    def placement(self) -> StagePlacement:
        """Where the stages lie."""
        return self.neighbours.placement

    def stages_of(self, position: int) -> tuple[int, ...]:
        """The stages that a position holds, chunk by chunk."""
        return self.placement.stages_of[position]

    def reads(self, stage: int, role: Role, number: int) -> bool:
        """Whether a pass of `stage` reads INPUT or COTANGENT `number`: others are not sent to it."""
        return any(
            isinstance(key, Port) and (key.role, key.number) == (role, number)
            for part in self.parts[self.captured.stages[stage]].passes
            for key in part.inputs
        )

    @property
    def trains(self) -> bool:
        """Whether there is a backward pass."""
        return any(p.backward is not None for p in self.parts)


def once_a_step(body: PartitionedBody | None) -> StageProgram | None:
    """A body of the optimizer as one part."""
    if body is None:
        return None
    phase = np.full(len(body.program), Phase.OPTIMIZER, dtype=np.uint8)
    program = body.program.with_rows(phase=phase)
    last = len(program) - 1
    assert program.op[last] == OpClass.RESULT
    keep = np.ones(len(program), dtype=np.bool_)
    keep[last] = False
    inputs: dict[Key, int] = dict(zip(body.arguments, body.argument_rows, strict=True))
    outputs: dict[Key, int] = dict(zip(body.results, body.result_rows, strict=True))
    return StageProgram(kept(program, keep), inputs, outputs)


def partial_keys(parts: StageParts) -> dict[Partial, tuple[StageProgram, int]]:
    """The gradients that passes of a microbatch give: key to (part, row)."""
    return {
        key: (part, row)
        for part in parts.backward_passes
        for key, row in part.outputs.items()
        if isinstance(key, Partial)
    }
