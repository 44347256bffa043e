"""Collectives of Python objects, which PyTorch pickles into tensors and back, and known values that are sent.

Fake tensors cannot carry a pickle, so `Objects` answers them. Every rank runs the same program, so
what the others contribute to a gather is a copy of this rank's object. What a rank sends to all
(`broadcast_object_list`, `scatter_object_list`) is known where that rank is this one, or was
recorded before. They set a program up or log, and are not recorded.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from flint.errors import FlintError
from flint.frontends.torch_world.record.handover import Handover

#: Functions of `torch.distributed` that `Objects` has replacements for, under the same names.
OBJECT_COLLECTIVES = (
    *("all_gather_object", "gather_object", "broadcast_object_list"),
    *("scatter_object_list", "send_object_list", "recv_object_list", "monitored_barrier"),
)


class Objects:
    """Answers to object collectives.

    Raises FL235 for an object that comes from a rank that was not recorded before.
    """

    def __init__(self, handover: Handover) -> None:
        self._handover = handover
        self._calls: dict[int, int] = {}

    def all_gather_object(
        self, object_list: list[Any], obj: object, group: dist.ProcessGroup | None = None
    ) -> None:
        """Every rank has an object like this one."""
        _fill(object_list, obj, group)

    def gather_object(
        self,
        obj: object,
        object_gather_list: list[Any] | None = None,
        dst: int | None = None,
        group: dist.ProcessGroup | None = None,
        group_dst: int | None = None,
    ) -> None:
        """Every rank has an object like this one, where they are gathered."""
        if object_gather_list is not None and _global(dst, group_dst, group) == dist.get_rank():
            _fill(object_gather_list, obj, group)

    def broadcast_object_list(
        self,
        object_list: list[Any],
        src: int | None = None,
        group: dist.ProcessGroup | None = None,
        device: object = None,
        group_src: int | None = None,
    ) -> None:
        """The objects of rank `src`."""
        sender = _global(src, group_src, group)
        object_list[:] = self._from(sender, object_list, "broadcast_object_list")

    def scatter_object_list(
        self,
        scatter_object_output_list: list[Any],
        scatter_object_input_list: list[Any] | None = None,
        src: int | None = None,
        group: dist.ProcessGroup | None = None,
        group_src: int | None = None,
    ) -> None:
        """This rank's object of those that rank `src` has."""
        sender = _global(src, group_src, group)
        objects = self._from(sender, scatter_object_input_list or [], "scatter_object_list")
        scatter_object_output_list[0] = objects[dist.get_rank(group)]

    def send_object_list(self, object_list: list[Any], *args: object, **kwargs: object) -> None:
        """Nobody is there to receive."""

    def recv_object_list(self, object_list: list[Any], *args: object, **kwargs: object) -> int:
        """Nobody is there to send."""
        raise FlintError(
            "FL235",
            "recv_object_list() waits for an object of another rank, which does not run",
            help="send tensors, or make the object on every rank",
        )

    def monitored_barrier(self, *args: object, **kwargs: object) -> None:
        """All ranks are always there."""

    def _from(self, sender: int, objects: list[Any], name: str) -> list[Any]:
        call = self._calls[sender] = self._calls.get(sender, -1) + 1
        fact = f"objects {call} of rank {sender}"
        if sender == dist.get_rank():
            self._handover.tell(fact, objects)
            return objects
        if self._handover.knows(fact):
            return list(self._handover.ask(fact))
        if objects and all(entry is not None for entry in objects):
            return objects
        raise FlintError(
            "FL235",
            f"{name}() gets objects from rank {sender}, which was not recorded",
            help="make the objects on every rank; each runs the same program",
        )


class Broadcasts:
    """Known values of tensors that one rank sends to others of a group."""

    def __init__(
        self, handover: Handover, members: Callable[[Any], Sequence[int]], rank: int
    ) -> None:
        self._handover, self._members, self._rank = handover, members, rank
        self._calls: Counter[tuple[int, ...]] = Counter()

    def sent(self, group: Any, root: int, own: torch.Tensor | None) -> torch.Tensor | None:
        """The value of the member `root`, if it is this rank or was recorded before; else `own`."""
        members = tuple(self._members(group))
        self._calls[members] += 1
        fact = f"value {self._calls[members]} of rank {members[root]} to {hash(members)}"
        if members[root] == self._rank:
            if own is not None:
                self._handover.tell(fact, own)
        elif self._handover.knows(fact):
            found: torch.Tensor = self._handover.ask(fact)
            return found
        return own


def _fill(target: list[Any], obj: object, group: dist.ProcessGroup | None) -> None:
    rank = dist.get_rank(group)
    for index in range(dist.get_world_size(group)):
        target[index] = obj if index == rank else copy.deepcopy(obj)


def _global(rank: int | None, group_rank: int | None, group: dist.ProcessGroup | None) -> int:
    if group_rank is not None:
        return int(dist.get_global_rank(group or dist.group.WORLD, group_rank))
    return rank or 0
