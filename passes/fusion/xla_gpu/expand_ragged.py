"""Ragged products as products of everything: what is not of a group is masked, not omitted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from flint.ir.columns import type_bytes
from flint.ir.dims import ProductDims
from flint.ir.edit import Editor
from flint.ir.op_class import OpClass
from flint.ir.product_types import without_groups
from flint.ir.program import Kind, Phase, Program
from flint.passes.base import Pass

_NAMES = (".ragged_dot", ".ragged-dot")  #: of StableHLO, of HLO


@dataclass(frozen=True)
class ExpandRagged(Pass):
    """A product of ragged groups is one over all groups, with as many times the flops.

    XLA's `RaggedDotRewriter` for GPUs. Rows (m, k) become (m, groups, k), zero where a row is not of
    the group, and are multiplied by the matrices of all groups, one below the other. Where the
    contracted dimension is ragged, both operands become (groups, ...), and there is a product for
    each. Matrices whose other dimension is multiplied are turned first. Where groups begin is one
    kernel. XLA for TPUs does the second only: `rows` says whether the first is done too, for which
    it has a kernel that omits what is not of a group.
    """

    rows: bool = True
    name: ClassVar[str] = "expand-ragged"

    def apply(self, program: Program) -> Program:
        """Return the program with rows for the masks of each ragged product."""
        ragged = [name.endswith(_NAMES) for name in program.opcodes]
        if not any(ragged):
            return program
        chosen = np.array(ragged, dtype=np.bool_)[program.opcode]
        work = _Expanding(program)
        for row in np.flatnonzero(chosen & (program.kind == Kind.COMPUTE)).tolist():
            work.expand(row, rows=self.rows)
        return work.edit.build().program


class _Expanding:
    def __init__(self, program: Program) -> None:
        self._program = program
        self.edit = Editor(program)
        self._sizes = type_bytes(program)
        self._begins: dict[tuple[int, int], int] = {}
        self._masked: dict[tuple[int, int], int] = {}
        self._read: dict[int, int] = {}  # bytes of what was added

    def expand(self, row: int, *, rows: bool) -> None:
        """Let one product read masked operands; not of ragged rows unless `rows`."""
        lhs, rhs, sizes = self._operands(row)
        groups = self._elements(sizes)
        if groups < 2 or rhs < 0:
            return
        dims = ProductDims(*map(int, self._program.dims[row]))
        if len(self._shape(row)) == len(self._shape(lhs)) + 1:  # (groups, m, n): k is ragged
            read = [self._mask(row, operand, sizes, groups) for operand in (lhs, rhs)]
            made = dims._replace(batch=dims.batch * groups)
        elif not rows:
            return
        else:
            read = [self._mask(row, lhs, sizes, groups), self._stacked(row, rhs, dims)]
            made = dims._replace(k=dims.k * groups)
        self.edit.change(
            row,
            deps=read,
            dims=made.row,
            product=without_groups(self._program.products[self._program.product[row]]),
            flops=int(self._program.flops[row]) * groups,
            operand_bytes=sum(self._read.get(r, int(self._sizes[rhs])) for r in read),
        )

    def _operands(self, row: int) -> tuple[int, int, int]:
        """Rows, matrices (or other rows) and sizes of groups, told by their shapes; -1: not told."""
        reads = self.edit.reads(row)
        sizes = min(reads, key=self._elements)
        *arrays, _ = [r for r in reads if r != sizes] + [-1]
        dims = ProductDims(*map(int, self._program.dims[row]))
        rows = [r for r in arrays if self._elements(r) == dims.batch * dims.m * dims.k]
        flat = [r for r in rows if len(self._shape(r)) == min(len(self._shape(a)) for a in arrays)]
        lhs = flat[0] if flat else arrays[0]
        others = [r for r in arrays if r != lhs]
        return lhs, others[0] if others else -1, sizes

    def _shape(self, row: int) -> tuple[int, ...]:
        return self._program.shapes[self._program.shape[row]]

    def _elements(self, row: int) -> int:
        return math.prod(self._shape(row))

    def _before(self, row: int, like: int, reads: list[int], **columns: Any) -> int:
        place = {
            c: getattr(self._program, c)[row] for c in ("stream", "phase", "scope", "location")
        }
        region = int(self._program.region[row])
        work = {"kind": Kind.COMPUTE, "name": "", **place, **columns}
        made = self.edit.value(like, row, region, reads, **work)
        self._read[made] = columns["result_bytes"]
        return made

    def _begin(self, row: int, sizes: int) -> int:
        """Where each group begins: once for all products of a region."""
        key = sizes, int(self._program.region[row])
        if key not in self._begins:
            size = int(self._sizes[sizes])
            work = {"op": OpClass.SCAN, "opcode": "stablehlo.reduce_window", "flops": size}
            moved = {"operand_bytes": size, "result_bytes": size}
            self._begins[key] = self._before(row, sizes, [sizes], **work, **moved)
        return self._begins[key]

    def _mask(self, row: int, operand: int, sizes: int, groups: int) -> int:
        """An operand once for each group, zero where it is not of it: once for all of a region."""
        key = operand, int(self._program.region[row])
        if key not in self._masked:
            size, count = int(self._sizes[operand]), self._elements(operand) * groups
            work = {"op": OpClass.ARITHMETIC, "opcode": "stablehlo.select", "flops": count}
            moved = {"operand_bytes": size, "result_bytes": size * groups}
            shape = (groups, *self._shape(operand))
            reads = [operand, self._begin(row, sizes)]
            self._masked[key] = self._before(row, operand, reads, shape=shape, **work, **moved)
        return self._masked[key]

    def _stacked(self, row: int, matrices: int, dims: ProductDims[int]) -> int:
        """The matrices of all groups one below the other: turned if k is behind n."""
        *_, first, last = self._shape(matrices)
        if (first, last) == (dims.k, dims.n) and first != last:
            return matrices
        if first == last and self._program.phase[row] != Phase.BACKWARD:
            return matrices
        size = int(self._sizes[matrices])
        work = {"op": OpClass.TRANSPOSE, "opcode": "stablehlo.transpose"}
        moved = {"operand_bytes": size, "result_bytes": size}
        return self._before(row, matrices, [matrices], **work, **moved)
