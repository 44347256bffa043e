"""What a kernel of several rows is, by what it holds: the same for Flint's kernels and a compiler's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flint.ir.columns import Mask, consumers, is_any, with_value
from flint.ir.dims import ReductionDims
from flint.ir.op_class import OpClass
from flint.ir.program import Int64s, Kind, Phase, Program
from flint.passes.fusion.merging import MERGED_NAMES
from flint.passes.fusion.roles import ELEMENT, ROWS, VIEW, Roles, RowRole

#: What a softmax has and a norm has not; its gradient is told by its structure.
EXPONENTIAL = frozenset({OpClass.EXPONENTIAL, OpClass.SOFTMAX})
#: Writes and reads here and there.
_BY_INDEX = (OpClass.SCATTER, OpClass.GATHER)
#: Rows that reduce.
_REDUCING = frozenset(map(int, (RowRole.ROWS, RowRole.REDUCE)))


def kernel_class(
    program: Program, roles: Roles, softmax: Mask, rows: Sequence[int]
) -> tuple[OpClass, int]:
    """The class of a kernel of `rows`, none of them a product, and the row whose dims it has, or -1.

    It copies if only single elements (indices) are calculated. It is a softmax or a norm if rows of full size follow what is reduced along rows: a softmax if
    one of its rows has `softmax` (`softmax_rows`).
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


def kernel_names(
    program: Program, roles: Roles, busy: Mask, softmax: Mask, kernel: Int64s
) -> dict[str, Any]:
    """Opcodes, classes and dims of kernels, at the rows that stand for them; `busy` rows compute others."""
    opcode, op, dims = program.opcode.copy(), program.op.copy(), program.dims.copy()
    opcodes = program.opcodes
    working = (roles.role > RowRole.VIEW) & (program.kind == Kind.COMPUTE)
    role = roles.role.tolist()
    several = np.bincount(kernel[working], minlength=len(program)) > 1
    several[kernel[working & busy]] = True
    members: dict[int, list[int]] = {}
    for row in np.flatnonzero(several[kernel] & working).tolist():
        members.setdefault(int(kernel[row]), []).append(row)
    for stands, rows in members.items():
        if any(role[r] == RowRole.MATMUL for r in rows):
            continue
        looked = next((r for op in _BY_INDEX for r in rows if program.op[r] == op), None)
        if looked is not None:  # whatever else it does, it writes or reads here and there
            for column in (opcode, op, dims):
                column[stands] = column[looked]
            continue
        kind, source = kernel_class(program, roles, softmax, rows)
        op[stands] = kind
        opcodes, opcode[stands] = with_value(opcodes, MERGED_NAMES[kind])
        dims[stands] = program.dims[source] if source >= 0 else 0
    group = np.where((program.op == OpClass.ALL_SLICE) & (op != program.op), -1, program.group)
    return {"opcode": opcode, "opcodes": opcodes, "op": op, "dims": dims, "group": group}


# The backward pass of a softmax, by what it computes: it has no exponential of its own.


def softmax_rows(program: Program, roles: Roles) -> Mask:
    """Exponentials, and rows that end the derivative of a softmax of which the result was kept.

    For a result y and its gradient g these are y * (g - sum(y * g)) and y * g - y * sum(y * g),
    whatever scales the sum: what is summed is multiplied by the same factor again. In derivatives
    of norms that factor is no longer applied once the sum is added to the rest.
    """
    found = is_any(program, EXPONENTIAL)
    reductions = np.flatnonzero(roles.role == ROWS).tolist()
    if reductions:
        graph = _Graph(program, roles)
        for row in reductions:
            found[graph.ends(row)] = True
    return found


class _Graph:
    """A program as lists, to walk from a reduction in both directions."""

    def __init__(self, program: Program, roles: Roles) -> None:
        self._results: list[int] = roles.results.tolist()
        self._size: list[int] = roles.elements.tolist()
        element = roles.role == ELEMENT
        self._idle = ((roles.role == VIEW) | (element & (program.flops == 0))).tolist()
        self._element = element.tolist()
        self._times = (is_any(program, OpClass.MULTIPLY) & element).tolist()
        sums = is_any(program, frozenset({OpClass.ADD, OpClass.SUBTRACT}))
        self._plus = (sums & element).tolist()
        self._start: list[int] = program.dep_start.tolist()
        self._deps: list[int] = program.deps.tolist()
        first, rows = consumers(program)
        self._first: list[int] = first.tolist()
        self._rows: list[int] = rows.tolist()

    def ends(self, reduction: int) -> list[int]:
        """Rows that apply a factor of what `reduction` sums to what its sum was added to."""
        size = self._size[reduction]
        products = {r for r in self._sources(reduction, size) if self._times[r]}
        factors = {f for p in products for f in self._sources(p, size)}
        return [
            end for row in self._spread(reduction) for end in self._ends(row, products, factors)
        ]

    def _ends(self, row: int, products: set[int], factors: set[int]) -> list[int]:
        size = self._results[row]
        if self._plus[row]:
            return [
                r
                for r in self._through(row)
                if self._times[r] and not factors.isdisjoint(self._sources(r, size))
            ]
        if self._times[row] and not factors.isdisjoint(self._sources(row, size)):
            return [
                r
                for r in self._through(row)
                if self._plus[r] and not products.isdisjoint(self._sources(r, size))
            ]
        return []

    def _sources(self, row: int, size: int) -> list[int]:
        """What a row reads that has `size` elements, before changes of layout and type."""
        found: list[int] = []
        for read in self._deps[self._start[row] : self._start[row + 1]]:
            while self._idle[read] and self._results[read] == size:
                above = self._deps[self._start[read] : self._start[read + 1]]
                if len(above) != 1 or self._results[above[0]] != size:
                    break
                read = above[0]
            if self._results[read] == size:
                found.append(read)
        return found

    def _spread(self, reduction: int) -> list[int]:
        """The first rows that calculate with the sum over whole rows again."""
        size, found = self._size[reduction], list[int]()
        pending, seen = [reduction], {reduction}
        while pending:
            for reader in self._readers(pending.pop()):
                if reader in seen:
                    continue
                seen.add(reader)
                narrow = self._results[reader] < size and self._element[reader]
                if narrow or self._idle[reader]:
                    pending.append(reader)
                elif self._results[reader] == size:
                    found.append(reader)
        return found

    def _through(self, row: int) -> list[int]:
        """Readers of a row, through changes of layout and type."""
        found: list[int] = []
        pending, seen = [row], {row}
        while pending:
            for reader in self._readers(pending.pop()):
                if reader in seen:
                    continue
                seen.add(reader)
                (pending if self._idle[reader] else found).append(reader)
        return found

    def _readers(self, row: int) -> list[int]:
        return self._rows[self._first[row] : self._first[row + 1]]
