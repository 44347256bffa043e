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
    a power of two. A softmax or norm that is one kernel (`Diamonds`) is left. Columns whose sums lie side by
    side and are summed as well (group norms) are two steps of any length.
    """

    name: ClassVar[str] = "split-reductions"
    row_elements: int = ROW_ELEMENTS
    column_elements: int = 32 * 128

    def apply(self, program: Program) -> Program:
        """Return the program with a row more for each long reduction."""
        last = _last_dimensions(program)
        parts = {row: (size, int(Flag.COLUMNS)) for row, size in last.items()}
        program = _split(program, parts)
        reduced = ReductionDims.of(program.dims).reduced
        long = {row: 1 << int(math.log2(math.sqrt(reduced[row]))) for row in self._long(program)}
        return _split(program, {r: (n, int(program.flags[r])) for r, n in long.items()})

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
        whole = Diamonds(program, roles, blocks="diamonds").whole if reduces.any() else {}
        return [row for row in np.flatnonzero(reduces).tolist() if row not in whole]


def _last_dimensions(program: Program) -> dict[int, int]:
    """Reductions over the last and earlier dimensions, with one between that is kept: elements of the last."""
    reduces = (program.op == OpClass.REDUCE) & (program.kind == Kind.COMPUTE)
    reduces &= (program.flags & (Flag.LAUNCHED | Flag.UNPRICED | Flag.COLUMNS)) == 0
    found = {}
    for row in np.flatnonzero(reduces & (ReductionDims.of(program.dims).rows > 1)).tolist():
        rows, reduced = map(int, ReductionDims.of(program.dims[row]))
        kept = [size for size in program.shapes[program.shape[row]] if size > 1]
        for read in program.dependencies(row).tolist():
            whole = [size for size in program.shapes[program.shape[read]] if size > 1]
            if math.prod(whole) == rows * reduced and kept and kept[-1] in whole:
                at = len(whole) - whole[::-1].index(kept[-1])
                apart = whole[at - len(kept) : at] != kept  # what is kept is no one stretch
                if apart and 1 < math.prod(whole[at:]) < reduced:
                    found[row] = math.prod(whole[at:])
    return found


def _split(program: Program, rows: dict[int, tuple[int, int]]) -> Program:
    """The program in which some reductions first reduce to so many parts, with the flags beside them."""
    if not rows:
        return program
    edit = Editor(program)
    for row, (parts, flags) in rows.items():
        _first_step(edit, row, parts, flags)
    return edit.build().program


def _first_step(edit: Editor, row: int, parts: int, flags: int) -> None:
    """Put the first step in front of a reduction, which becomes the second."""
    program = edit.program
    rows, reduced = map(int, ReductionDims.of(program.dims[row]))
    size = int(program.result_bytes[row]) * parts
    each = -(-reduced // parts)
    first = edit.copy(
        row,
        row,
        int(program.region[row]),
        edit.reads(row),
        alias=-1,
        flags=flags,
        dims=ReductionDims(rows * parts, each).row,
        shape=(parts, rows),
        result_bytes=size,
        name="",
    )
    flops = int(program.flops[row]) // max(each, 1)
    edit.change(
        row, deps=[first], dims=ReductionDims(rows, parts).row, operand_bytes=size, flops=flops
    )
