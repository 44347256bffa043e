"""Sends and receives between neighbouring stages."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from flint.ir.builder import ProgramBuilder
from flint.ir.mesh import AxisRef, Route
from flint.ir.program import Kind, Phase, Row
from flint.passes.pipeline.schedule.units import StagePlacement


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
        """From the position of a stage to that of its neighbour, for all positions alike.

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
