"""What is gathered and then cut back into each device's own part was there before."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from flint.ir.columns import Mask
from flint.ir.edit import IDLE, Editor
from flint.ir.match import ANY, Op, rewrite
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Flag, Program
from flint.passes.base import Pass


@dataclass(frozen=True)
class FoldGathers(Pass):
    """Let a slice that undoes a gather be what was gathered, in another shape or not.

    The slice keeps each device's own part along the dimension and over the axes of the gather,
    which stays for others that read it. XLA for GPUs does the same (AllGatherDynamicSliceSimplifier).
    """

    name: ClassVar[str] = "fold-gathers"

    def apply(self, program: Program) -> Program:
        """Return the program with views where slices undid gathers."""
        return rewrite(program, Op(OpClass.ALL_SLICE, _grouped, reads=(Op(ANY),)), _undone)


def _grouped(program: Program) -> Mask:
    return np.asarray(program.group >= 0)


def _undone(edit: Editor, slices: int, read: int) -> bool:
    p = edit.program
    gather = read
    if p.flags[read] & Flag.VIEW and len(edit.reads(read)) == 1:
        (gather,) = edit.reads(read)
    if p.collective[gather] != Collective.ALL_GATHER or p.group[gather] != p.group[slices]:
        return False
    if len(edit.reads(gather)) != 1:
        return False
    (part,) = edit.reads(gather)
    if _cut(p, part, gather) != _cut(p, slices, read):
        return False
    edit.change(slices, deps=[part], alias=part, **{**IDLE, "flags": int(Flag.VIEW)})
    return True


def _cut(program: Program, part: int, whole: int) -> tuple[int, ...]:
    """Elements before the one dimension in which two shapes differ, and its size; () without one."""
    few, many = (program.shapes[program.shape[row]] for row in (part, whole))
    at = [k for k, (a, b) in enumerate(zip(few, many, strict=False)) if a != b]
    if len(few) != len(many) or len(at) != 1:
        return (-part,)
    return prod(few[: at[0]]), few[at[0]] * prod(few[at[0] + 1 :])
