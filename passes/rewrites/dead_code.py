"""Remove rows that nothing needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flint.ir.columns import Mask, is_any
from flint.ir.edit import kept
from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Kind, Program
from flint.passes.base import Pass
from flint.passes.work.host_copies import CALLBACK


@dataclass(frozen=True)
class DropDeadCode(Pass):
    """Remove rows that no result of the step needs, dead collectives included.

    Parameters, results (`OpClass.RESULT`), messages and operations with side effects
    (calls of the host among them) stay, and all that they read, and what is written in place into storage that stays (the sums of
    gradients over microbatches). A program in which no row says that it is a result is left as it
    is: nothing tells there which values are returned.
    """

    name: ClassVar[str] = "drop-dead-code"

    def apply(self, program: Program) -> Program:
        """Return the program without dead rows."""
        results = is_any(program, OpClass.RESULT)
        if not results.any():
            return program
        messages = (program.kind == Kind.SEND) | (program.kind == Kind.RECV)
        roots = results | messages | is_any(program, OpClass.EFFECT) | _calls_of_the_host(program)
        alive = _reached(program, roots)
        alive |= program.kind == Kind.PARAMETER
        return program if alive.all() else kept(program, alive)


def _calls_of_the_host(program: Program) -> Mask:
    called = [number for number, name in enumerate(program.opcodes) if name == CALLBACK]
    return np.isin(program.opcode, called)


def _reached(program: Program, roots: Mask) -> Mask:
    """Rows from which `roots` are computed, around loops and through storage too."""
    start, deps = program.dep_start.tolist(), program.deps.tolist()
    writers = _writers(program)
    produced = dict(pair for region in program.regions for pair in region.carries)
    alive = bytearray(len(program))
    pending = np.flatnonzero(roots).tolist()
    for row in pending:
        alive[row] = 1
    while pending:
        row = pending.pop()
        needs = deps[start[row] : start[row + 1]] + writers.get(row, [])
        if row in produced:
            needs.append(produced[row])
        for needed in needs:
            if not alive[needed]:
                alive[needed] = 1
                pending.append(needed)
    return np.frombuffer(alive, dtype=np.bool_).copy()


def _writers(program: Program) -> dict[int, list[int]]:
    """For each row that others write over, those rows."""
    found: dict[int, list[int]] = {}
    placed = ((program.flags & Flag.IN_PLACE) != 0) & (program.alias >= 0)
    for row in np.flatnonzero(placed).tolist():
        found.setdefault(int(program.alias[row]), []).append(row)
    return found
