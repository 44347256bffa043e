"""The program of one position of a pipeline: its units in order, then what runs once in a step."""

from __future__ import annotations

from flint.ir.program import Kind, Program
from flint.passes.pipeline.compose.held import hold
from flint.passes.pipeline.compose.plan import Plan
from flint.passes.pipeline.compose.rank_state import first_state
from flint.passes.pipeline.compose.step_end import end_step
from flint.passes.pipeline.compose.unit_rows import add_units


def rank_program(plan: Plan, position: int) -> Program:
    """Compose the program of all ranks at `position` of the pipeline's axis."""
    state = first_state(plan, position)
    hold(state)
    add_units(state)
    if plan.trains:
        end_step(state)
    state.builder.add("func.return", Kind.VALUE, deps=state.returned)
    return state.builder.build()
