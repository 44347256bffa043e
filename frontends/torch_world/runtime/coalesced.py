"""Collectives that a program groups: one of each tensor, as NCCL makes them of one launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from flint.frontends.torch_world.record.session import Session
from flint.frontends.torch_world.runtime.patching import Function, Patches

COALESCED = Patches()
_GROUP = "torch.distributed:ProcessGroup"


class Works:
    """The handles of several collectives, waited for together."""

    def __init__(self, works: Sequence[dist.Work]) -> None:
        self._works = works

    def wait(self, *timeout: object) -> bool:
        """What comes next on this stream waits for all of them."""
        for work in self._works:
            work.wait()
        return True

    def is_completed(self) -> bool:
        return True

    is_success = is_completed


@COALESCED.replaces(f"{_GROUP}.allreduce_coalesced")
def all_reduce(session: Session, original: object) -> Function:
    """The fake process group has no grouped collectives."""

    def reduce(group: Any, tensors: Sequence[torch.Tensor], options: Any = None) -> Works:
        one = dist.AllreduceOptions()
        if options is not None:
            one.reduceOp, one.asyncOp = options.reduceOp, options.asyncOp
        return Works([group.allreduce([tensor], one) for tensor in tensors])

    return reduce


def _of_pairs(one: str, *names: str) -> None:
    """A grouped collective of outputs and inputs, from that of one output and one input."""

    @COALESCED.replaces(*(f"{_GROUP}.{name}" for name in names))
    def grouped(session: Session, original: object) -> Function:
        def run(
            group: Any,
            outputs: Sequence[torch.Tensor],
            inputs: Sequence[torch.Tensor],
            options: Any = None,
        ) -> Works:
            call = getattr(group, one)
            given = () if options is None else (options,)
            pairs = zip(outputs, inputs, strict=True)
            return Works([call(output, input_, *given) for output, input_ in pairs])

        return run


_of_pairs("_allgather_base", "all_gather_single_coalesced", "allgather_into_tensor_coalesced")
_of_pairs(
    "_reduce_scatter_base", "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"
)
