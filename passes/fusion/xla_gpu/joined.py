"""Several rows that become parts of one: a new row in front of them makes what they are slices of."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from flint.ir.columns import edges
from flint.ir.edit import IDLE, Editor
from flint.ir.op_class import OpClass
from flint.ir.program import Kind, Program
from flint.passes.fusion.merging import order_by

#: Opcode of what takes a part out of a joined row.
SLICE = "stablehlo.slice"


def brought_together(
    program: Program, sets: Sequence[Sequence[int]]
) -> tuple[Program, list[list[int]]]:
    """The program in which all that the rows of a set read comes before the first of them.

    What reads one of them comes after it. The rows of a set are of one segment, and need nothing
    of each other. Returns their new numbers too.
    """
    first = np.arange(len(program))
    for rows in sets:
        first[list(rows)] = rows[0]
    owner, target = edges(program)
    others = np.flatnonzero(first != np.arange(len(program)))
    links = (np.append(first[owner], others), np.append(target, first[others]))
    order = order_by(program, links)
    if order is None:
        return program, [list(rows) for rows in sets]
    edit = Editor(program)
    edit.order(order)
    found, place = edit.build()
    return found, [place[list(rows)].tolist() for rows in sets]


def become_slices(edit: Editor, rows: Sequence[int], whole: int) -> None:
    """Make `rows` kernels that each copy their part out of `whole`."""
    size = edit.program.result_bytes
    work = {"kind": Kind.COMPUTE, "opcode": SLICE, "op": OpClass.SLICE}
    for row in rows:
        edit.change(
            row, deps=[whole], alias=-1, **{**IDLE, **work, "operand_bytes": int(size[row])}
        )


def elements(program: Program, row: int) -> int:
    """Elements of the result of a row."""
    return math.prod(program.shapes[program.shape[row]])
