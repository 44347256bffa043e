"""Optimization barriers: what passes one is there after all that passes it."""

from __future__ import annotations

from functools import partial

from flint.ir.builder import ProgramBuilder
from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Kind
from flint.passes.hlo import shapes
from flint.passes.hlo.check import VIEWS
from flint.passes.hlo.module import Computation, HloModule, Instruction, location, scope_and_phase
from flint.passes.hlo.trees import Rows, flat, zipped

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


def passed(
    i: Instruction, operand: Rows, read: set[int] | None, module: HloModule, builder: ProgramBuilder
) -> Rows:
    """`operand`, of which each part that is in `read` (None: all) is a view that waits for all of these.

    XLA drops what passes a barrier and is not read. A view with two dependencies has no role in a
    kernel: none holds both sides of a barrier.
    """
    several = i.shape.element_type == shapes.TUPLE
    of, rows = (i.shape.tuple_shapes, operand) if several else ([i.shape], [operand])
    parts = list(zip(of, rows, strict=True))
    kept = range(len(parts)) if read is None else sorted(read)
    source, phase = scope_and_phase(i)
    add = partial(
        builder.add, f"hlo.{i.opcode}", Kind.VALUE, scope=source, location=location(i, module),
        phase=phase,
    )  # fmt: skip
    wait = add(op=OpClass.BARRIER, deps=list(flat(tuple(parts[number][1] for number in kept))))

    view = lambda part, row: row if row < 0 else add(
        deps=[row, wait], alias=row, dtype=shapes.first(part)[0], shape=shapes.first(part)[1],
        result_bytes=shapes.num_bytes(part), flags=Flag.VIEW,
    )  # fmt: skip
    made = [zipped(*part, view) if n in kept else part[1] for n, part in enumerate(parts)]
    return tuple(made) if several else made[0]
