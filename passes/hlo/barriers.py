"""Optimization barriers: what passes one is there after all that passes it."""

from __future__ import annotations

from typing import Any

from flint.ir.builder import ProgramBuilder
from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Kind
from flint.passes.hlo import shapes
from flint.passes.hlo.check import VIEWS
from flint.passes.hlo.module import (
    Computation,
    HloModule,
    Instruction,
    location,
    scope_and_phase,
)
from flint.passes.hlo.trees import Rows, tree

BARRIERS = frozenset({"opt-barrier", "optimization-barrier"})
#: What is there when a computation begins, and parts of it.
_THERE = frozenset({"parameter", "constant", "iota", "dynamic-slice", "slice"})


def waits(i: Instruction, computation: Computation, module: HloModule) -> bool:
    """Whether something that passes a barrier is computed first, in the same computation.

    A barrier at the head of a loop's body passes what the loop carries and slices of its stacks: nobody waits.
    """
    pending = module.operands(computation, i)
    while pending:
        i = pending.pop()
        if i.opcode in VIEWS or i.opcode in ("tuple", "get-tuple-element"):
            pending += module.operands(computation, i)
        elif i.opcode not in _THERE:
            return True
    return False


def taken_apart(computation: Computation) -> frozenset[int]:
    """Instructions of which parts are read."""
    parts = (i for i in computation.instructions if i.opcode == "get-tuple-element")
    return frozenset(i.operand_ids[0] for i in parts)


def passed(i: Instruction, operands: list[int], module: HloModule, builder: ProgramBuilder) -> Rows:
    """A view of each of `operands`, which waits for all of them.

    A view with two dependencies has no role in a kernel: none holds both sides of a barrier.
    """
    source, phase = scope_and_phase(i)
    facts: dict[str, Any] = {
        "op": OpClass.BARRIER, "scope": source, "location": location(i, module), "phase": phase
    }  # fmt: skip
    wait = builder.add(f"hlo.{i.opcode}", Kind.VALUE, deps=operands, **facts)
    rows = iter(operands)

    def view(part: Any) -> int:
        if part.element_type == shapes.TOKEN:
            return -1
        row = next(rows)
        dtype, shape = shapes.first(part)
        return builder.add(
            f"hlo.{i.opcode}", Kind.VALUE, deps=[row, wait], alias=row, dtype=dtype, shape=shape,
            result_bytes=shapes.num_bytes(part), flags=Flag.VIEW, **facts,
        )  # fmt: skip

    return tree(i.shape, view)
