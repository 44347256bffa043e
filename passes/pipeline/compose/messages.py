"""Sends and receives between neighbouring stages."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from flint.ir.builder import ProgramBuilder
from flint.ir.mesh import AxisRef, Route
from flint.ir.program import Kind, Phase, Row


@dataclass(frozen=True)
class Neighbours:
    """Stages in a ring of `ranks` positions along `axis`: stage s is at position s mod `ranks`.

    Between two positions, each boundary has a channel per value that crosses it and direction.
    Microbatches cross a boundary in order, so the n-th send of a channel is what its n-th receive
    waits for; what the other stage does not read is not sent. Boundaries of other positions have
    the same channels: their programs may be equal.
    """

    axis: str
    ranks: int
    stages: int
    crossing: int

    def channel(self, boundary: int, number: int, *, forward: bool) -> int:
        """Channel of value `number` between stages `boundary` and `boundary` + 1."""
        return 2 * (boundary // self.ranks * self.crossing + number) + (not forward)

    def route(self, *, forward: bool) -> Route:
        """From each position to the next, or to the one before."""
        wraps = self.stages > self.ranks
        return Route((AxisRef(self.axis),), 1 if forward else -1, wrap=wraps)

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
            route=self.route(forward=forward),
            channel=self.channel(boundary, number, forward=forward),
            scope=f"pipeline/{what}",
            cause=f"{what} for the stage {way}{sharded}",
            phase=Phase.FORWARD if forward else Phase.BACKWARD,
        )
