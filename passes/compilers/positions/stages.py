"""The parts of a pipeline's stages as a whole compiler makes them, each a module of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from flint.errors import FlintError
from flint.ir.edit import kept
from flint.ir.op_class import OpClass
from flint.ir.program import Kind, Phase, Program
from flint.passes.compilers.positions.cut_module import CutBody, CutModule, cut_body, with_shardings
from flint.passes.compilers.positions.deferred import deferred
from flint.passes.compilers.positions.position_compiler import PositionCompiler
from flint.passes.partition.one_position import on_one_position
from flint.passes.partition.worker import the_worker
from flint.passes.pipeline.split.parts import (
    Key,
    Partial,
    PartitionedBody,
    Saved,
    StageParts,
    StageProgram,
)
from flint.steps.captured import Body, Captured, CapturedPipeline, Port, Positions, Role
from flint.steps.trip_counts import TripCounts


@dataclass(frozen=True)
class CompiledStages:
    """Compiles bodies of a pipeline.

    `whole` is for the optimizer, `parts` for stages: `flint.passes.pipeline.compose.compose` takes
    both. Raise what `compile_captured` does, and FlintError FL240 for what cannot be compiled.
    """

    compiler: PositionCompiler
    trip_counts: TripCounts

    def whole(self, body: Body) -> PartitionedBody:
        """A body as one module."""
        program, results = self.compiler.compile(self._alone(body.captured), body.captured.mesh)
        arguments = tuple(
            range(len(body.arguments))
        )  # the walk begins with a row for each argument
        return PartitionedBody(program, body.arguments, body.results, arguments, results)

    def parts(self, captured: CapturedPipeline, body: Body, splits: bool) -> StageParts:
        """The forward and the backward pass of a stage, each as one module.

        What the one keeps for the other is sharded as Shardy's propagation would shard it.
        """
        self._require_two_passes(captured, splits)
        alone = replace(body, captured=self._alone(body.captured))
        cut = self._sharded(cut_body(alone))
        forward = self._part(cut.forward, cut, alone, Phase.FORWARD, captured)
        if cut.backward is None:
            return StageParts(forward)
        backward = self._part(cut.backward, cut, alone, Phase.BACKWARD, captured)
        found = deferred(backward, accumulates=captured.accumulates)
        return StageParts(forward, found.backward, reduce=found.reduce, undeferred=found.undeferred)

    def _require_two_passes(self, captured: CapturedPipeline, splits: bool) -> None:
        if splits:
            raise FlintError(
                "FL240",
                f"schedule '{captured.schedule}' runs a backward pass in two parts, which "
                f"{self.compiler.lowering.compiler} compiles as one",
                help="choose another schedule (1f1b, interleaved-1f1b, gpipe), or leave out the "
                "compiler",
            )
        if not captured.reshard_after_forward:
            raise FlintError(
                "FL240",
                "parameters that are kept gathered all step long belong to no pass that "
                f"{self.compiler.lowering.compiler} compiles",
                help="leave reshard_after_forward on, or leave out the compiler",
            )

    def _sharded(self, cut: CutBody) -> CutBody:
        """Both passes with the same shardings of what is saved."""
        if cut.backward is None or not cut.saved:
            return cut
        facts, _ = the_worker().request("result-shardings", cut.forward.module)
        shardings = facts["shardings"][-cut.saved :]
        at = len(cut.forward.results) - cut.saved
        forward = with_shardings(cut.forward.module, at, shardings, results=True)
        at = len(cut.backward.arguments) - cut.saved
        backward = with_shardings(cut.backward.module, at, shardings, results=False)
        return replace(
            cut,
            forward=replace(cut.forward, module=forward),
            backward=replace(cut.backward, module=backward),
        )

    def _part(
        self, cut: CutModule, whole: CutBody, body: Body, phase: Phase, of: CapturedPipeline
    ) -> StageProgram:
        name = f"{body.captured.name}, {phase.name.lower()} pass"
        captured = replace(body.captured, module=cut.module, name=name)
        program, results = self.compiler.compile(captured, of.mesh)
        count = len(body.arguments)
        arguments: list[Key] = [
            body.arguments[i] if i < count else Saved(i - count) for i in cut.arguments
        ]
        outputs: list[Key] = [
            body.results[i] if i >= 0 else Saved(whole.saved + i) for i in cut.results
        ]
        return _without_end(program, arguments, list(map(_partial, outputs)), results, phase)

    def _alone(self, captured: Captured) -> Captured:
        """A body's module for one position."""
        alone = on_one_position(captured, self.compiler.axis, Positions.STAGES)
        return replace(alone, trip_counts=self.trip_counts)


def _partial(key: Key) -> Key:
    """Gradients are those of one microbatch."""
    if isinstance(key, Port) and key.role is Role.GRADIENT:
        return Partial(key.name)
    return key


def _without_end(
    program: Program,
    arguments: Sequence[Key],
    outputs: Sequence[Key],
    results: Sequence[int],
    phase: Phase,
) -> StageProgram:
    """A compiled module as a part: its rows are of one phase, and it has no result row."""
    phases = program.phase.copy()
    worked = program.kind != Kind.PARAMETER
    again = (phases == Phase.REMAT) & (phase == Phase.BACKWARD)
    phases[worked & ~again] = phase
    keep = np.ones(len(program), dtype=np.bool_)
    last = len(program) - 1
    assert program.op[last] == OpClass.RESULT and len(results) == len(outputs)
    keep[last] = False
    return StageProgram(
        kept(program.with_rows(phase=phases), keep),
        {key: row for row, key in enumerate(arguments)},
        dict(zip(outputs, results, strict=True)),
    )
