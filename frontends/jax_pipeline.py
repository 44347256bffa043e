"""JAX models in stages in: each different stage traced and lowered once for an abstract mesh."""

from __future__ import annotations

from collections.abc import Sequence

from flint.errors import FlintError
from flint.frontends.jax_stages.bodies import capture_body, differentiable, step_function
from flint.frontends.jax_stages.stage_function import StageFunction, as_ports, find_tied
from flint.frontends.jax_stages.stages import stage_functions
from flint.frontends.jax_stages.update import (
    Optimizer,
    find_optimizer,
    norm_function,
    update_function,
)
from flint.frontends.jax_step.settings import platform_name
from flint.frontends.stages.pipeline import Tied, captured_pipeline, check_arguments
from flint.ir.mesh import Mesh
from flint.steps.captured import CapturedPipeline, StageBodies
from flint.steps.pipeline import Layers, Pipeline, Stage


def capture_jax_pipeline(pipeline: Pipeline, mesh: Mesh, source: str = "") -> CapturedPipeline:
    """Capture the stages of a pipeline for `mesh`, equal ones once. Nothing of it is executed.

    Raises FlintError: FL240 (arguments that do not fit together), FL241 (a cut that is none),
    FL242 (more stages than layers), FL243 (microbatches that do not divide the batch), FL244
    (other values cross than `crossing` says), and what `capture_jax` raises.
    """
    optimizer = check_pipeline(pipeline)
    platform = platform_name(pipeline.platform)
    count = mesh.axis_size(pipeline.axis) * pipeline.chunks
    stages, shared = _stages(pipeline, mesh, count)
    first: dict[object, StageFunction] = {}
    for stage in stages:
        first.setdefault(stage.key, stage)
    keys = list(first)
    bodies = tuple(
        _bodies(stage, pipeline, optimizer, mesh, platform, source) for stage in first.values()
    )
    captured = [first[stage.key] for stage in stages]
    tied = find_tied(pipeline.tied, stages, captured) + as_ports(shared, stages, captured)
    return captured_pipeline(
        pipeline,
        mesh,
        source,
        pipeline.name or _name(pipeline),
        bodies,
        [keys.index(stage.key) for stage in stages],
        [stage.label for stage in stages],
        tied,
        trains=pipeline.trains,
    )


def _stages(
    pipeline: Pipeline, mesh: Mesh, count: int
) -> tuple[Sequence[StageFunction], tuple[Tied, ...]]:
    """The stages, and the parameters that a cut left in several of them."""
    if pipeline.stages:
        return stage_functions(pipeline, mesh, count), ()
    from flint.frontends.jax_stages.cut.program import cut_model

    found = cut_model(pipeline, mesh, count)
    return found.stages, found.tied


def _bodies(
    stage: StageFunction,
    pipeline: Pipeline,
    optimizer: Optimizer | None,
    mesh: Mesh,
    platform: str,
    source: str,
) -> StageBodies:
    target = (mesh, pipeline.axis, platform, source)
    step = capture_body(step_function(stage, mesh, pipeline.trains), *target)
    if optimizer is None or not differentiable(stage.params):
        return StageBodies(step)
    norm = None
    if pipeline.clip_norm is not None:
        squares = norm_function(stage, mesh, pipeline.gradient_dtype)
        norm = capture_body(squares, *target)
    update = update_function(stage, optimizer, pipeline, mesh)
    return StageBodies(step, norm, capture_body(update, *target))


def _name(pipeline: Pipeline) -> str:
    if not pipeline.stages:
        return str(getattr(pipeline.model, "__name__", "pipeline"))
    named = next((s for s in pipeline.stages if isinstance(s, Layers)), pipeline.stages[0])
    return str(getattr(named.fn, "__name__", "pipeline"))


def check_pipeline(pipeline: Pipeline) -> Optimizer | None:
    """The optimizer of a pipeline whose arguments fit together; raises FlintError FL240 if not."""
    check_arguments(pipeline)
    if bool(pipeline.stages) == (pipeline.model is not None):
        given = "both" if pipeline.stages else "neither"
        raise FlintError(
            "FL240",
            f"a pipeline has stages or a model, but {given} is given",
            help="give stages=[...], or model= with params= and cut=",
        )
    _check_sequences(pipeline)
    of_models = {"cut": pipeline.cut != "", "params": pipeline.params is not None}
    for name, is_given in of_models.items() if pipeline.stages else ():
        if is_given:
            raise FlintError(
                "FL240",
                f"{name} of a pipeline is given with stages",
                help="stages have their own parameters and are not cut: give model= to cut it, or split= to flint.Layers",
            )
    if pipeline.targets and pipeline.loss is None:
        raise FlintError(
            "FL240",
            "targets are given without a loss that reads them",
            help="give loss(output, *targets), or make them inputs",
        )
    if pipeline.clip_norm is not None and pipeline.optimizer is None:
        raise FlintError("FL240", "clip_norm is given without an optimizer", help='"adamw"')
    return find_optimizer(pipeline.optimizer)


def _check_sequences(pipeline: Pipeline) -> None:
    for name in ("stages", "inputs", "targets"):
        given = getattr(pipeline, name)
        if not isinstance(given, list | tuple):
            raise FlintError(
                "FL240",
                f"{name} of a pipeline is {type(given).__name__}, not a list",
                help=f"write {name}=[...], even for one",
            )
    for part in pipeline.stages:
        if not isinstance(part, Stage | Layers):
            raise FlintError(
                "FL240",
                f"a stage of a pipeline is {type(part).__name__}",
                help="give flint.Stage(fn, params) or flint.Layers(fn, params, count)",
            )
