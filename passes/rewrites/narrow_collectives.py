"""What is widened before it is moved is moved first."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from flint.ir.columns import Mask
from flint.ir.edit import Editor
from flint.ir.match import ANY, Op, rewrite
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Flag, Kind, Program
from flint.passes.base import Pass

MOVES = (Collective.ALL_GATHER, Collective.ALL_TO_ALL, Collective.PERMUTE)


@dataclass(frozen=True)
class NarrowCollectives(Pass):
    """Let a collective that only moves data take what a conversion to a wider type read.

    The conversion comes after it, then; what else reads it keeps one of its own. It may be read in
    another shape or order (ConvertMover). A conversion to a narrower type that alone reads a collective comes before it. XLA
    for GPUs does the same (CollectiveQuantizer), and gathers what a broadcast repeats before that
    (AllGatherBroadcastReorder).
    """

    name: ClassVar[str] = "narrow-collectives"

    def apply(self, program: Program) -> Program:
        """Return the program with narrower collectives."""
        program = rewrite(program, _OF_WIDENED, partial(_widened_after, turned=True))
        while (moved := rewrite(program, _OF_WIDENED, _widened_after)) is not program:
            program = moved  # the conversion may stand in front of another collective now
        return rewrite(program, _NARROWED, _narrowed_before)


def _moves(program: Program) -> Mask:
    return np.asarray(np.isin(program.collective, MOVES) & (program.kind == Kind.COLLECTIVE))


def _computes(program: Program) -> Mask:
    return np.asarray(program.kind == Kind.COMPUTE)


_OF_WIDENED = Op(ANY, _moves, reads=(Op(ANY),))
_NARROWED = Op(OpClass.CONVERT, _computes, reads=(Op(ANY, _moves, read_once=True),))


def _widened_after(edit: Editor, move: int, read: int, *, turned: bool = False) -> bool:
    """A narrow collective before the row, which becomes the conversion, `turned` if what it reads may be."""
    p = edit.program
    if p.op[edit.like(read)] == OpClass.BROADCAST:
        return p.collective[move] == Collective.ALL_GATHER and _moved_first(edit, move, read, [])
    convert, views = _seen_through(edit, read, turned)
    return p.op[edit.like(convert)] == OpClass.CONVERT and _moved_first(edit, move, convert, views)


def _seen_through(edit: Editor, row: int, turned: bool) -> tuple[int, list[int]]:
    """What a row is a view of, or has in another order, and the rows between, the outermost first."""
    p, views = edit.program, []
    while not edit.is_new(row) and len(edit.reads(row)) == 1:
        if not (p.flags[row] & Flag.VIEW or (turned and p.op[row] == OpClass.TRANSPOSE)):
            break
        views.append(row)
        row = edit.reads(row)[0]
    return row, views


def _moved_first(edit: Editor, move: int, widens: int, views: list[int]) -> bool:
    p = edit.program
    before, after = int(p.operand_bytes[widens]), int(p.result_bytes[widens])
    region = p.region[move]
    if edit.is_new(widens) or p.kind[widens] != Kind.COMPUTE or p.region[widens] != region:
        return False
    if not 0 < before < after or p.comm_bytes[move] != after or len(edit.reads(widens)) != 1:
        return False
    (read,), alone = edit.reads(widens), edit.uses(widens) == 1
    wide = int(p.result_bytes[move])
    narrow = wide * before // after
    sizes = {"operand_bytes": before, "comm_bytes": before, "result_bytes": narrow}
    dtype = p.dtype[edit.like(read)]
    for view in reversed(views):
        moves = p.op[view] == OpClass.TRANSPOSE and not p.flags[view] & Flag.VIEW
        read = edit.value(
            view, move, int(region), [read], dtype=dtype, result_bytes=before,
            operand_bytes=before if moves else 0, flags=0 if moves else Flag.VIEW,
            kind=Kind.COMPUTE if moves else Kind.VALUE,
        )  # fmt: skip
    moved = edit.copy(move, move, int(region), [read], dtype=dtype, **sizes)
    edit.become(move, widens)
    edit.change(
        move,
        deps=[moved],
        shape=p.shape[move],
        operand_bytes=narrow,
        result_bytes=wide,
        flops=int(p.flops[widens]) * wide // after,
    )
    if alone and not views:
        edit.remove([widens])
    return True


def _narrowed_before(edit: Editor, convert: int, move: int) -> bool:
    """Convert, then move."""
    p = edit.program
    before, after = int(p.operand_bytes[convert]), int(p.result_bytes[convert])
    if not 0 < after < before or p.result_bytes[move] != before:
        return False
    sent = int(p.comm_bytes[move])
    less = sent * after // before
    edit.swap(convert, move)
    edit.change(
        move,
        shape=p.shape[_read(edit, move)],
        operand_bytes=sent,
        result_bytes=less,
        flops=int(p.flops[convert]) * less // after,
    )
    edit.change(
        convert,
        dtype=p.dtype[convert],
        shape=p.shape[convert],
        operand_bytes=less,
        comm_bytes=less,
        result_bytes=after,
    )
    return True


def _read(edit: Editor, row: int) -> int:
    return edit.reads(row)[0]
