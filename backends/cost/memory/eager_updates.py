"""Operators of PyTorch that change what they are given, and what they only come after.

A row depends on what it reads, and on rows that read what it changes: those only have to be over.
Which are which follows from the bytes that it reads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flint.backends.cost.memory.values import Values
from flint.ir.program import Collective, Flag, Int64s, Kind, Program

#: Operators that PyTorch runs one by one: their results are always new, unless they say otherwise.
EAGER = "aten."
#: Operators of FSDP, beside its all-gathers.
_FSDP = "fsdp."


@dataclass(frozen=True, eq=False)
class EagerUpdates:
    """Row i changes `changes[i]` in place, if it is there.

    `reads` says of each entry of `Program.deps` whether it is more than an order.
    """

    changes: dict[int, int]
    reads: NDArray[np.bool_]


def eager_updates(program: Program, values: Values, num_bytes: Int64s) -> EagerUpdates:
    """Find them, in row order; `num_bytes` are those of each row's value.

    What reads a value that a row changes comes before it: it is an order if all that the row reads
    is there without it. What gathers all of a value anew, after others read it, makes a new value:
    FSDP frees the memory in between (`resize_(0)`). Other memory that is written anew is kept.
    """
    found = EagerUpdates({}, np.ones(len(program.deps), dtype=np.bool_))
    if not any(o.startswith(EAGER) for o in program.opcodes):
        return found
    kernels = np.array([o.startswith("fusion") for o in program.opcodes], dtype=np.bool_)
    placed = ((program.flags & Flag.IN_PLACE) != 0) & (program.alias >= 0)
    given = (program.kind == Kind.PARAMETER) & ((program.flags & Flag.DONATED) != 0)
    gathers = np.array([o.startswith(_FSDP) for o in program.opcodes], dtype=np.bool_)
    gathered = gathers[program.opcode] | (program.collective == Collective.ALL_GATHER)
    arguments = set(np.flatnonzero(program.kind == Kind.PARAMETER).tolist())
    finder = _Finder(program, values, set(np.flatnonzero(given).tolist()))
    whole = num_bytes.tolist()
    for row in np.flatnonzero(placed & ~kernels[program.opcode]).tolist():
        before = values.read(int(program.alias[row]), int(program.region[row]))
        orders = finder.orders(row, before)
        renews = gathered[row] and program.result_bytes[row] >= _size(whole, before)
        if (
            renews
            and before not in arguments
            and orders
            and finder.is_enough(row, orders | {before})
        ):
            orders.add(before)
        else:
            found.changes[row] = before
            whole[row] = max(_size(whole, before), whole[row])
        start = int(program.dep_start[row])
        for place, value in enumerate(finder.read(row)):
            found.reads[start + place] = value not in orders
    return found


def _size(whole: list[int], value: int) -> int:
    return whole[value] if value < len(whole) else 0


@dataclass(frozen=True, eq=False)
class _Finder:
    program: Program
    values: Values
    donated: set[int]

    def read(self, row: int) -> list[int]:
        """The values of a row's dependencies."""
        region = int(self.program.region[row])
        return [self.values.read(d, region) for d in self.program.dependencies(row).tolist()]

    def orders(self, row: int, before: int) -> set[int]:
        """Values of which `row` only waits for, as they were made of what it changes."""
        depends = set(self.read(row))
        changed = (depends & self.donated) | {before}
        made = {v for v in depends - changed if v < len(self.program)}
        made = {v for v in made if not changed.isdisjoint(self.read(v))}
        return made if self.is_enough(row, made) else set()

    def is_enough(self, row: int, without: set[int]) -> bool:
        """Whether a row's other dependencies have all the bytes that it reads."""
        reads = self.program.dependencies(row).tolist()
        pairs = zip(reads, self.read(row), strict=True)
        there = sum(int(self.program.result_bytes[d]) for d, v in pairs if v not in without)
        return there >= int(self.program.operand_bytes[row])
