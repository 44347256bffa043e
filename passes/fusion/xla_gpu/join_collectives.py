"""Small collectives joined into larger ones, and the copies that this takes, as XLA for GPUs does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flint.ir.columns import edges
from flint.ir.edit import IDLE, Editor
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Flag, Kind, Program
from flint.passes.base import Pass
from flint.passes.fusion.merging import order_by, segments
from flint.passes.rewrites.combine_collectives import independent

#: Collectives whose parts stay arrays of their own.
_OF_ARRAYS = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
_SUMS = ("flops", "result_bytes", "operand_bytes", "comm_bytes")


@dataclass(frozen=True)
class JoinCollectives(Pass):
    """Collectives of a kind that need nothing of each other become one, up to `most_bytes` of results.

    XLA's combiners take those of one computation, group, type and operator
    (`xla_gpu_all_reduce_combine_threshold_bytes` and its like). All-gathers and reduce-scatters read
    and write several arrays. For all-reduces, `AllReduceContiguous` then copies what is reduced into
    one array, and a kernel for each part copies it out again.
    """

    name: ClassVar[str] = "join-collectives"
    most_bytes: int = 30 * 2**20 + 7

    def apply(self, program: Program) -> Program:
        """Return the program with one collective for each set."""
        for kind in _OF_ARRAYS:
            program = _joined(*self._together(program, kind))
        program, sets = self._together(program, Collective.ALL_REDUCE)
        if not sets:
            return program
        edit = Editor(program)
        for rows in sets:
            become_slices(edit, rows, _packed(edit, rows))
        return edit.build().program

    def _together(self, program: Program, kind: Collective) -> tuple[Program, list[list[int]]]:
        segment = segments(program).tolist()
        found = independent(program, kind, self.most_bytes)
        sets = [rows for rows in found if len({segment[row] for row in rows}) == 1]
        return brought_together(program, sets) if sets else (program, [])


def _joined(program: Program, sets: list[list[int]]) -> Program:
    """The program in which the first row of each set stands for all."""
    if not sets:
        return program
    place = np.arange(len(program), dtype=np.int64)
    for rows in sets:
        place[rows] = min(rows)
    edit = Editor(program)
    edit.merge(place, sums=_SUMS)
    shared = np.flatnonzero(program.alias >= 0)
    edit.set(shared, alias=place[program.alias[shared]])
    first = np.unique(place[place != np.arange(len(program))])
    edit.set(first, alias=-1, flags=program.flags[first] & ~np.uint16(Flag.IN_PLACE | Flag.VIEW))
    return edit.build().program


def _packed(edit: Editor, rows: list[int]) -> int:
    """Add the concatenation and the all-reduce of `rows` before the first; returns the second."""
    program, first = edit.program, min(rows)
    region = int(program.region[first])
    total = int(program.result_bytes[rows].sum())
    whole = {
        "shape": (sum(elements(program, row) for row in rows),),
        "result_bytes": total,
        "operand_bytes": total,
        "name": "",
    }
    copies = {"kind": Kind.COMPUTE, "opcode": "stablehlo.concatenate", "op": OpClass.CONCATENATE}
    read = [d for row in rows for d in edit.reads(row)]
    packed = edit.copy(first, first, region, read, alias=-1, **{**IDLE, **copies, **whole})
    comm = {"comm_bytes": int(program.comm_bytes[rows].sum())}
    return edit.copy(first, first, region, [packed], alias=-1, **{**whole, **comm})


# Several rows that become parts of one: a new row in front of them makes what they are slices of.

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
