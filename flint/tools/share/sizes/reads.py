"""What each row reads: its dependencies without those that only order rows."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from flint.ir.arrays import Mask
from flint.ir.columns import is_any, type_bytes
from flint.ir.op_class import ELEMENTWISE, OpClass
from flint.ir.program import Collective, Flag, Int64s, Kind, Program


def reads_of(program: Program) -> list[list[int]]:
    """For each row the rows whose values it reads."""
    owner, read = program.dep_owner.astype(np.int64), program.deps.astype(np.int64)
    kept = ~_waits(program, owner, read)
    start = np.searchsorted(owner[kept], np.arange(len(program) + 1)).tolist()
    values = read[kept].tolist()
    return [values[a:b] for a, b in pairwise(start)]


def _waits(program: Program, owner: Int64s, read: Int64s) -> Mask:
    """Dependencies that order rows and read nothing.

    They are on rows without a value (ends of units of a pipeline), and on what was written into an
    array that the row reads as well (a message that is received into it). What a partitioned
    operation needs of other devices (borders of a value, or all of it) comes beside the value, which
    is read as well.
    """
    borders = program.collective == Collective.PERMUTE
    borders &= program.result_bytes < type_bytes(program)
    empty = (program.op == OpClass.TURN) | (program.result_bytes == 0) | borders
    empty |= (program.kind == Kind.RECV) & ((program.flags & Flag.IN_PLACE) != 0)
    alias = program.alias[read].astype(np.int64)
    into = (program.flags[read] & Flag.IN_PLACE) != 0
    again = _reads_both(program, owner, read, alias) & into & (alias >= 0)
    both = is_any(program, ELEMENTWISE | {OpClass.CONCATENATE}) | (program.kind > Kind.COMPUTE)
    return np.asarray(empty[read] | again | _beside(program, owner, read) & ~both[owner])


def _beside(program: Program, owner: Int64s, read: Int64s) -> Mask:
    """Dependencies on what other devices send of a value that the row reads as well: border or whole.

    Of element by element operations and concatenations both may be operands.
    """
    sent = np.isin(program.collective, (Collective.PERMUTE, Collective.ALL_GATHER))
    sent &= (np.diff(program.dep_start) > 0) & (program.kind == Kind.COLLECTIVE)
    source = np.zeros(len(program), dtype=np.int64)
    source[sent] = program.deps[program.dep_start[:-1][sent]]
    return np.asarray(sent[read] & _reads_both(program, owner, read, source[read]))


def _reads_both(program: Program, owner: Int64s, read: Int64s, other: Int64s) -> Mask:
    """Dependencies whose row depends on `other` as well."""
    rows = max(len(program), 1)
    return np.asarray(np.isin(owner * rows + other, owner * rows + read))
