"""Asynchronous operations that begin before their operands exist, as newer XLA:TPU writes them."""

from __future__ import annotations

from typing import Any


def bind(proto: Any) -> None:
    """Move the start of each to the `async-update` that hands it its operands, in an HloModuleProto."""
    for computation in proto.computations:
        gone = _bind(computation)
        for sequence in proto.schedule.sequences:
            if gone and sequence.key == computation.id:
                left = [i for i in sequence.value.instruction_ids if i not in gone]
                sequence.value.instruction_ids[:] = left


def _bind(computation: Any) -> dict[int, int]:
    """The starts that are gone, each with the instruction that stands for it."""
    made = {i.id: i for i in computation.instructions}
    gone: dict[int, int] = {}
    for i in computation.instructions:
        start = made.get(i.operand_ids[0]) if len(i.operand_ids) > 1 else None
        if start is not None and (start.opcode, i.opcode) == ("async-start", "async-update"):
            i.opcode = "async-start"
            i.operand_ids[:] = [*start.operand_ids, *i.operand_ids[1:]]
            i.called_computation_ids[:] = start.called_computation_ids
            i.control_predecessor_ids.extend(start.control_predecessor_ids)
            gone[start.id] = i.id
    for i in computation.instructions if gone else ():
        i.control_predecessor_ids[:] = [gone.get(n, n) for n in i.control_predecessor_ids]
    left = [i for i in computation.instructions if i.id not in gone]
    if gone:
        del computation.instructions[:]
        computation.instructions.extend(left)
    return gone
