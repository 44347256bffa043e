"""Which HLO instructions communicate, and how each becomes a row."""

from __future__ import annotations

from dataclasses import dataclass

from flint.ir.mesh import Group, Mesh, Route
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Kind
from flint.passes.hlo import shapes
from flint.passes.hlo.module import HloModule, Instruction
from flint.passes.hlo.op_classes import class_of
from flint.passes.hlo.replica_groups import group_of, route_of

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
#: Starts whose result is (operands, results, ...) and not the results alone.
PAIRED_STARTS = ("all-gather-start", "collective-permute-start", "copy-start")


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
