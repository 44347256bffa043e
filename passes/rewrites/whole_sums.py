"""Reduce-scatters as a compiler without them runs them: an all-reduce, then a slice of its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flint.ir.columns import Mask
from flint.ir.edit import IDLE, Editor
from flint.ir.match import ANY, Op, rewrite
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Flag, Kind, Program
from flint.passes.base import Pass


@dataclass(frozen=True)
class SumWhole(Pass):
    """A reduce-scatter that the partitioner made becomes an all-reduce and a slice.

    Partitioning for XLA makes all-reduces, of which its compilers for accelerators make
    reduce-scatters where a slice follows (`ReduceScatterCreator`); the one for CPUs does not. What
    the program itself scatters stays.
    """

    name: ClassVar[str] = "sum-whole"

    def apply(self, program: Program) -> Program:
        """Return the program with two rows for each such reduce-scatter."""
        return rewrite(program, Op(ANY, _partitioned), _summed_whole)


def _partitioned(program: Program) -> Mask:
    made = (program.flags & Flag.PARTITIONED) != 0
    scatters = (program.collective == Collective.REDUCE_SCATTER) & made
    return np.asarray(scatters & (np.diff(program.dep_start) == 1))


def _summed_whole(edit: Editor, scatter: int) -> bool:
    """An all-reduce in front of the row, which becomes a slice of it."""
    p, (read,) = edit.program, edit.reads(scatter)
    whole = edit.copy(
        scatter,
        scatter,
        int(p.region[scatter]),
        [read],
        opcode="sdy.all_reduce",
        collective=Collective.ALL_REDUCE,
        result_bytes=p.comm_bytes[scatter],
        shape=p.shape[read],
    )
    work = {
        "opcode": "stablehlo.dynamic_slice",
        "op": OpClass.DYNAMIC_SLICE,
        "kind": Kind.COMPUTE,
        "operand_bytes": p.result_bytes[scatter],
        "cause": p.cause[scatter],
    }
    edit.change(scatter, deps=[whole], alias=-1, **{**IDLE, **work})
    return True
