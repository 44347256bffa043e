"""Shapes of activations between the stages of `torch.distributed.pipelining`.

Before its first step a schedule sends descriptions of activations from stage to stage. On a fake
process group nothing arrives, so `StageShapes` answers: with what an earlier process found out for
the stage before, else with the output of the nearest stage before that one, as the layers of a
transformer keep their shape. Ranks are recorded in ascending order, so that the first stage comes
first; what was assumed is compared with what the stage's own process found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch.distributed.pipelining.stage import PipelineStage

from flint.errors import FlintError
from flint.frontends.torch_private import (
    backward_shapes,
    forward_shapes,
    pipeline_modes,
    set_inference,
    stage_input,
    stage_shapes,
)
from flint.frontends.torch_world.record.handover import Handover


class StageShapes:
    """Tells stages what their neighbors send, from a `Handover`.

    Raises FL235 where the shape of a stage's input cannot be known.
    """

    def __init__(self, handover: Handover) -> None:
        self._handover = handover

    def replacement(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """What takes the place of a method of `PipelineStage`."""
        if name == "_send_meta":
            return lambda stage, meta, to: self._send(stage, meta)
        if name == "_recv_meta":
            return lambda stage, source: self._receive(stage, source)
        return lambda stage, *args, **kwargs: self._infer(original, stage, *args, **kwargs)

    def _send(self, stage: PipelineStage, meta: object) -> None:
        if isinstance(meta, forward_shapes()):
            self._handover.tell(_fact(stage.stage_index), meta)

    def _receive(self, stage: PipelineStage, source: int) -> object:
        """What stage `source` sends: activations of the stage before, or gradients of the next."""
        if source > stage.stage_index:
            return _gradients(stage)
        if self._handover.knows(_fact(source)):
            return self._handover.ask(_fact(source))
        before = [index for index in range(source) if self._handover.knows(_fact(index))]
        if not before:
            raise _unknown_input(stage)
        return self._handover.assume(_fact(source), _fact(max(before)))

    def _infer(
        self, original: Callable[..., Any], stage: PipelineStage, *args: object, **kwargs: object
    ) -> object:
        """A stage's outputs from its inputs."""
        try:
            return original(stage, *args, **kwargs)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            if _fact(stage.stage_index - 1) not in self._handover.assumed:
                raise
            raise _unknown_input(stage) from error


def _fact(stage: int) -> str:
    return f"output of pipeline stage {stage}"


def _unknown_input(stage: PipelineStage) -> FlintError:
    return FlintError(
        "FL235",
        f"the shape of the input of pipeline stage {stage.stage_index} is not known",
        help="give input_args and output_args (a microbatch) to PipelineStage",
    )


def warm_up(schedule: object, stages: list[Any], has_backward: bool, p2p_done: bool) -> None:
    """In the place of `_PipelineSchedule._warmup_p2p`: a vote on how shapes are found.

    All ranks run one program, so every stage votes as those here do. Nothing is sent.
    """
    mine = [stage for stage in stages if isinstance(stage, PipelineStage)]
    modes = pipeline_modes()
    dynamic = any(modes.needs_dynamic(stage_input(stage), has_backward) for stage in mine)
    for stage in mine:
        set_inference(stage, modes.DYNAMIC if dynamic else modes.STATIC)


def _gradients(stage: PipelineStage) -> object:
    """Gradients of a stage's outputs look like the outputs, and are summed over ranks."""
    metas = (_gradient(meta) for meta in stage_shapes(stage).outputs)
    return backward_shapes()(backward_metas=tuple(metas))


def _gradient(meta: Any) -> Any:
    if not meta.requires_grad:
        return None
    placements = getattr(meta, "placements", None)
    if placements is None:
        return replace(meta, requires_grad=False)
    from torch.distributed.tensor import Replicate

    whole = tuple(Replicate() if each.is_partial() else each for each in placements)
    return replace(meta, requires_grad=False, placements=whole)
