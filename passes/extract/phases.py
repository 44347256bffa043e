"""Phases of rows that carry no tag of their own."""

from __future__ import annotations

import numpy as np

from flint.program import Phase, Program


def with_phases(program: Program) -> Program:
    """Fill in UNKNOWN phases: what depends on the backward pass is OPTIMIZER, the rest FORWARD.

    JAX tags what it differentiates (`jvp`, `transpose`); the optimizer is what comes after and
    carries no tag. Values that a loop carries count as depending on what the loop produces.
    """
    phase = program.phase.copy()
    backward = (phase == Phase.BACKWARD) | (phase == Phase.REMAT)
    after = backward.copy()
    for _ in range(2):
        _spread(program, after)
        for region in program.regions:
            for carried, produced in region.carries:
                after[carried] |= after[produced]
    unknown = phase == Phase.UNKNOWN
    phase[unknown & after] = Phase.OPTIMIZER
    phase[unknown & ~after] = Phase.FORWARD
    return program.with_rows(phase=phase)


def _spread(program: Program, after: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> None:
    """Mark every row that depends on a marked row, in one sweep in row order."""
    start, deps = program.dep_start.tolist(), program.deps.tolist()
    marked = after.tolist()
    for row in range(len(program)):
        if not marked[row] and any(marked[d] for d in deps[start[row] : start[row + 1]]):
            marked[row] = True
    after[:] = marked
