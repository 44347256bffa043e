"""The program of one position of a pipeline: its units in order, then what runs once in a step."""

from __future__ import annotations

from flint.passes.pipeline.held import hold
from flint.passes.pipeline.plan import Plan
from flint.passes.pipeline.rank_state import first_state
from flint.passes.pipeline.step_end import end_step
from flint.passes.pipeline.unit_rows import add_units
from flint.program import Kind, Program


def rank_program(plan: Plan, position: int) -> Program:
    """Compose the program of all ranks at `position` of the pipeline's axis."""
    state = first_state(plan, position)
    hold(state)
    add_units(state)
    if plan.trains:
        end_step(state)
    state.builder.add("func.return", Kind.VALUE, deps=state.returned)
    return state.builder.build()
