"""What XLA for GPUs calculates in the kernel of a product, from the operands on."""

from __future__ import annotations

import numpy as np

from flint.ir.columns import Mask, is_any, type_bytes
from flint.ir.op_class import ELEMENTWISE, OpClass
from flint.ir.program import Kind, Program
from flint.passes.fusion.roles import Roles, RowRole

#: Bytes that a product may read more than it would of the value.
_TOLERANCE_BYTES = 1024


def prologues(program: Program, roles: Roles) -> Mask:
    """Element-wise rows that each product of matrices calculates as it reads them.

    XLA's `GemmFusion`: those that read no more than they make (of one operand, whose type is not
    wider), and those of two of which one is a vector or scalar that the program is given. What
    else reads the row does not matter: the product calculates it itself.
    """
    may = is_any(program, ELEMENTWISE) & (roles.role == RowRole.ELEMENT) & (roles.results > 1)
    size = type_bytes(program)
    given = _given(program, roles)
    found = np.array(given, dtype=np.bool_) & is_any(program, OpClass.BROADCAST)
    for row in np.flatnonzero(may).tolist():
        read = program.dependencies(row).tolist()
        wide = [d for d in read if roles.results[d] == roles.results[row] and not given[d]]
        vectors = sum(given[d] for d in read)
        small = sum(int(size[d]) for d in read if d not in wide and not given[d] and size[d] > 8)
        if len(wide) == 1 and small <= _TOLERANCE_BYTES and vectors <= 1:
            found[row] = size[wide[0]] - size[row] <= _TOLERANCE_BYTES
    return found


def _given(program: Program, roles: Roles) -> list[bool]:
    """Arguments of the program and constants, spread over a larger array."""
    given = ((program.kind == Kind.PARAMETER) | is_any(program, OpClass.CONSTANT)).tolist()
    spreads = is_any(program, OpClass.BROADCAST) | (roles.role == RowRole.VIEW)
    found = [False] * len(program)
    for row in np.flatnonzero(spreads).tolist():
        read = program.dependencies(row).tolist()
        source = all(given[d] or found[d] for d in read)
        if source and any(roles.results[d] < roles.results[row] or found[d] for d in read):
            found[row] = True
        given[row] = source and roles.role[row] == RowRole.VIEW
    return found
