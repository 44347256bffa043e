"""Remove communication among one device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flint.ir.columns import Mask, changed, forwarded, kept, with_value, yielded
from flint.ir.mesh import Route
from flint.ir.opcodes import ALL_SLICE, opcode_mask
from flint.ir.program import Collective, Flag, Kind, Program
from flint.passes.base import Pass

#: Opcode of a VALUE row that is its dependency, unchanged.
IDENTITY = "flint.identity"


@dataclass(frozen=True)
class DropSingleMemberGroups(Pass):
    """Remove collectives and slices over groups of one, and permutes among one position.

    A frontend meets them when a mesh axis has size 1 or when a file lists every device as a group
    of its own, and `Program.verify` refuses them. So this pass is for what `ProgramBuilder.build`
    returns, before its first `verify`; on a verified program only permutes can be left to remove.
    Readers then read what the collective read. One that a loop yields becomes a VALUE row,
    because its operand may lie outside the loop.
    """

    name: ClassVar[str] = "drop-single-member-groups"

    def apply(self, program: Program) -> Program:
        """Return the program without communication among one device."""
        alone = _alone(program)
        if not alone.any():
            return program
        needed = alone & yielded(program)
        program = _as_values(program, needed)
        gone = alone & ~needed
        return kept(forwarded(program, gone), ~gone)


def _alone(program: Program) -> Mask:
    mesh = program.mesh
    groups = np.array([g.size(mesh) == 1 for g in program.groups] + [False], dtype=np.bool_)
    routes = np.array([_one_position(program, r) for r in program.routes] + [False], dtype=np.bool_)
    grouped = (program.collective != Collective.NONE) | opcode_mask(program, {ALL_SLICE})
    permutes = program.collective == Collective.PERMUTE
    alone = (grouped & groups[program.group]) | (permutes & routes[program.route])
    return np.asarray(alone, dtype=np.bool_)


def _one_position(program: Program, route: Route) -> bool:
    size = program.mesh.group_size(route.axes) if route.axes else program.mesh.size
    sends = bool(route.pairs) or route.wrap or route.offset == 0
    return size == 1 and sends  # without a sender the result is zeros, not the operand


def _as_values(program: Program, rows: Mask) -> Program:
    opcodes, identity = with_value(program.opcodes, IDENTITY)
    if not rows.any():
        return program
    return changed(
        program.with_rows(opcodes=opcodes),
        np.flatnonzero(rows),
        opcode=identity,
        kind=Kind.VALUE,
        collective=Collective.NONE,
        group=-1,
        route=-1,
        comm_bytes=0,
        flops=0,
        flags=Flag.VIEW,
    )
