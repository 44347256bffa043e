"""The ways from a program to the workload of a mesh: one for each kind of step, script and file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from flint.errors import FlintError
from flint.io.bounded import FileKind, read_bounded
from flint.ir.program import Phase, Program
from flint.ir.workload import Workload
from flint.log import stage
from flint.steps.captured import Captured
from flint.steps.entry import AnyStep
from flint.steps.input_kind import InputKind
from flint.steps.lowering import Lowering
from flint.steps.pipeline import Pipeline
from flint.steps.pools import Disaggregated
from flint.steps.step import Step, TorchStep, WorldStep
from flint.steps.trip_counts import TripCounts

if TYPE_CHECKING:
    from flint.passes.pipeline.split.parts import PartitionedBody
    from flint.passes.pipeline.split.shared import SharedBodies
    from flint.steps.captured import Body, CapturedPipeline

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Asked:
    """For what a program is captured, and how; `timings` are wall seconds by stage, as they pass.

    `name` is for a program without one. `shared` keeps what several pipelines have in common.
    """

    mesh: Any
    lowering: Lowering = field(default_factory=Lowering)
    counts: TripCounts = field(default_factory=lambda: TripCounts({}))
    name: str = ""
    source: str = ""
    shared: SharedBodies | None = None
    timings: dict[str, float] = field(default_factory=dict)


def workload_of_step(step: AnyStep, asked: Asked) -> Workload:
    """The workload of a step, by the route of its kind."""
    route = next(route for kind, route in ROUTES.items() if isinstance(step, kind))
    workload = route(step, asked)
    asked.counts.require_taken()
    return workload


def _world(step: WorldStep, asked: Asked) -> Workload:
    from flint.frontends.torch_distributed import capture_world

    if asked.lowering.compiler:
        raise FlintError(
            "FL218",
            f"{asked.lowering.compiler} compiles StableHLO, but a recorded program has PyTorch operators",
            help="omit the compiler, or capture the module with torch.export: flint.TorchStep",
        )
    with stage("capture", asked.timings):
        return capture_world(step, asked.mesh, name=step.name or asked.name, source=asked.source)


def _platform(lowering: Lowering, own: str) -> str:
    """What the program is lowered for: the platform of the compiler's chip, else the step's `own`."""
    if not lowering.compiler:
        return own
    from flint.passes.compilers.target import find_target

    return find_target(lowering.family, lowering.chip).platform


def _step(step: Step | TorchStep, asked: Asked) -> Workload:
    _prestart(asked.lowering)
    platform = _platform(asked.lowering, step.platform)
    step = replace(step, platform=platform, name=step.name or asked.name)
    own = TripCounts(step.trip_counts if isinstance(step, Step) else {}, over=asked.counts)
    with stage("capture", asked.timings):
        captured = _captured(step, asked, own)
    workload = finished(captured, asked)
    own.require_taken()
    return workload


def _captured(step: Step | TorchStep, asked: Asked, counts: TripCounts) -> Captured:
    if isinstance(step, TorchStep):
        from flint.frontends.torch_export import capture_torch

        return capture_torch(step, asked.mesh, asked.source)
    from flint.frontends.jax_step.program import capture_jax

    return capture_jax(replace(step, trip_counts=counts), asked.mesh, asked.source)


def _pools(step: Disaggregated, asked: Asked) -> Workload:
    from flint.tracing_pools import trace_pools

    step = replace(step, name=step.name or asked.name)
    with stage("capture", asked.timings):
        return trace_pools(
            *(step, asked.mesh),
            source=asked.source,
            trip_counts=asked.counts,
            lowering=asked.lowering,
        )


def _pipeline(step: Pipeline, asked: Asked) -> Workload:
    platform = _platform(asked.lowering, step.platform)
    step = replace(step, name=step.name or asked.name, platform=platform)
    if asked.lowering.compiler:
        return _compiled_pipeline(step, asked)
    from flint.passes.partition.worker import the_worker
    from flint.passes.pipeline.compose.compose import compose
    from flint.passes.pipeline.split.parts import partition_body

    shared = asked.shared

    def partition(body: Body) -> PartitionedBody:
        captured = replace(body.captured, trip_counts=asked.counts)
        body = replace(body, captured=captured)
        return partition_body(body) if shared is None else shared.partitioned(body, partition_body)

    the_worker().prestart()
    captured = _captured_pipeline(step, asked)
    with stage("partition", asked.timings):
        return compose(captured, partition)


def _compiled_pipeline(step: Pipeline, asked: Asked) -> Workload:
    from flint.passes.compilers.positions.position_compiler import PositionCompiler
    from flint.passes.compilers.positions.stages import CompiledStages
    from flint.passes.pipeline.compose.compose import compose

    captured = _captured_pipeline(step, asked)
    compiler = PositionCompiler(asked.lowering, captured.axis)
    stages = CompiledStages(compiler, asked.counts)
    with stage("compile", asked.timings):
        return compiler.signed(compose(captured, stages.whole, stages.parts))


def _captured_pipeline(step: Pipeline, asked: Asked) -> CapturedPipeline:
    with stage("capture", asked.timings):
        if isinstance(step.model, TorchStep):
            from flint.frontends.torch_pipeline import capture_torch_pipeline

            return capture_torch_pipeline(step, asked.mesh, asked.source)
        from flint.frontends.jax_pipeline import capture_jax_pipeline

        return capture_jax_pipeline(step, asked.mesh, asked.source)


_Route: TypeAlias = Callable[[Any, Asked], Workload]
#: How each kind of step becomes a workload.
ROUTES: Mapping[Any, _Route] = {
    WorldStep: _world,
    Pipeline: _pipeline,
    Disaggregated: _pools,
    (Step, TorchStep): _step,
}


# programs that are staged, scripts and files ------------------------------------------------------


def workload_of_staged(staged: object, platform: str, asked: Asked) -> Workload:
    """The workload of what `jax.stages` or `jax.export` hold, or bytes."""
    from flint.frontends.jax_step.stages import capture_staged

    with stage("capture", asked.timings):
        found = capture_staged(
            staged, asked.mesh, _platform(asked.lowering, platform), asked.counts
        )
    if isinstance(found, Captured):
        found = replace(found, source="")
    workload = finished(found, asked)
    asked.counts.require_taken()
    return workload


def workload_of_jax_script(
    path: Path, argv: Sequence[str], options: Mapping[str, Any], asked: Asked
) -> Workload:
    """The workload of a JAX script; `options` are those of `capture_jax_script`."""
    from flint.frontends.jax_script import capture_jax_script

    _prestart(asked.lowering)
    with stage("capture", asked.timings):
        captured = capture_jax_script(path, argv, asked.mesh, **options)
    workload, counts = None, TripCounts(dict(asked.counts))
    if captured.generation and not asked.lowering.compiler:
        generation = replace(captured.generation, trip_counts=counts)
        with suppress(FlintError):  # what is wrong with it is not what the user asked for
            workload = finished(generation, replace(asked, counts=counts))
    if workload is None or (workload.programs[0].phase != Phase.DECODE).all():
        counts = asked.counts
        workload = finished(replace(captured, trip_counts=counts), asked)
    counts.require_taken()
    return workload


def workload_of_torch_script(
    path: Path, argv: Sequence[str], options: Mapping[str, Any], asked: Asked
) -> Workload:
    """The workload of a PyTorch script, which torchrun would run; `options` are as of a JAX script.

    Its `step` is a part of inference. Raises FlintError FL218 for options that only a JAX script has.
    """
    part, number = options["step"], options["number"]
    from flint.frontends.torch_distributed import capture_script

    of_jax = {
        f"--step {part}": part not in ("", "prefill", "decode"),
        f"--steps {number} with --step {part}": part and number,
        "--compiler": asked.lowering.compiler,
        "--trip-count": asked.counts,
    }
    for option, given in of_jax.items():
        if given:
            raise FlintError(
                "FL218", f"{option} is for JAX scripts, but this one is PyTorch's", help="omit it"
            )
    with stage("capture", asked.timings):
        return capture_script(
            *(path, tuple(argv), asked.mesh),
            hints=dict(options["hints"] or {}),
            steps=0 if part else number,
            chip=options["chip"],
            part=part,
            per_host=options.get("per_host"),
        )


def workload_of_file(path: Path, kind: InputKind, asked: Asked) -> Workload:
    """The workload of a program in a file: StableHLO or XLA HLO."""
    data = read_bounded(path, FileKind.PROGRAM, "FL301")
    found: Captured | Program
    with stage("capture", asked.timings):
        if kind is InputKind.HLO:
            from flint.frontends.files.hlo import read_hlo

            found = read_hlo(data, asked.mesh, name=path.name, trip_counts=asked.counts)
        else:
            from flint.frontends.files.stablehlo import capture_stablehlo

            found = capture_stablehlo(data, asked.mesh, path.name, asked.counts)
    workload = finished(found, replace(asked, name=path.name, source=path.name))
    asked.counts.require_taken()
    return workload


# from what was captured to one device -------------------------------------------------------------


def finished(found: Captured | Program, asked: Asked) -> Workload:
    """A captured program partitioned or compiled; one that was compiled already is as it is."""
    if isinstance(found, Program):
        if asked.lowering.compiler:
            raise FlintError("FL219", "the program is already compiled", help="omit the compiler")
        return _single(found, _metadata(asked.name, asked.source, "none"))
    return (_compiled if asked.lowering.compiler else _partitioned)(found, asked)


def _partitioned(captured: Captured, asked: Asked) -> Workload:
    from flint.passes.partition.regathered import regathered_warnings
    from flint.passes.partition.xla import partitioned

    with stage("partition", asked.timings):
        found = partitioned(captured)
    _log.info(
        "%d rows in %d loops and branches of a module of %d bytes",
        *(len(found.program), len(found.program.regions), len(captured.module)),
    )
    metadata = _metadata(captured.name, captured.source, "xla")
    metadata |= {"model_share": found.model_share} if found.model_share < 1 else {}
    more = (found.replicated, *regathered_warnings(found.program))
    return _single(found.program, metadata | _warned(captured, *more))


def _compiled(captured: Captured, asked: Asked) -> Workload:
    from flint.passes.compilers.compiled import compile_captured, program_of

    with stage("compile", asked.timings):
        compiled = compile_captured(captured, asked.lowering)
    with stage("extract", asked.timings):
        program = program_of(compiled, captured)
    metadata = _metadata(captured.name, captured.source, "none")
    metadata["compiler"] = compiled.by.to_json()
    return _single(program, metadata | _warned(captured, compiled.warning))


def _single(program: Program, metadata: dict[str, Any]) -> Workload:
    """One program for all ranks; of a loop that generates tokens with the phases of these."""
    if set(program.phase.tolist()) == {Phase.FORWARD} and any(r.carries for r in program.regions):
        from flint.passes.rewrites.generation import with_generation

        program = with_generation(program)
    return Workload.single(program, metadata)


def _metadata(name: str, source: str, partitioner: str) -> dict[str, Any]:
    return {"producer": "flint", "name": name, "source": source, "partitioner": partitioner}


def _warned(captured: Captured, *more: str) -> dict[str, Any]:
    warnings = [*captured.warnings, *filter(None, more)]
    return {"warnings": warnings} if warnings else {}


def _prestart(lowering: Lowering) -> None:
    """Let the process of the partitioners import MLIR while the frontend traces."""
    if not lowering.compiler:
        from flint.passes.partition.worker import the_worker

        the_worker().prestart()
