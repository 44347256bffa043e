"""All rules on a workload."""

from __future__ import annotations

import numpy as np

from flint.ir.program import Program
from flint.ir.workload import Workload
from flint.tools.share.rules import communication, elementwise, layout, loops, products, values
from flint.tools.share.rules.view import BrokenRule, ProgramView, Rule

#: Every rule of single programs, in the order in which they are told.
ALL_RULES: tuple[Rule, ...] = (
    *values.RULES,
    *elementwise.RULES,
    *layout.RULES,
    *products.RULES,
    *communication.RULES,
    *loops.RULES,
)
#: Rows of one program that are told for one rule, at most.
MOST_TOLD = 20


def broken_rules(workload: Workload) -> tuple[BrokenRule, ...]:
    """What in a workload breaks the rules that captured programs keep; empty if nothing does.

    The workload has to `verify`. Of each rule at most `MOST_TOLD` rows of a program are told.
    """
    found = [
        broken for i, program in enumerate(workload.programs) for broken in _of_program(program, i)
    ]
    return (*found, *communication.broken_messages(workload.programs))


def is_valid(workload: Workload) -> bool:
    """Whether a workload verifies and keeps all rules."""
    try:
        workload.verify()
    except AssertionError:
        return False
    return not broken_rules(workload)


def _of_program(program: Program, number: int) -> list[BrokenRule]:
    if not len(program):
        return []
    view = ProgramView(program)
    return [
        BrokenRule(rule.name, number, row, _message(rule, program, row))
        for rule in ALL_RULES
        for row in np.flatnonzero(rule.tell(view).broken)[:MOST_TOLD].tolist()
    ]


def _message(rule: Rule, program: Program, row: int) -> str:
    found = program.row(row)
    shape = ",".join(map(str, found.shape))
    return f"row {row} ({found.opcode} {found.dtype}[{shape}]): {rule.says}"
