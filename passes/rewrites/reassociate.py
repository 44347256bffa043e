"""Sum first, communicate once: add(all-reduce x, all-reduce y) -> all-reduce(add(x, y)).

Reduce-scatters are summed like all-reduces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flint.ir.columns import Mask, is_any
from flint.ir.edit import Editor
from flint.ir.match import ANY, Op, rewrite
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Flag, Kind, Program
from flint.passes.base import Pass


@dataclass(frozen=True)
class ReassociateAllReduce(Pass):
    """Turn a sum of all-reduces into one all-reduce of the sum; chains and trees of sums too.

    Two all-reduces take part if they sum over one group, have one size and type, lie in one
    region, and the addition alone reads them. The later one's row becomes the addition, the
    addition's row becomes the all-reduce, and the earlier one goes. So do two reduce-scatters of
    arrays of one shape: the addition is then of whole arrays. So do two all-reduces of which the
    addition reads the same slice each: it is cut after the sum. XLA does the same
    (AllReduceReassociate, ReduceScatterReassociate); it meets the input gradients of q, k and v, and
    of gate and up.
    """

    name: ClassVar[str] = "reassociate"

    def apply(self, program: Program) -> Program:
        """Return the program with fewer all-reduces and the same additions."""
        return rewrite(program, Op(OpClass.ADD, _computes, reads=(_TERM, _TERM)), _sum_first)


def _computes(program: Program) -> Mask:
    """Additions of a compiler's program, of scalars too: what a framework launched runs as it is."""
    launched = (program.flags & Flag.LAUNCHED) != 0
    return np.asarray((program.kind <= Kind.COMPUTE) & ~launched)


def _summed(program: Program) -> Mask:
    """Sums over a group, of whole values or scattered."""
    reduces = program.collective == Collective.ALL_REDUCE
    scatters = program.collective == Collective.REDUCE_SCATTER
    whole = reduces & (program.comm_bytes == program.result_bytes)
    return np.asarray((whole | scatters) & (program.group >= 0))


_SLICES = frozenset({OpClass.ALL_SLICE, OpClass.DYNAMIC_SLICE})


def _terms(program: Program) -> Mask:
    sums = is_any(program, OpClass.ADD) & _summed(program)
    return np.asarray(sums | is_any(program, _SLICES))


_TERM = Op(ANY, _terms, read_once=True)


def _sum_first(edit: Editor, add: int, first: int, second: int) -> bool:
    p, rows = edit.program, [edit.like(r) for r in (first, second, add)]
    if rows[2] != add:  # an addition that was moved: XLA does not come back to it
        return False
    if not all(p.collective[row] for row in rows[:2]):
        return not any(p.collective[row] for row in rows[:2]) and _sum_whole(
            edit, add, first, second
        )
    sums = {(p.groups[p.group[r]], p.collective[r]) for r in rows[:2]}
    types = {(p.dtype[r], p.shape[r], p.result_bytes[r]) for r in rows}
    if len(sums) > 1 or len(types) > 1:
        return False
    whole = _whole_operand(edit, first, second) if _scatters(p, rows[0]) else None
    if _scatters(p, rows[0]) and whole is None:
        return False
    edit.swap(add, second)
    edit.change(second, deps=[*edit.reads(first), *edit.reads(second)])
    edit.change(add, deps=[second])
    edit.remove([first])
    if whole is not None:
        size, parts = int(p.result_bytes[whole]), int(p.result_bytes[rows[0]])
        flops = int(p.flops[rows[2]]) * size // max(parts, 1)
        edit.change(
            second, shape=p.shape[whole], result_bytes=size, operand_bytes=2 * size, flops=flops
        )
    return True


def _sum_whole(edit: Editor, add: int, first: int, second: int) -> bool:
    """The later all-reduce becomes the addition, its slice the all-reduce, the addition the slice."""
    p, parts = edit.program, [edit.like(first), edit.like(second)]
    sums = [_sum_of(edit, row) for row in (first, second)]
    if None in sums or len({(p.op[r], p.group[r], p.shape[r], p.dtype[r]) for r in parts}) > 1:
        return False
    one, two = (row for row in sums if row is not None)
    rows = [edit.like(one), edit.like(two)]
    places = [set(edit.reads(part)) - {row} for part, row in ((first, one), (second, two))]
    if places[0] != places[1] or len({(p.group[r], p.shape[r], p.dtype[r]) for r in rows}) > 1:
        return False
    size, part_bytes = int(p.result_bytes[rows[1]]), int(p.result_bytes[add])
    flops = int(p.flops[add]) * size // max(part_bytes, 1)
    edit.swap(add, two)  # the sum, its part, the addition of both
    edit.swap(add, second)
    edit.change(two, deps=[*edit.reads(one), *edit.reads(two)], shape=p.shape[rows[1]])
    edit.change(two, result_bytes=size, operand_bytes=2 * size, flops=flops)
    edit.change(second, deps=[two])
    edit.change(add, deps=[second, *sorted(places[1])])
    edit.remove([first, one])
    return True


def _sum_of(edit: Editor, part: int) -> int | None:
    """The all-reduce that only this slice of it reads; None if there is none."""
    p = edit.program
    reduces = [r for r in edit.reads(part) if p.collective[edit.like(r)] == Collective.ALL_REDUCE]
    if (
        len(reduces) != 1
        or edit.uses(reduces[0]) != 1
        or p.op[edit.like(reduces[0])] != OpClass.ADD
    ):
        return None
    return reduces[0] if p.region[reduces[0]] == p.region[part] else None


def _scatters(program: Program, row: int) -> bool:
    return bool(program.collective[row] == Collective.REDUCE_SCATTER)


def _whole_operand(edit: Editor, first: int, second: int) -> int | None:
    """A row of the type that both scatter, or None where these are not of one type."""
    p = edit.program
    rows = [_typed_like(edit, r) for s in (first, second) for r in edit.reads(s)]
    types = {(p.dtype[r], p.shape[r], p.result_bytes[r]) for r in rows}
    sent = {int(p.comm_bytes[edit.like(r)]) for r in (first, second)}
    fits = len(rows) == 2 and len(types) == 1 and sent == {int(p.result_bytes[rows[0]])}
    return rows[0] if fits else None


def _typed_like(edit: Editor, row: int) -> int:
    """The row itself, or for an addition that was made here what it adds: its type is the same."""
    while edit.is_new(row):
        row = edit.reads(row)[0]
    return row


# An all-reduce of an all-reduce is one over both groups.
