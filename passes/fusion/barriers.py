"""Values that pass an optimization barrier, as if there were none."""

from __future__ import annotations

import numpy as np

from flint.ir.columns import Mask, edges, is_any, rewired
from flint.ir.op_class import OpClass
from flint.ir.program import Program


def opened(program: Program, values: Mask | None = None) -> Program:
    """The program in which `values` (all without it) pass their barriers at once.

    A view of such a value waits for nothing else, and the barrier does not wait for it. Rows stay
    where they are.
    """
    barriers = is_any(program, OpClass.BARRIER)
    if not barriers.any():
        return program
    owner, target = edges(program)
    alias = program.alias
    views = barriers & (alias >= 0)
    if values is not None:
        views &= values | values[alias]
    shown = np.zeros(len(program), dtype=np.bool_)
    shown[alias[views]] = True
    gone = views[owner] & (target != alias[owner])
    gone |= (barriers & (alias < 0))[owner] & shown[target]
    return rewired(program, (owner[~gone], target[~gone]))
