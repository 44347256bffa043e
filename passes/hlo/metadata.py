"""Where an HLO instruction comes from: scope, phase and source line."""

from __future__ import annotations

from typing import Any

from flint.ir.program import Phase
from flint.passes.hlo.module import HloModule, Instruction
from flint.passes.locations import file_name, split_name_stack


def scope_and_phase(instruction: Instruction) -> tuple[str, Phase]:
    """Source scope and training phase from the `op_name` that JAX wrote."""
    return split_name_stack(instruction.metadata.op_name)


def location(instruction: Instruction, module: HloModule) -> str:
    """`file.py:line` of the instruction, from its metadata or the module's stack frames."""
    metadata = instruction.metadata
    if metadata.source_file:
        return f"{file_name(metadata.source_file)}:{metadata.source_line}"
    index = module.proto.stack_frame_index
    frame = _entry(index.stack_frames, metadata.stack_frame_id)
    place = frame and _entry(index.file_locations, frame.file_location_id)
    name = place and _entry(index.file_names, place.file_name_id)
    return f"{file_name(name)}:{place.line}" if name else ""


def _entry(table: Any, one_based: int) -> Any:
    """An entry of a table whose ids start at 1; None for 0 or an id outside of it."""
    return table[one_based - 1] if 0 < one_based <= len(table) else None
