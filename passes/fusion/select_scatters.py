"""Additions to one element of each row: comparisons of a position with an index."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from flint.ir.columns import dtype_bits, is_any
from flint.ir.dims import ReductionDims
from flint.ir.edit import IDLE, Editor
from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Kind, Program
from flint.passes.base import Pass
from flint.passes.fusion.xla_gpu.copy_carried import SCALAR_BYTES


@dataclass(frozen=True)
class SelectScatters(Pass):
    """A scatter that adds to one element of each row is a selection, element by element.

    The gradient of `take_along_axis` with one index a row, and so of a cross-entropy of labels, is
    one: its other dimensions are batch dimensions, so an index has one component. XLA for TPUs
    compares each position with the index of its row (libtpu 0.0.42.1); with two indices a row, or
    rows that are indices as well (`.at[arange(n), i]`), it scatters.
    """

    name: ClassVar[str] = "select-scatters"

    def apply(self, program: Program) -> Program:
        """Return the program in which such scatters are element-wise."""
        scatters = is_any(program, OpClass.SCATTER) & (program.kind == Kind.COMPUTE)
        scatters &= ((program.flags & Flag.LAUNCHED) == 0) & (program.alias >= 0)
        found = [r for r in np.flatnonzero(scatters).tolist() if _one_each_row(program, r)]
        if not found:
            return program
        filled = is_any(program, OpClass.BROADCAST) & (program.operand_bytes <= SCALAR_BYTES)
        edit = Editor(program)
        for row in found:
            base = program.alias[row]
            read = [r for r in edit.reads(row) if r != base or not filled[base]]
            edit.change(row, deps=read, **_selection(program, row, read))
        bases = Counter(program.alias[found].tolist())
        edit.remove(b for b, reads in bases.items() if filled[b] and edit.uses(b) == reads)
        return edit.build().program


def _selection(program: Program, row: int, read: list[int]) -> dict[str, Any]:
    elements = math.prod(program.shapes[program.shape[row]])
    return {
        **IDLE,
        "kind": Kind.COMPUTE,
        "opcode": "stablehlo.select",
        "op": OpClass.ARITHMETIC,
        "alias": -1,
        "flags": int(program.flags[row]) & ~int(Flag.IN_PLACE),
        "operand_bytes": int(program.result_bytes[read].sum()),
        "result_bytes": elements * dtype_bits(program.dtypes[program.dtype[row]]) // 8,
        "flops": elements,
    }


def _one_each_row(program: Program, row: int) -> bool:
    """Whether one element is added to each row, at a place of one component."""
    shape = program.shapes[program.shape[row]]
    read = [r for r in program.dependencies(row).tolist() if r != program.alias[row]]
    writes, length = map(int, ReductionDims.of(program.dims[row]))
    each = len(shape) > 1 and any(size * writes == math.prod(shape) for size in shape)
    singly = all(math.prod(program.shapes[program.shape[r]]) == writes for r in read)
    return each and singly and length == 1 and len(read) == 2 and program.flops[row] > 0
