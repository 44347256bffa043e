"""PyTorch modules in stages in: exported whole, cut, each different stage lowered once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flint.errors import FlintError
from flint.frontends.jax_step.settings import platform_name
from flint.frontends.stages.pipeline import captured_pipeline, check_arguments
from flint.frontends.torch_export import lowered, require_torch
from flint.ir.mesh import Mesh
from flint.steps.captured import Body, Captured, CapturedPipeline, StageBodies
from flint.steps.pipeline import Pipeline
from flint.steps.step import TorchStep

if TYPE_CHECKING:
    from flint.frontends.torch_graph.stages.step import PortedProgram

#: Fields of a Pipeline that a TorchStep has itself, or that modules say by themselves.
_OF_THE_STEP = {
    "params": "TorchStep(module=...) has them",
    "inputs": "give TorchStep(args=...)",
    "targets": "give TorchStep(loss_args=...)",
    "loss": "give TorchStep(loss=...)",
    "backward": "give TorchStep(backward=True)",
    "optimizer": "give TorchStep(optimizer=...)",
    "tied": "parameters that two modules share are found automatically",
}


def capture_torch_pipeline(pipeline: Pipeline, mesh: Mesh, source: str = "") -> CapturedPipeline:
    """Capture the stages that a `TorchStep` is cut into for `mesh`, equal ones once.

    The module is exported on the meta device with the arguments of one microbatch; nothing of it
    is computed. Raises FlintError: FL240 (arguments that do not fit together), FL241 (a cut that is
    none), FL242 (more stages than layers), FL243 (microbatches that do not divide the batch), FL244
    (more values cross than `crossing` says), and what `capture_torch` raises.
    """
    step = _checked(pipeline)
    platform = platform_name(_platform(pipeline, step))
    require_torch()
    from flint.frontends.torch_graph.stages.programs import staged_model

    model = staged_model(pipeline, mesh)
    name = pipeline.name or step.name or type(step.module).__name__

    def body(program: PortedProgram | None, what: str) -> Body | None:
        if program is None:
            return None
        module = lowered(program, mesh, platform, what)
        return Body(
            Captured(module, mesh, what, source),
            pipeline.axis,
            program.argument_ports,
            program.result_ports,
        )

    bodies = []
    for programs in model.bodies:
        stage = body(programs.step, "step")
        assert stage is not None, "every stage computes something"
        bodies.append(
            StageBodies(stage, body(programs.norm, "norm"), body(programs.update, "update"))
        )
    return captured_pipeline(
        pipeline,
        mesh,
        source,
        name,
        bodies,
        model.stages,
        model.labels,
        model.tied,
        trains=step.trains,
        warnings=model.warnings,
    )


def _checked(pipeline: Pipeline) -> TorchStep:
    """The step of a pipeline whose arguments fit together; raises FlintError FL240 if not."""
    if not isinstance(pipeline.model, TorchStep) or pipeline.stages:
        raise FlintError(
            "FL240",
            "stages of a PyTorch model are modules of one module",
            help="put them into a torch.nn.Sequential and cut that: "
            'Pipeline(model=TorchStep(nn.Sequential(a, b), ...), cut="1")',
        )
    check_arguments(pipeline)
    for name, instead in _OF_THE_STEP.items():
        value = getattr(pipeline, name)
        if value is not None and value is not False and value != ():
            raise FlintError(
                "FL240", f"{name} of a pipeline is given with a TorchStep", help=instead
            )
    _check_clipping(pipeline, pipeline.model)
    return pipeline.model


def _check_clipping(pipeline: Pipeline, step: TorchStep) -> None:
    both = (pipeline.clip_norm, step.clip_norm)
    if both == (None, None):
        return
    if step.optimizer is None:
        raise FlintError("FL240", "clip_norm is given without an optimizer", help='"adamw"')
    if None not in both and both[0] != both[1]:
        raise FlintError(
            "FL240",
            f"clip_norm is {both[0]} in the pipeline and {both[1]} in its TorchStep",
            help="give only one of them",
        )


def _platform(pipeline: Pipeline, step: TorchStep) -> str:
    """The step's, unless only the pipeline names one."""
    return step.platform if step.platform != "cuda" else pipeline.platform
