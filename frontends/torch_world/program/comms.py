"""Operators of PyTorch that communicate: what each is to the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from flint.errors import FlintError
from flint.frontends.torch_private import group_of_name
from flint.frontends.torch_world.record.recording import Comm, CommKind
from flint.ir.program import Collective

#: Operators of these namespaces communicate.
NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "symm_mem")
#: Of those, operators that move nothing.
_LOCAL = (
    *("wait_tensor", "_wrap_tensor_autograd", "check_for_nan", "barrier", "monitored_barrier_"),
    "mesh_get_process_group",
)


@dataclass(frozen=True, slots=True)
class Family:
    """Operators of one shape: their kind and which arguments are inputs, outputs and group.

    `output` -1: the operator returns its result; equal to `input`: it works in place.
    """

    collective: Collective
    input: int
    output: int
    group: int = -1
    kind: CommKind = CommKind.COLLECTIVE


_C = Collective
_C10D = {
    "_allgather_base_": Family(_C.ALL_GATHER, 1, 0, 2),
    "allgather_": Family(_C.ALL_GATHER, 1, 0, 2),
    "allgather_coalesced_": Family(_C.ALL_GATHER, 1, 0, 2),
    "allgather_into_tensor_coalesced_": Family(_C.ALL_GATHER, 1, 0, 2),
    "gather_": Family(_C.ALL_GATHER, 1, 0, 2),
    "_reduce_scatter_base_": Family(_C.REDUCE_SCATTER, 1, 0, 2),
    "reduce_scatter_": Family(_C.REDUCE_SCATTER, 1, 0, 2),
    "reduce_scatter_tensor_coalesced_": Family(_C.REDUCE_SCATTER, 1, 0, 2),
    "allreduce_": Family(_C.ALL_REDUCE, 0, 0, 1),
    "allreduce_coalesced_": Family(_C.ALL_REDUCE, 0, 0, 1),
    # as many bytes as a broadcast, the other way
    "reduce_": Family(_C.BROADCAST, 0, 0, 1),
    "alltoall_": Family(_C.ALL_TO_ALL, 1, 0, 2),
    "alltoall_base_": Family(_C.ALL_TO_ALL, 1, 0, 2),
    "broadcast_": Family(_C.BROADCAST, 0, 0, 1),
    "scatter_": Family(_C.BROADCAST, 1, 0, 2),
    "send": Family(_C.NONE, 0, -1, 1, CommKind.SEND),
    "recv_": Family(_C.NONE, 0, 0, 1, CommKind.RECV),
}
_FUNCTIONAL = {
    "all_gather_into_tensor": Family(_C.ALL_GATHER, 0, -1),
    "all_gather_into_tensor_coalesced": Family(_C.ALL_GATHER, 0, -1),
    "all_gather_into_tensor_out": Family(_C.ALL_GATHER, 0, -1),
    "all_gather_single": Family(_C.ALL_GATHER, 0, -1),
    "reduce_scatter_tensor": Family(_C.REDUCE_SCATTER, 0, -1),
    "reduce_scatter_tensor_coalesced": Family(_C.REDUCE_SCATTER, 0, -1),
    "reduce_scatter_tensor_out": Family(_C.REDUCE_SCATTER, 0, -1),
    "reduce_scatter_single": Family(_C.REDUCE_SCATTER, 0, -1),
    "all_reduce": Family(_C.ALL_REDUCE, 0, -1),
    "all_reduce_": Family(_C.ALL_REDUCE, 0, 0),
    "all_reduce_coalesced": Family(_C.ALL_REDUCE, 0, -1),
    "all_reduce_coalesced_": Family(_C.ALL_REDUCE, 0, 0),
    "all_to_all_single": Family(_C.ALL_TO_ALL, 0, -1),
    "shard_dim_alltoall": Family(_C.ALL_TO_ALL, 0, -1),
    "broadcast": Family(_C.BROADCAST, 0, -1),
    "broadcast_": Family(_C.BROADCAST, 0, 0),
    "isend": Family(_C.NONE, 0, -1, -1, CommKind.SEND),
    "irecv": Family(_C.NONE, 0, 0, -1, CommKind.RECV),
}


def family_of(namespace: str, name: str) -> Family | None:
    """What an operator is to the network, None if it moves nothing. Raises FL235 if unknown."""
    if namespace not in NAMESPACES or name in _LOCAL:
        return None
    found = (_C10D if namespace == "c10d" else _FUNCTIONAL).get(name)
    if found is None:
        raise FlintError(
            "FL235",
            f"operator {namespace}::{name} cannot be recorded",
            help="use the collectives of torch.distributed or of functional collectives",
        )
    return found


#: How operators name a process group: by name, boxed, or itself.
GroupArgument: TypeAlias = str | torch.ScriptObject | dist.ProcessGroup


class GroupsByName:
    """Process groups that operators name, by the name that PyTorch gives them."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}
        self._by_object: dict[int, tuple[Any, str, Any]] = {}

    def of(self, given: GroupArgument) -> tuple[str, Any]:
        """Name and process group of an operator's argument: a name, or a boxed group."""
        if isinstance(given, str):
            group = self.seen.get(given)
            if group is None:
                group = self.seen[given] = group_of_name(given)
            return given, group
        group = given if isinstance(given, dist.ProcessGroup) else dist.ProcessGroup.unbox(given)
        name = str(group.group_name)
        self.seen.setdefault(name, group)
        return name, group

    def members(self, given: GroupArgument) -> list[int]:
        """The ranks of a group, in its order."""
        return list(dist.get_process_group_ranks(self.of(given)[1]))

    def position(self, given: GroupArgument) -> tuple[int, int]:
        """This rank's place in a group, and the group's size."""
        group = self.of(given)[1]
        return group.rank(), group.size()


def comm_of(
    family: Family,
    args: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    names: Sequence[str],
    groups: GroupsByName,
) -> Comm:
    """The network side of one call. `names` are those of the operator's arguments."""
    by_name = dict(zip(names, args, strict=False))
    name, group = groups.of(_group_argument(family, args, by_name))
    if family.output == 0 and family.input == 1 and "root_rank" not in by_name:
        rows = by_name.get("input_split_sizes"), by_name.get("output_split_sizes")
        listed = "output_tensors" in by_name
        _require_sizes(family.collective, inputs, outputs, group.size(), listed, rows)
    peer = (
        by_name.get("dst", by_name.get("src")) if family.kind is not CommKind.COLLECTIVE else None
    )
    if "input_tensors" in names and "root_rank" in names and family.output == 0:
        # Of a scatter, only one rank has the input: as much as all have of the output.
        inputs = inputs or [t for t in outputs for _ in range(group.size())]
    splits, received = _parts(family, by_name, inputs, outputs)
    return Comm(
        kind=family.kind,
        collective=family.collective,
        group=name,
        input_bytes=sum(t.numel() * t.element_size() for t in inputs),
        peer=-1 if peer is None else dist.get_process_group_ranks(group)[int(peer)],
        reduction=_reduction(by_name.get("reduce_op")),
        is_async=_is_async(family, by_name, names),
        splits=splits,
        received=received,
        root=int(by_name.get("root_rank", by_name.get("src", -1)))
        if family.kind is CommKind.COLLECTIVE
        else -1,
    )


def _require_sizes(
    collective: Collective,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    members: int,
    listed: bool,
    splits: Sequence[Sequence[int] | None],
) -> None:
    """Raise ValueError where tensors do not fit the group, as the process group of NCCL does.

    `listed`: the operator takes a list with a tensor for each member. `splits` are the rows of an
    exchange that go to each member and come from each, None or () where all are equal.
    """
    small, large = (inputs, outputs) if collective is Collective.ALL_GATHER else (outputs, inputs)
    if listed:
        tensors = len(large) if collective is Collective.ALL_TO_ALL else len(small) * members
        if len(large) != tensors or len(large) % members:
            raise ValueError(f"a list of {len(large)} tensors for the {members} ranks of the group")
    elif collective is Collective.ALL_TO_ALL:
        _require_splits(inputs[0], splits[0], members)
        _require_splits(outputs[0], splits[1], members)
    elif _elements(large) != _elements(small) * members:
        names = ("output", "input") if small is inputs else ("input", "output")
        raise ValueError(
            f"{names[0]} of {_elements(large):,} elements, not {members} x the {names[1]}'s "
            f"{_elements(small):,}"
        )


def _require_splits(tensor: torch.Tensor, splits: Sequence[int] | None, members: int) -> None:
    rows = tensor.size(0)
    if splits and (len(splits) != members or sum(splits) != rows):
        raise ValueError(f"splits {list(splits)} do not divide {rows:,} rows among {members} ranks")
    if not splits and rows % members:
        raise ValueError(f"{rows:,} rows do not divide equally among {members} ranks")


def _elements(tensors: Sequence[torch.Tensor]) -> int:
    return sum(int(t.numel()) for t in tensors)


def _parts(
    family: Family, by_name: dict[str, Any], inputs: Sequence[Any], outputs: Sequence[Any]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes of the parts that go to each member and come from each, () and () if all are equal."""
    if family.collective is Collective.ALL_TO_ALL:
        sent = by_name.get("input_split_sizes") or (
            [t.numel() for t in inputs] if len(inputs) > 1 else ()
        )
        received = by_name.get("output_split_sizes") or (
            [t.numel() for t in outputs] if len(outputs) > 1 else ()
        )
    elif family.collective is Collective.ALL_GATHER and len(inputs) == 1:
        sent, received = (), [t.numel() for t in outputs] if len(outputs) > 1 else ()
    else:
        return (), ()
    parts = tuple(map(int, sent)), tuple(map(int, received))
    return parts if any(len(set(p)) > 1 for p in parts) else ((), ())


def _is_async(family: Family, by_name: dict[str, Any], names: Sequence[str]) -> bool:
    """Arguments that have their default value, which is to be asynchronous, are omitted."""
    if "async_op" in names:
        return bool(by_name.get("async_op", True))
    return family.kind is not CommKind.COLLECTIVE


def _group_argument(family: Family, args: Sequence[Any], by_name: dict[str, Any]) -> GroupArgument:
    return by_name["group_name"] if family.group < 0 else args[family.group]


def _reduction(given: object) -> str:
    if isinstance(given, str):
        return given.lower()
    if given is None:
        return ""
    number: Any = given.op() if isinstance(given, torch.ScriptObject) else given
    return str(dist.ReduceOp.RedOpType(int(number)).name).lower()
