"""What is widened before it is moved is moved first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flint.ir.columns import Mask
from flint.ir.edit import Editor
from flint.ir.match import ANY, Op, rewrite
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Kind, Program
from flint.passes.base import Pass

MOVES = (Collective.ALL_GATHER, Collective.ALL_TO_ALL, Collective.PERMUTE)


@dataclass(frozen=True)
class NarrowCollectives(Pass):
    """Let a collective that only moves data take what a conversion to a wider type read.

    The conversion comes after it, then; what else reads it keeps one of its own. A conversion to a
    narrower type that alone reads a collective comes before it. XLA for GPUs does the same
    (CollectiveQuantizer).
    """

    name: ClassVar[str] = "narrow-collectives"

    def apply(self, program: Program) -> Program:
        """Return the program with narrower collectives."""
        while (moved := rewrite(program, _OF_WIDENED, _widened_after)) is not program:
            program = moved  # the conversion may stand in front of another collective now
        return rewrite(program, _NARROWED, _narrowed_before)


def _moves(program: Program) -> Mask:
    return np.asarray(np.isin(program.collective, MOVES) & (program.kind == Kind.COLLECTIVE))


def _computes(program: Program) -> Mask:
    return np.asarray(program.kind == Kind.COMPUTE)


_OF_WIDENED = Op(ANY, _moves, reads=(Op(OpClass.CONVERT, _computes),))
_NARROWED = Op(OpClass.CONVERT, _computes, reads=(Op(ANY, _moves, read_once=True),))


def _widened_after(edit: Editor, move: int, convert: int) -> bool:
    """A narrow collective before the row, which becomes the conversion."""
    p = edit.program
    before, after = int(p.operand_bytes[convert]), int(p.result_bytes[convert])
    if not 0 < before < after or p.comm_bytes[move] != after:
        return False
    (read,), alone = edit.reads(convert), edit.uses(convert) == 1
    wide = int(p.result_bytes[move])
    narrow = wide * before // after
    sizes = {"operand_bytes": before, "comm_bytes": before, "result_bytes": narrow}
    moved = edit.copy(move, move, int(p.region[move]), [read], dtype=p.dtype[read], **sizes)
    edit.become(move, convert)
    edit.change(
        move,
        deps=[moved],
        shape=p.shape[move],
        operand_bytes=narrow,
        result_bytes=wide,
        flops=int(p.flops[convert]) * wide // after,
    )
    if alone:
        edit.remove([convert])
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
