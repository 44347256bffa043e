"""Collectives of several tensors: one of each as NCCL groups them, or one of a flat copy of equal ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from flint.frontends.torch_world.device.device import SHOWN
from flint.frontends.torch_world.record.session import Session
from flint.frontends.torch_world.runtime.patching import Function, Patches

COALESCED = Patches()
_GROUP = "torch.distributed:ProcessGroup"
_Lists = Sequence[list[torch.Tensor]]


class Works:
    """The handles of several collectives, waited for together."""

    def __init__(self, works: Sequence[dist.Work]) -> None:
        self._works = works

    def wait(self, *timeout: object) -> bool:
        """What comes next on this stream waits for all of them."""
        for work in self._works:
            work.wait()
        return True

    def get_future(self) -> object:
        """The future of the last of them."""
        return self._works[-1].get_future()

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


_GATHER, _SCATTER = "_allgather_base", "_reduce_scatter_base"
_of_pairs(_GATHER, "all_gather_single_coalesced", "allgather_into_tensor_coalesced")
_of_pairs(_SCATTER, "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced")


class CopiedWorks(Works):
    """A collective and the copies behind it, which run on a stream of their own."""

    def __init__(self, work: dist.Work, copies: torch.cuda.Stream) -> None:
        super().__init__([work])
        self._copies = copies

    def wait(self, *timeout: object) -> bool:
        torch.cuda.current_stream().wait_stream(self._copies)
        return super().wait()


def _flat(tensors: Sequence[torch.Tensor], members: int) -> torch.Tensor | None:
    """Memory for equal tensors of all members, as ProcessGroupNCCL.cpp has (`newLikeFlat`); None for other lists."""
    equal = len({(t.shape, t.dtype) for t in tensors}) == 1 and len(tensors) == members
    if not equal or members == 1 or tensors[0].device.type != SHOWN:
        return None
    return tensors[0].new_empty((len(tensors), *tensors[0].shape))


@COALESCED.replaces(f"{_GROUP}.allgather")
def all_gather_list(session: Session, original: Function) -> Function:
    """NCCL gathers equal tensors into flat memory, and copies each out of it behind the collective."""
    streams: dict[str, torch.cuda.Stream] = {}

    def gather(
        group: dist.ProcessGroup,
        outputs: _Lists,
        inputs: Sequence[torch.Tensor],
        options: dist.AllgatherOptions | None = None,
    ) -> object:
        given = () if options is None else (options,)
        flat = _flat(outputs[0], group.size())
        if flat is None:
            return original(group, outputs, inputs, *given)
        work = getattr(group, _GATHER)(flat, inputs[0], *given)
        copies = torch.cuda.current_stream()
        if getattr(options, "asyncOp", True):
            copies = streams.get(group.group_name) or torch.cuda.Stream()
            streams[group.group_name] = copies
        with torch.cuda.stream(copies):
            work.wait()
            for output, part in zip(outputs[0], flat, strict=True):
                output.data.copy_(part)
        return CopiedWorks(work, copies)

    return gather


@COALESCED.replaces(f"{_GROUP}.reduce_scatter")
def reduce_scatter_list(session: Session, original: Function) -> Function:
    """NCCL copies equal tensors into flat memory before it reduces them."""

    def scatter(
        group: dist.ProcessGroup, outputs: Sequence[torch.Tensor], inputs: _Lists, *options: object
    ) -> object:
        flat = _flat(inputs[0], group.size())
        if flat is None:
            return original(group, outputs, inputs, *options)
        for part, input_ in zip(flat, inputs[0], strict=True):
            part.copy_(input_.data)
        return getattr(group, _SCATTER)(outputs[0], flat, *options)

    return scatter
