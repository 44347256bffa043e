"""Collectives of Python objects, which PyTorch pickles into tensors and back, and known values that are sent.

Fake tensors cannot carry a pickle, so `Objects` answers them. Every rank runs the same program, so
what the others contribute to a gather is a copy of this rank's object. What a rank sends to all
(`broadcast_object_list`, `scatter_object_list`) is known where that rank is this one, or was
recorded before. They set a program up or log: only that the group's members meet in them is recorded.
"""

from __future__ import annotations

import copy
import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from flint.errors import FlintError
from flint.frontends.torch_world.record.handover import Handover
from flint.frontends.torch_world.record.session import Session
from flint.frontends.torch_world.runtime.patching import Function, Patches

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


# who meets in them ------------------------------------------------------------------------------

MEETINGS = Patches()
_BOTH = ("torch.distributed", "torch.distributed.distributed_c10d")


@MEETINGS.replaces(*(f"{module}:barrier" for module in _BOTH))
def barrier(session: Session, original: object) -> Function:
    """Host synchronization moves no data."""

    def meet(group: dist.ProcessGroup | None = None, *args: object, **kwargs: object) -> None:
        _meets(session, "barrier", {"group": group})

    return meet


def _object_collective(name: str) -> Function:
    @MEETINGS.replaces(*(f"{module}:{name}" for module in _BOTH))
    def collective(session: Session, original: object) -> object:
        """Fake tensors carry no pickles."""
        answer = getattr(session.objects, name)
        arguments = inspect.signature(answer)

        def collect(*args: object, **kwargs: object) -> object:
            given = arguments.bind(*args, **kwargs).arguments
            if name not in ("send_object_list", "recv_object_list"):
                _meets(session, name, {**given, **given.get("kwargs", {})})
            return answer(*args, **kwargs)

        return collect

    return collective


def _meets(session: Session, name: str, given: Mapping[str, Any]) -> None:
    """Note that a group meets; the root, if the arguments say one, by its place in the group."""
    group = given.get("group") or dist.group.WORLD
    if group is None or group is dist.GroupMember.NON_GROUP_MEMBER:
        return
    root = given.get("group_src", given.get("group_dst"))
    ranks = dist.get_process_group_ranks(group)
    if root is None and (of_world := given.get("src", given.get("dst"))) in ranks:
        root = ranks.index(of_world)
    session.on_meeting(name, group, -1 if root is None else int(root))


for _name in OBJECT_COLLECTIVES:
    _object_collective(_name)
