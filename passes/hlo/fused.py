"""What a fusion of HLO is, by what it holds, in the words of Flint's own kernels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flint.ir.builder import ProgramBuilder
from flint.ir.mesh import Mesh
from flint.ir.op_class import OpClass
from flint.ir.program import Kind
from flint.passes.fusion.naming import kernel_class, softmax_rows
from flint.passes.fusion.roles import RowRole, roles_of
from flint.passes.hlo import shapes
from flint.passes.hlo.instruction_work import HloOperation
from flint.passes.hlo.module import Computation, HloModule, Instruction
from flint.passes.hlo.op_classes import class_of
from flint.passes.work.work import Work

#: Instructions inside a fusion that are no work.
_IDLE = frozenset({"parameter", "constant", "bitcast", "tuple", "get-tuple-element"})
#: A fusion is read as one device's program: its mesh does not matter.
_ALONE = Mesh(("device",), (1,))
#: What a fusion is first of all, if it holds it; after products, which are told by their dims.
_FIRST = ("convolution", "scatter", "sort", "topk", "fft", "gather")
#: What reads or writes here and there, whatever else is done to it.
_BY_INDEX = ("scatter", "gather")
#: What keeps the class of its fusion open: its work tells the kind.
_OPEN = frozenset({"dot", "dynamic-update-slice", "fusion", "call"})


def class_of_fusion(
    o: HloOperation, work_of: Callable[[Instruction, Computation, HloModule], Work]
) -> OpClass:
    """What a fusion is: as Flint's own kernels are called (`kernel_class`), or COMPILED."""
    opcodes = {i.opcode for i in o.called.instructions}
    if not opcodes.isdisjoint(_OPEN):
        return _class_inside(o.called, o.module)
    first = next((name for name in _FIRST if name in opcodes), "")
    if first:
        return class_of(first)
    builder = ProgramBuilder(_ALONE)
    rows: dict[int, int] = {}
    for i in o.called.instructions:
        work = work_of(i, o.called, o.module)
        dtype, shape = shapes.first(i.shape)
        rows[i.id] = builder.add(
            i.opcode,
            Kind.VALUE if i.opcode in _IDLE else Kind.COMPUTE,
            op=class_of(i.opcode),
            deps=[rows[d] for d in i.operand_ids],
            dtype=dtype,
            shape=shape,
            result_bytes=shapes.num_bytes(i.shape),
            flops=work.flops,
            dims=work.dims,
        )
    program = builder.build()
    roles = roles_of(program, operators=False)
    working = np.flatnonzero((roles.role > RowRole.VIEW) & (program.kind == Kind.COMPUTE)).tolist()
    if not working:
        return OpClass.FUSED_LAYOUT
    if len(working) == 1:
        return OpClass(program.op[working[0]])
    return kernel_class(program, roles, softmax_rows(program, roles), working)[0]


def _class_inside(called: Computation, module: HloModule) -> OpClass:
    """A fusion of fusions that writes or looks up by index is that, unless it also multiplies."""
    opcodes, pending = set[str](), [called]
    while pending:
        for i in pending.pop().instructions:
            opcodes.add(i.opcode)
            pending += module.called(i) if i.opcode in ("fusion", "call") else []
    if not opcodes.isdisjoint(("dot", "convolution", "dynamic-update-slice")):
        return OpClass.COMPILED
    return next((class_of(name) for name in _BY_INDEX if name in opcodes), OpClass.COMPILED)
