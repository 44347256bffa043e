"""What is known before programs are composed: parts of stages, orders of units, messages between."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from flint.ir.builder import ProgramBuilder
from flint.ir.edit import kept
from flint.ir.mesh import AxisRef, Route
from flint.ir.op_class import OpClass
from flint.ir.program import Kind, Phase, Row
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
class PipelinePlan:
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


@dataclass(frozen=True)
class Neighbours:
    """Stages on positions along `axis`, as `placement` says; at most `crossing` values go between.

    Between two positions, each boundary has a channel per value that crosses it and direction.
    Microbatches cross a boundary in order, so the n-th send of a channel is what its n-th receive
    waits for; what the other stage does not read is not sent. Boundaries of other positions have
    the same channels: their programs may be equal. Between stages of one position nothing is sent.
    """

    axis: str
    placement: StagePlacement
    crossing: int

    def apart(self, stage: int, other: int) -> bool:
        """Whether two stages are there, and at different positions."""
        if not 0 <= other <= self.placement.last_stage:
            return False
        return self.placement.rank_of[stage] != self.placement.rank_of[other]

    def channel(self, boundary: int, number: int, *, forward: bool) -> int:
        """Channel of value `number` between stages `boundary` and `boundary` + 1."""
        round_ = boundary // self.placement.ranks
        return 2 * (round_ * self.crossing + number) + (not forward)

    def route(self, boundary: int, *, forward: bool) -> Route:
        """From the position of a stage to that of its neighbor, for all positions alike.

        In a ring the last position is followed by the first, where there are stages enough.
        """
        placement = self.placement
        axes, way = (AxisRef(self.axis),), 1 if forward else -1
        if placement.is_ring:
            return Route(axes, way, wrap=placement.last_stage >= placement.ranks)
        here, there = placement.rank_of[boundary : boundary + 2]
        return Route(axes, way * (there - here), wrap=False)

    def send(
        self, builder: ProgramBuilder, row: int, tensor: Row, stage: int, number: int, forward: bool
    ) -> int:
        """Send `row`, a tensor like `tensor`: activations of `stage` on, or gradients back."""
        boundary = stage if forward else stage - 1
        return self._message(builder, Kind.SEND, [row], tensor, boundary, number, forward)

    def receive(
        self,
        builder: ProgramBuilder,
        deps: Collection[int],
        tensor: Row,
        stage: int,
        number: int,
        forward: bool,
    ) -> int:
        """Receive a tensor like `tensor`: activations for `stage`, or the gradients of its own."""
        boundary = stage - 1 if forward else stage
        return self._message(builder, Kind.RECV, deps, tensor, boundary, number, forward)

    def _message(
        self,
        builder: ProgramBuilder,
        kind: Kind,
        deps: Collection[int],
        tensor: Row,
        boundary: int,
        number: int,
        forward: bool,
    ) -> int:
        what = "activations" if forward else "gradients"
        sharded = f", sharded {tensor.cause}" if tensor.cause else ""
        way = "after" if forward else "before"
        return builder.add(
            f"pipeline.{kind.name.lower()}",
            kind,
            deps=deps,
            dtype=tensor.dtype,
            shape=tensor.shape,
            result_bytes=tensor.result_bytes if kind is Kind.RECV else 0,
            operand_bytes=tensor.result_bytes if kind is Kind.SEND else 0,
            comm_bytes=tensor.result_bytes,
            route=self.route(boundary, forward=forward),
            channel=self.channel(boundary, number, forward=forward),
            scope=f"pipeline/{what}",
            cause=f"{what} for the stage {way}{sharded}",
            phase=Phase.FORWARD if forward else Phase.BACKWARD,
        )
