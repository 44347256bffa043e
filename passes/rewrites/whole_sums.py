"""Reduce-scatters as a compiler without them runs them: an all-reduce, then a slice of its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flint.ir.columns import changed, edges, rewired, with_value
from flint.ir.opcodes import opcode_mask
from flint.ir.program import Collective, Kind, Program
from flint.passes.base import Pass
from flint.passes.rewrites.insert_rows import with_copies

_SCATTER = frozenset({"sdy.reduce_scatter"})


@dataclass(frozen=True)
class SumWhole(Pass):
    """`sdy.reduce_scatter` becomes an all-reduce and a slice.

    Partitioning for XLA makes all-reduces, of which its compilers for accelerators make
    reduce-scatters where a slice follows (`ReduceScatterCreator`); the one for CPUs does not. What
    the program itself scatters (`stablehlo.reduce_scatter`) stays.
    """

    name: ClassVar[str] = "sum-whole"

    def apply(self, program: Program) -> Program:
        """Return the program with two rows for each such reduce-scatter."""
        reads = np.diff(program.dep_start) == 1
        rows = np.flatnonzero(opcode_mask(program, _SCATTER) & reads).astype(np.int64)
        if not len(rows):
            return program
        longer = with_copies(program, rows, rows, program.region[rows].astype(np.int64))
        opcodes, summed = with_value(program.opcodes, "sdy.all_reduce")
        opcodes, cut = with_value(opcodes, "stablehlo.dynamic_slice")
        size = program.comm_bytes[rows]
        found = changed(
            longer.program.with_rows(opcodes=opcodes),
            longer.rows,
            opcode=summed,
            collective=Collective.ALL_REDUCE,
            result_bytes=size,
            shape=program.shape[[program.dependencies(r)[0] for r in rows.tolist()]],
        )
        slices = longer.place[rows]
        found = changed(
            found,
            slices,
            **dict.fromkeys(("flops", "dims", "comm_bytes", "collective", "stream", "flags"), 0),
            **dict.fromkeys(("group", "route", "channel", "alias"), -1),
            opcode=cut,
            kind=Kind.COMPUTE,
            operand_bytes=program.result_bytes[rows],
        )
        owner, target = edges(found)
        owner = np.where(np.isin(owner, slices), owner - 1, owner)
        links = (np.append(owner, slices), np.append(target, longer.rows))
        return rewired(found, links)
