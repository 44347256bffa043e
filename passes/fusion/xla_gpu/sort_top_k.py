"""The largest of each row by a sort, where XLA for GPUs has no kernel that selects them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flint.ir.columns import consumers
from flint.ir.dims import ReductionDims
from flint.ir.edit import IDLE, Editor
from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Kind, Program
from flint.passes.base import Pass

_SELECTED = ("bfloat16", "float32")  #: types that the kernel takes


@dataclass(frozen=True)
class SortTopK(Pass):
    """`top_k` sorts whole rows and their positions, and slices take the first k of both.

    XLA's `TopkSpecializer` has a kernel that selects at most `most` of rows with at least `columns`
    elements, of bfloat16 or float32; its `TopkDecomposer` sorts for the rest, such as every
    router of experts. (That is jaxlib 0.10.2's; JAX 0.12 sorts bfloat16 as other types.)
    """

    name: ClassVar[str] = "sort-top-k"
    most: int = 16
    columns: int = 1024

    def apply(self, program: Program) -> Program:
        """Return the program with a sort and two slices for each such row."""
        found = (program.op == OpClass.TOP_K) & (program.kind == Kind.COMPUTE)
        found &= (program.flags & (Flag.LAUNCHED | Flag.UNPRICED)) == 0
        if not found.any():
            return program
        edit, (first, readers) = Editor(program), consumers(program)
        for row in np.flatnonzero(found).tolist():
            parts = readers[first[row] : first[row + 1]].tolist()
            if _are_parts(program, row, parts) and not self._is_selected(program, row):
                _sort(edit, row, parts)
        return edit.build().program

    def _is_selected(self, program: Program, row: int) -> bool:
        largest = program.shapes[program.shape[row]][-1]
        reduced = int(ReductionDims.of(program.dims[row]).reduced)
        is_known = program.dtypes[program.dtype[row]] in _SELECTED
        return is_known and largest <= self.most and reduced >= self.columns


def _are_parts(program: Program, row: int, readers: list[int]) -> bool:
    """Whether what reads a row shows one of its results each: a row that is read otherwise stays."""
    shows = all(program.op[r] == OpClass.PART and program.alias[r] == row for r in readers)
    return shows and bool(readers) and len(program.shapes[program.shape[row]]) > 0


def _sort(edit: Editor, row: int, parts: list[int]) -> None:
    """Turn a row into a sort, and what shows its results into slices of what shows the sort's."""
    program = edit.program
    *batch, largest = program.shapes[program.shape[row]]
    columns = int(ReductionDims.of(program.dims[row]).reduced)
    shape = (*batch, columns)
    for part in parts:
        size = int(program.result_bytes[part])
        whole = {"shape": shape, "result_bytes": size // largest * columns, "alias": row}
        shown = edit.copy(part, part, int(program.region[part]), [row], **whole)
        work = {"kind": Kind.COMPUTE, "op": OpClass.SLICE, "opcode": "stablehlo.slice"}
        edit.change(part, deps=[shown], alias=-1, **{**IDLE, **work, "operand_bytes": size})
    edit.change(
        row,
        op=OpClass.SORT,
        opcode="stablehlo.sort",
        shape=shape,
        result_bytes=int(program.result_bytes[row]) // largest * columns,
        flops=math.prod(shape) * math.ceil(math.log2(max(columns, 2))),
    )
