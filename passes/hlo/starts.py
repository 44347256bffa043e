"""What the start of something asynchronous gives, without the buffers that it adds."""

from __future__ import annotations

from typing import Any

from flint.passes.hlo.module import Instruction

#: Starts whose result is (operands, results, ...) and not the results alone.
PAIRED_STARTS = ("all-gather-start", "collective-permute-start", "copy-start")


def started_shape(i: Instruction) -> Any:
    """The shape of what an instruction computes."""
    if i.opcode in PAIRED_STARTS and len(i.shape.tuple_shapes) > 1:
        return i.shape.tuple_shapes[0 if i.opcode == "copy-start" else 1]
    return i.shape
