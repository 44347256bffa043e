"""How many layers a program has: how often the body that does most of its work repeats."""

from __future__ import annotations

import numpy as np

from flint.ir.op_class import OpClass
from flint.ir.program import Program, Region, RegionKind
from flint.passes.work.totals import total


def depth_of(program: Program) -> int:
    """The number of layers; 1 where nothing repeats.

    Of loops that read or write one part of stacked arrays in each iteration, the one with most
    FLOPs says it; without such loops any loop. A loop over microbatches stacks as well, but what is
    inside of it stacks too: of equal FLOPs the inner loop is the layers.
    """
    loops = [(i, r) for i, r in enumerate(program.regions) if _repeats(r)]
    stacked = [(i, r) for i, r in loops if _is_stacked(program, i, r)]
    if not (chosen := stacked or loops):
        return 1
    best = max(chosen, key=lambda item: (_flops_in(program, item[1]), item[0]))
    return best[1].trip_count


def _repeats(region: Region) -> bool:
    return region.kind is RegionKind.LOOP and region.trip_count > 1


def _is_stacked(program: Program, number: int, region: Region) -> bool:
    """Whether rows directly in the loop take or write parts of arrays of one part an iteration."""
    rows = np.arange(region.start, region.stop)
    rows = rows[program.region[rows] == number]
    takes = np.isin(program.op[rows], (OpClass.DYNAMIC_SLICE, OpClass.UPDATE_SLICE))
    for row in rows[takes].tolist():
        for whole in program.dependencies(row).tolist():
            shape = program.shapes[program.shape[whole]]
            if len(shape) > 1 and shape[0] == region.trip_count:
                return True
    return False


def _flops_in(program: Program, region: Region) -> int:
    """FLOPs of all its runs in one step, with what is inside of it."""
    rows = np.arange(len(program))
    inside = (region.start <= rows) & (rows < region.stop)
    return total(program, np.where(inside, program.flops, 0))
