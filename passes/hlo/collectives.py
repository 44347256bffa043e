"""Which HLO instructions communicate, between whom, and how each becomes a row.

XLA writes groups as lists, as an iota that is reshaped and transposed, or as axes of a mesh of its
own; a list may count replicas, partitions or devices. Devices are replica * partitions + partition.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flint.errors import FlintError, Malformed
from flint.ir.mesh import AxisRef, Group, Mesh, Route
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Kind
from flint.passes.axes import groups_to_axes, pairs_to_route
from flint.passes.hlo import shapes
from flint.passes.hlo.module import HloModule, Instruction
from flint.passes.hlo.op_classes import class_of

#: Opcode, without `-start`, to kind of collective.
COLLECTIVES: dict[str, Collective] = {
    "all-reduce": Collective.ALL_REDUCE,
    "all-gather": Collective.ALL_GATHER,
    "reduce-scatter": Collective.REDUCE_SCATTER,
    "all-to-all": Collective.ALL_TO_ALL,
    "ragged-all-to-all": Collective.ALL_TO_ALL,
    "collective-permute": Collective.PERMUTE,
    "collective-broadcast": Collective.BROADCAST,
}
_PAIR = re.compile(r"\{\s*(\d+)\s*,\s*(\d+)\s*\}")
#: Collectives that carry `use_global_device_ids`; for the others a channel means partitions.
_GLOBAL_IDS = ("all-reduce", "all-gather", "reduce-scatter")


@dataclass(frozen=True, slots=True)
class Message:
    """What a communicating row holds besides the columns of every row."""

    kind: Kind
    comm_bytes: int
    collective: Collective = Collective.NONE
    group: Group | None = None
    route: Route | None = None


def collective_kind(opcode: str) -> Collective:
    """The kind of collective that an opcode starts, or NONE."""
    return COLLECTIVES.get(opcode.removesuffix("-start"), Collective.NONE)


def collective_message(
    instruction: Instruction, operands: list[Instruction], module: HloModule, mesh: Mesh
) -> Message | None:
    """The message of a collective; None if it leaves everything where it is.

    `comm_bytes` is the sum of the operands' bytes: of a combined collective, all of them; of a
    ragged all-to-all, its data operand, which is the most that can be sent.
    """
    kind = collective_kind(instruction.opcode)
    data = operands[:1] if instruction.opcode.startswith("ragged") else operands
    size = sum(shapes.num_bytes(o.shape) for o in data)
    if kind is Collective.PERMUTE:
        size = shapes.num_bytes(operands[0].shape) if _in_place(operands) else size
        route = route_of(instruction, module, mesh)
        moves = size and route is not None and route != Route()
        return Message(Kind.COLLECTIVE, size, kind, route=route) if moves else None
    group = group_of(instruction, module, mesh)
    if not size or group.size(mesh) < 2:
        return None
    return Message(Kind.COLLECTIVE, size, kind, group)


def point_to_point_message(
    instruction: Instruction, operands: list[Instruction], module: HloModule, mesh: Mesh
) -> Message | None:
    """The message of a send or recv between devices; None for a transfer to or from the host."""
    if instruction.is_host_transfer:
        return None
    sends = instruction.opcode == "send"
    data = operands[0].shape if sends else instruction.shape.tuple_shapes[0]
    size, route = shapes.num_bytes(data), route_of(instruction, module, mesh)
    if route is None or not size:
        return None
    return Message(Kind.SEND if sends else Kind.RECV, size, route=route)


def holds_collective(fusion: Instruction, module: HloModule) -> bool:
    """Whether a fusion communicates: TPU programs fuse collectives with what is around them."""
    return any(
        collective_kind(i.opcode) or (i.opcode == "fusion" and holds_collective(i, module))
        for c in module.called(fusion)
        for i in c.instructions
    )


def fused_reduce_scatter(fusion: Instruction, module: HloModule, mesh: Mesh) -> Message | None:
    """The message of a fusion that reduces and keeps its part; None for any other fusion.

    It holds one all-reduce, and its results are the operands divided by the size of the group.
    """
    computation = module.called(fusion)[0]
    found = [i for i in computation.instructions if collective_kind(i.opcode)]
    if len(found) != 1 or found[0].opcode != "all-reduce":
        return None
    reduced = collective_message(found[0], module.operands(computation, found[0]), module, mesh)
    if reduced is None or reduced.group is None:
        return None
    if shapes.num_bytes(fusion.shape) * reduced.group.size(mesh) != reduced.comm_bytes:
        return None
    return Message(Kind.COLLECTIVE, reduced.comm_bytes, Collective.REDUCE_SCATTER, reduced.group)


def reduction(instruction: Instruction, module: HloModule) -> str:
    """How an all-reduce or reduce-scatter combines, for its opcode: `[maximum]`, or "" for sums."""
    if not instruction.called_computation_ids:
        return ""
    opcode = module.root(module.called(instruction)[0]).opcode
    return "" if opcode == "add" else f"[{opcode}]"


def _in_place(operands: list[Instruction]) -> bool:
    """Whether a permute has the form (input, output, input offsets, output offsets)."""
    return len(operands) == 4 and operands[2].shape.element_type == shapes.TUPLE


def reducer(instruction: Instruction, message: Message, module: HloModule) -> OpClass:
    """What a collective reduces with; MOVE if it does not reduce."""
    if message.collective not in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER):
        return OpClass.MOVE
    if not instruction.called_computation_ids or instruction.opcode == "fusion":
        return OpClass.ADD
    return class_of(module.root(module.called(instruction)[0]).opcode)


def group_of(instruction: Instruction, module: HloModule, mesh: Mesh) -> Group:
    """Who takes part in a collective. Raises FlintError FL102 for devices outside the mesh."""
    listed = _listed(instruction, mesh)
    if isinstance(listed, list):
        lists = [g for g in listed if len(g)]
        if len({len(g) for g in lists}) > 1:
            return groups_to_axes(lists, mesh)
        listed = np.array(lists or [list(_everyone(instruction, module, mesh))], dtype=np.int64)
    return groups_to_axes(_to_devices(listed, instruction, module, mesh), mesh)


def route_of(instruction: Instruction, module: HloModule, mesh: Mesh) -> Route | None:
    """Where a permute, send or recv goes; None for a send or recv that does not say."""
    pairs = [(p.source, p.target) for p in instruction.source_target_pairs]
    if not pairs:
        for attribute in instruction.frontend_attributes.map:
            if attribute.key == "_xla_send_recv_source_target_pairs":
                pairs = [(int(s), int(t)) for s, t in _PAIR.findall(attribute.value)]
    if not pairs:
        return None
    # a permutation is a list of pairs of replicas or partitions: the same rule as for groups
    devices = _to_devices(np.array(pairs, dtype=np.int64), instruction, module, mesh)
    return pairs_to_route(devices, mesh)


def iota_groups(
    groups: int, size: int, reshape: list[int], transpose: list[int]
) -> NDArray[np.int64]:
    """Expand `[groups,size]<=[reshape]T(transpose)`. Raises Malformed if sizes disagree."""
    dims = reshape or [groups * size]
    order = transpose or list(range(len(dims)))
    if math.prod(dims) != groups * size or min(*dims, groups, size) < 1:
        raise Malformed(f"{groups} groups of {size} are from an iota of {dims}")
    if sorted(order) != list(range(len(dims))):
        raise Malformed(f"an iota of {dims} is transposed by {order}")
    ranks = np.arange(math.prod(dims), dtype=np.int64).reshape(dims)
    return ranks.transpose(order).reshape(groups, size)


def _listed(instruction: Instruction, mesh: Mesh) -> NDArray[np.int64] | list[list[int]]:
    devices = instruction.collective_device_list
    if instruction.HasField("mesh_axes_groups"):
        groups = instruction.mesh_axes_groups
        _require_devices(math.prod(a.size for a in groups.mesh.axes), instruction, mesh)
        return _mesh_axes(groups)
    for holder, name in ((instruction, "iota_groups"), (devices, "iota_replica_group_list")):
        if holder.HasField(name):
            iota = getattr(holder, name)
            count = iota.num_replica_groups * iota.num_devices_per_group
            if count > mesh.size:  # less is possible: groups may count replicas or partitions
                _require_devices(count, instruction, mesh)
            ranks = iota_groups(
                iota.num_replica_groups,
                iota.num_devices_per_group,
                list(iota.iota_reshape_dims),
                list(iota.iota_transpose_perm),
            )
            return ranks
    return [list(g.replica_ids) for g in devices.replica_groups or instruction.replica_groups]


def _mesh_axes(groups: Any) -> NDArray[np.int64]:
    """Groups of XLA's own mesh: its axes in the order named, over its device order."""
    axes = groups.mesh.axes
    if any(not 0 <= a.mesh_axis_index < len(axes) for a in groups.axes):
        raise Malformed("groups lie along an axis that their mesh does not have")
    theirs = Mesh(tuple(f"{i}" for i in range(len(axes))), tuple(a.size for a in axes))
    chosen = [
        AxisRef(str(a.mesh_axis_index), a.sub_axis_info.pre_size, a.sub_axis_info.size)
        if a.HasField("sub_axis_info")
        else AxisRef(str(a.mesh_axis_index))
        for a in groups.axes
    ]
    ranks = theirs.groups(chosen)
    order = np.array(groups.mesh.device_ids, dtype=np.int64)
    if groups.mesh.HasField("iota_devices"):
        iota = groups.mesh.iota_devices
        order = iota_groups(
            1, theirs.size, list(iota.reshape_dims), list(iota.transpose_perm)
        ).reshape(-1)
    if len(order) not in (0, theirs.size):
        raise Malformed(f"a mesh of {theirs.size} has {len(order)} devices")
    return order[ranks] if len(order) else ranks


def _require_devices(count: int, instruction: Instruction, mesh: Mesh) -> None:
    if count != mesh.size:
        raise FlintError(
            "FL102",
            f"'{instruction.name}' was compiled for {count} devices, but the mesh {mesh} has {mesh.size}",
            help="give the mesh that the program was compiled for",
        )


def _to_devices(
    listed: NDArray[np.int64], instruction: Instruction, module: HloModule, mesh: Mesh
) -> NDArray[np.int64]:
    """Groups of devices from groups of replicas or partitions (xla_data.proto, group modes)."""
    if instruction.use_global_device_ids or not module.num_partitions and _has_channel(instruction):
        return listed
    partitions = _partitions(listed, module, mesh)
    if _counts_partitions(instruction):
        return np.concatenate([listed + r * partitions for r in range(mesh.size // partitions)])
    devices = listed[:, :, None] * partitions + np.arange(partitions)
    if _has_channel(instruction):  # replicas with all of their partitions
        return devices.reshape(len(listed), -1)
    return devices.transpose(0, 2, 1).reshape(-1, listed.shape[1])


def _partitions(listed: NDArray[np.int64], module: HloModule, mesh: Mesh) -> int:
    """Partitions of the program; where the file does not say, what a list of replicas implies."""
    if module.num_partitions:
        return module.num_partitions
    replicas = int(listed.max()) + 1
    if replicas < 1:
        raise Malformed("groups are of replicas below 0")
    return mesh.size // replicas if mesh.size % replicas == 0 else 1


def _everyone(instruction: Instruction, module: HloModule, mesh: Mesh) -> range:
    """The members of the one group that an empty list stands for."""
    if not module.num_partitions or instruction.use_global_device_ids:
        return range(mesh.size)
    if _counts_partitions(instruction):
        return range(module.num_partitions)
    return range(mesh.size // module.num_partitions)


def _counts_partitions(instruction: Instruction) -> bool:
    opcode = instruction.opcode.removesuffix("-start")
    return _has_channel(instruction) and opcode not in _GLOBAL_IDS


def _has_channel(instruction: Instruction) -> bool:
    return bool(instruction.channel_id > 0)
