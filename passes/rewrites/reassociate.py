"""Sum first, communicate once: add(all-reduce x, all-reduce y) -> all-reduce(add(x, y))."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flint.ir.columns import Mask
from flint.ir.edit import Editor
from flint.ir.match import Op, rewrite
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Flag, Kind, Program
from flint.passes.base import Pass


@dataclass(frozen=True)
class ReassociateAllReduce(Pass):
    """Turn a sum of all-reduces into one all-reduce of the sum; chains and trees of sums too.

    Two all-reduces take part if they sum over one group, have one size and type, lie in one
    region, and the addition alone reads them. The later one's row becomes the addition, the
    addition's row becomes the all-reduce, and the earlier one goes. XLA does the same
    (AllReduceReassociate); it meets the input gradients of q, k and v, and of gate and up.
    """

    name: ClassVar[str] = "reassociate"

    def apply(self, program: Program) -> Program:
        """Return the program with fewer all-reduces and the same additions."""
        return rewrite(program, Op(OpClass.ADD, _computes, reads=(_SUM, _SUM)), _sum_first)


def _computes(program: Program) -> Mask:
    """Rows of a compiler's program: what a framework launched runs as it is."""
    launched = (program.flags & Flag.LAUNCHED) != 0
    return np.asarray((program.kind == Kind.COMPUTE) & ~launched)


def _whole(program: Program) -> Mask:
    """Sums of whole values over a group."""
    reduces = (program.collective == Collective.ALL_REDUCE) & (program.group >= 0)
    return np.asarray(reduces & (program.comm_bytes == program.result_bytes))


_SUM = Op(OpClass.ADD, _whole, read_once=True)


def _sum_first(edit: Editor, add: int, first: int, second: int) -> bool:
    p, rows = edit.program, [edit.like(r) for r in (first, second, add)]
    groups = {p.groups[p.group[r]] for r in rows[:2]}
    types = {(p.dtype[r], p.shape[r], p.result_bytes[r]) for r in rows}
    if len(groups) > 1 or len(types) > 1:
        return False
    edit.swap(add, second)
    edit.change(second, deps=[*edit.reads(first), *edit.reads(second)])
    edit.change(add, deps=[second])
    edit.remove([first])
    return True
