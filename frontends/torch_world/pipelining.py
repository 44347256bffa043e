"""Shapes of activations between the stages of `torch.distributed.pipelining`.

Before its first step a schedule sends descriptions of activations from stage to stage. On a fake
process group nothing arrives, so `StageShapes` answers: with what an earlier capture process found
out for the stage before, else with the output of the nearest stage before that one, as the layers
of a transformer keep their shape. What was taken on trust is in `assumed`; when the stage itself
was recorded, `wrong_assumptions` compares. The job records ranks in ascending order (so that the
first stage comes first), passes on what they found, and repeats those that assumed wrongly.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining._utils import (
    InferenceMode,
    _StageBackwardMeta,
    _StageForwardMeta,
)


class StageInputUnknown(Exception):
    """The shape of a stage's input is not known: record the rank that has the stage before, first.

    `stage` is the stage whose output is missing, `rank` the rank of the world that has it, and
    `found` what this process found out until then.
    """

    def __init__(self, stage: int, rank: int, found: Mapping[int, bytes]) -> None:
        super().__init__(stage, rank, found)
        self.stage = stage
        self.rank = rank
        self.found = dict(found)


class StageShapes:
    """Outputs of stages, by index: `known` from other processes, `found` in this one.

    Descriptions are pickled: the process that runs the job has no PyTorch.
    """

    def __init__(self, known: Mapping[int, bytes] | None = None) -> None:
        self.known = dict(known or {})
        self.found: dict[int, bytes] = {}
        self.assumed: dict[int, bytes] = {}

    def replacements(self) -> dict[tuple[Any, str], Callable[..., Any]]:
        """What to install: for each (class, attribute), the function that takes its place.

        `_PipelineSchedule._warmup_p2p`, `PipelineStage._send_meta` and `PipelineStage._recv_meta`.
        """
        from torch.distributed.pipelining.schedules import _PipelineSchedule

        return {
            (_PipelineSchedule, "_warmup_p2p"): warm_up,
            (PipelineStage, "_send_meta"): lambda stage, meta, to: self.send(stage, meta, to),
            (PipelineStage, "_recv_meta"): lambda stage, source: self.receive(stage, source),
        }

    def send(self, stage: Any, meta: Any, to: int) -> None:
        """A stage says what it sends to stage `to`."""
        if isinstance(meta, _StageForwardMeta):
            self.found[stage.stage_index] = pickle.dumps(meta)

    def receive(self, stage: Any, source: int) -> Any:
        """What stage `source` sends: activations of the stage before, or gradients of the next.

        Raises StageInputUnknown where no stage before is known.
        """
        if source > stage.stage_index:
            return _gradients(stage)
        outputs = {**self.known, **self.found}
        if source not in outputs:
            before = [index for index in outputs if index < source]
            if not before:
                rank = int(stage._resolve_peer_global_rank(source))
                raise StageInputUnknown(source, rank, self.found)
            self.assumed[source] = outputs[max(before)]
        return pickle.loads(outputs.get(source, self.assumed.get(source, b"")))


def wrong_assumptions(assumed: Mapping[int, bytes], found: Mapping[int, bytes]) -> list[int]:
    """Stages whose output is not what another process took it to be."""
    return [stage for stage, meta in sorted(assumed.items()) if found.get(stage, meta) != meta]


def warm_up(schedule: Any, stages: list[Any], has_backward: bool, p2p_done: bool) -> None:
    """In the place of `_PipelineSchedule._warmup_p2p`: a vote on how shapes are found.

    All ranks run one program, so every stage votes as those here do. Nothing is sent.
    """
    mine = [stage for stage in stages if isinstance(stage, PipelineStage)]
    dynamic = any(InferenceMode.needs_dynamic(stage._user_meta, has_backward) for stage in mine)
    for stage in mine:
        stage._inference_mode = InferenceMode.DYNAMIC if dynamic else InferenceMode.STATIC


def _gradients(stage: Any) -> Any:
    """Gradients of a stage's outputs look like the outputs, and are summed over ranks."""
    metas = (_gradient(meta) for meta in stage._stage_meta.outputs)
    return _StageBackwardMeta(backward_metas=tuple(metas))


def _gradient(meta: Any) -> Any:
    if not meta.requires_grad:
        return None
    placements = getattr(meta, "placements", None)
    if placements is None:
        return replace(meta, requires_grad=False)
    from torch.distributed.tensor import Replicate

    whole = tuple(Replicate() if each.is_partial() else each for each in placements)
    return replace(meta, requires_grad=False, placements=whole)
