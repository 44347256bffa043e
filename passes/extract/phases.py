"""Phases of rows that carry no tag of their own."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flint.passes.columns import consumers
from flint.passes.opcodes import RESULT, opcode_mask
from flint.program import Phase, Program


def with_phases(program: Program) -> Program:
    """Fill in UNKNOWN phases, in the order of these rules.

    What depends on the backward pass is OPTIMIZER: JAX tags what it differentiates (`jvp`,
    `transpose`), and the optimizer is what comes after and carries no tag. What only rows of one
    phase read (`b1 * m`, constants) is of that phase. The rest is FORWARD. Values that a loop
    carries count as depending on what the loop produces.
    """
    phase = program.phase.copy()
    backward = (phase == Phase.BACKWARD) | (phase == Phase.REMAT)
    after = backward.copy()
    for _ in range(2):
        _spread(program, after)
        for region in program.regions:
            for carried, produced in region.carries:
                after[carried] |= after[produced]
    phase[(phase == Phase.UNKNOWN) & after] = Phase.OPTIMIZER
    return program.with_rows(phase=_as_their_readers(program, phase))


def _as_their_readers(program: Program, phase: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Give UNKNOWN rows the phase of all their readers, last row first; FORWARD where they differ.

    What the step returns is read by nobody in particular and does not count.
    """
    start, readers = consumers(program)
    result = opcode_mask(program, RESULT).tolist()
    first, reader, found = start.tolist(), readers.tolist(), phase.tolist()
    for row in range(len(program) - 1, -1, -1):
        if found[row] == Phase.UNKNOWN:
            of = {found[r] for r in reader[first[row] : first[row + 1]] if not result[r]}
            found[row] = of.pop() if len(of) == 1 else int(Phase.FORWARD)
    return np.array(found, dtype=np.uint8)


def _spread(program: Program, after: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> None:
    """Mark every row that depends on a marked row, in one sweep in row order."""
    start, deps = program.dep_start.tolist(), program.deps.tolist()
    marked = after.tolist()
    for row in range(len(program)):
        if not marked[row] and any(marked[d] for d in deps[start[row] : start[row + 1]]):
            marked[row] = True
    after[:] = marked
