"""What a kernel of several rows is, by what it holds: the same for Flint's kernels and a compiler's."""

from __future__ import annotations

from collections.abc import Sequence

from flint.ir.columns import Mask
from flint.ir.dims import ReductionDims
from flint.ir.op_class import OpClass
from flint.ir.program import Phase, Program
from flint.passes.fusion.roles import Roles, RowRole

#: Rows that reduce.
_REDUCING = frozenset(map(int, (RowRole.ROWS, RowRole.REDUCE)))


def kernel_class(
    program: Program, roles: Roles, softmax: Mask, rows: Sequence[int]
) -> tuple[OpClass, int]:
    """The class of a kernel of `rows`, none of them a product, and the row whose dims it has, or -1.

    It copies if only single elements (indices) are calculated. It is a softmax or a norm if rows of full size follow what is reduced along rows: a softmax if
    one of its rows has `softmax` (`again.softmax_rows`).
    """
    role = [int(roles.role[r]) for r in rows]
    reduces = [r for r, what in zip(rows, role, strict=True) if what in _REDUCING]
    if not reduces:
        if program.phase[rows[-1]] == Phase.OPTIMIZER:
            return OpClass.FUSED_OPTIMIZER, -1
        works = any(program.flops[r] > 0 and roles.results[r] > 1 for r in rows)
        return (OpClass.FUSED if works else OpClass.FUSED_LAYOUT), -1
    along = [r for r in reduces if roles.role[r] == RowRole.ROWS]
    if not along or ReductionDims.of(program.dims[along[0]]).rows < 2:
        return OpClass.FUSED_REDUCTION, reduces[-1]
    size = roles.elements[along[0]]
    if not any(r > along[0] and roles.results[r] == size for r in rows):
        return OpClass.FUSED_REDUCTION, reduces[-1]
    is_softmax = any(softmax[r] for r in rows)
    return (OpClass.FUSED_SOFTMAX if is_softmax else OpClass.FUSED_NORM), along[0]
