"""Long reductions in two steps, as XLA for GPUs does them without atomic operations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flint.ir.dims import ReductionDims
from flint.ir.edit import Editor
from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Kind, Program
from flint.passes.base import Pass
from flint.passes.fusion.diamonds import ROW_ELEMENTS, Diamonds
from flint.passes.fusion.roles import RowRole, roles_of


@dataclass(frozen=True)
class SplitReductions(Pass):
    """A reduction too long for a block of threads writes partial results, and another reads them.

    XLA's `TreeReductionRewriter`: of rows (elements that lie side by side) more than `row_elements`,
    of columns more than `column_elements` are reduced in about as many parts as parts have elements,
    a power of two. A softmax or norm that is one kernel (`Diamonds`) is left.
    """

    name: ClassVar[str] = "split-reductions"
    row_elements: int = ROW_ELEMENTS
    column_elements: int = 32 * 128

    def apply(self, program: Program) -> Program:
        """Return the program with a row more for each long reduction."""
        rows = self._long(program)
        if not rows:
            return program
        edit = Editor(program)
        for row in rows:
            _split(edit, row)
        return edit.build().program

    def _long(self, program: Program) -> list[int]:
        reduces = (program.op == OpClass.REDUCE) & (program.kind == Kind.COMPUTE)
        reduces &= (program.flags & (Flag.LAUNCHED | Flag.UNPRICED)) == 0
        reduced = ReductionDims.of(program.dims).reduced
        reduces &= reduced > min(self.row_elements, self.column_elements)
        if not reduces.any():
            return []
        roles = roles_of(program, operators=False, slices=False)
        along = (roles.role == RowRole.ROWS) | (ReductionDims.of(program.dims).rows == 1)
        reduces &= reduced > np.where(along, self.row_elements, self.column_elements)
        whole = Diamonds(program, roles, blocks="diamonds").whole if reduces.any() else set()
        return [row for row in np.flatnonzero(reduces).tolist() if row not in whole]


def _split(edit: Editor, row: int) -> None:
    """Put the first step in front of a reduction, which becomes the second."""
    program = edit.program
    rows, reduced = map(int, ReductionDims.of(program.dims[row]))
    parts = 1 << int(math.log2(math.sqrt(reduced)))
    size = int(program.result_bytes[row]) * parts
    each = -(-reduced // parts)
    first = edit.copy(
        row,
        row,
        int(program.region[row]),
        edit.reads(row),
        alias=-1,
        dims=ReductionDims(rows * parts, each).row,
        shape=(parts, rows),
        result_bytes=size,
        name="",
    )
    flops = int(program.flops[row]) // max(each, 1)
    edit.change(
        row, deps=[first], dims=ReductionDims(rows, parts).row, operand_bytes=size, flops=flops
    )
