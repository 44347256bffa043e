"""Layers of a scan as arrays of their own, as modules of PyTorch hold them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from flint.ir.columns import Mask, changed, consumers, edges, is_any, rewired, yielded
from flint.ir.op_class import GENERATED, LAYOUT, OpClass
from flint.ir.program import Flag, Kind, Program, RegionKind
from flint.passes.base import Pass


@dataclass(frozen=True)
class SeparateLayers(Pass):
    """Reading and writing a layer's part of a stack is no work.

    A scan keeps parameters, saved activations and gradients of its layers in stacks, of which an
    iteration copies its part out or in. Where layers are objects with arrays of their own there are
    no such copies:

    * a slice of one of `trip_count` parts of a stack is a view of it;
    * an update of one of them, which the loop hands on, is where the part was computed;
    * the stack that such updates begin with is not filled.
    """

    name: ClassVar[str] = "separate-layers"

    def apply(self, program: Program) -> Program:
        """Return the program in which these rows are views or values."""
        views = _views(program)
        if not views:
            return program
        updated = {row for row in views if program.flags[row] & Flag.IN_PLACE}
        empty = _empty_stacks(program, updated)
        rows, stacks = np.array(list(views)), np.array(list(views.values()))
        flags = (program.flags[rows] & ~np.uint16(Flag.IN_PLACE)) | np.uint16(Flag.VIEW)
        found = changed(
            program, rows, kind=Kind.VALUE, flags=flags, alias=stacks, flops=0, operand_bytes=0
        )
        found = changed(found, np.flatnonzero(empty), kind=Kind.VALUE, flops=0, operand_bytes=0)
        return _waiting_for_parts(found, rows, empty)


def _views(program: Program) -> dict[int, int]:
    """Rows that read or write a part of a stack of their loop, each with the stack."""
    copies = (program.kind == Kind.COMPUTE) & (program.region >= 0)
    slices = is_any(program, OpClass.DYNAMIC_SLICE) & copies
    updates = is_any(program, OpClass.UPDATE_SLICE) & copies & yielded(program)
    updates &= (program.flags & Flag.IN_PLACE) != 0
    found = {}
    for row in np.flatnonzero(slices | updates).tolist():
        region = program.regions[program.region[row]]
        shape = program.shapes[program.shape[row]]
        parts = region.trip_count if region.kind is RegionKind.LOOP else 0
        stack = (parts, *shape[1:])
        if updates[row] and shape == stack:
            found[row] = int(program.alias[row])
        elif slices[row] and shape[:1] == (1,):
            whole = [d for d in program.dependencies(row).tolist() if _shape(program, d) == stack]
            found.update({row: whole[0]} if len(whole) == 1 else {})
    return found


def _shape(program: Program, row: int) -> tuple[int, ...]:
    return program.shapes[program.shape[row]]


def _empty_stacks(program: Program, updated: set[int]) -> Mask:
    """Rows that fill what only becomes stacks whose updates are `updated`."""
    stacks = {row for row, produced in _carries(program) if produced in updated}
    filled: Mask = is_any(program, GENERATED | LAYOUT) & (program.kind == Kind.COMPUTE)
    start, readers = consumers(program)
    for row in np.flatnonzero(filled).tolist():
        mine = readers[start[row] : start[row + 1]].tolist()
        filled[row] = bool(mine) and stacks.issuperset(mine)
    return filled


def _carries(program: Program) -> Iterator[tuple[int, int]]:
    return (pair for region in program.regions for pair in region.carries)


def _waiting_for_parts(program: Program, views: NDArray[np.int64], empty: Mask) -> Program:
    """The program in which a stack is there when its parts are.

    `views` read no scalars any more: which part it is, is known when the loop is written out. What
    is not filled waits for nothing: else each part would wait for all that came before its loop.
    """
    chosen = np.zeros(len(program), dtype=np.bool_)
    chosen[views] = True
    scalar = np.array([not s for s in program.shapes] or [False], dtype=np.bool_)[program.shape]
    owner, target = edges(program)
    stays = ~(chosen[owner] & scalar[target]) & ~empty[owner]
    return rewired(program, (owner[stays], target[stays]))
