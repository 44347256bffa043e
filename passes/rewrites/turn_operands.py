"""Products of matrices as a library of plain products has them: operands in its order and shape."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from flint.ir.columns import carried, type_bytes
from flint.ir.dims import ProductDims
from flint.ir.edit import IDLE, Editor
from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Kind, Program
from flint.passes.base import Pass

#: Types for which XLA has features last in memory, as tensor cores read them.
_FEATURES_LAST = ("bfloat16", "float16", "float32")
_TURN = "stablehlo.transpose"
_SEE = "stablehlo.reshape"


@dataclass(frozen=True)
class TurnOperands(Pass):
    """Products read matrices, one for each element of a batch, and make such.

    XLA for GPUs turns every product into these (`DotDecomposer`, layout assignment):

    * `turned`: an operand that is neither (batch, m, k) nor (batch, k, m) is transposed for each
      product that reads it. One of several dimensions is a matrix seen from its other side unless
      the product has a batch, and what a loop carries is in the order in which products read it.
    * `flat`: one that has more dimensions is seen as (batch, m, k) first, and a result of more
      dimensions is (batch, m, n) first. That moves nothing, but its bytes cannot be written over
      by values of another shape.
    * `filters`: a filter that is not (out, spatial, in) is transposed once for all convolutions of a
      loop or program, and the gradient of a filter after its own.
    """

    name: ClassVar[str] = "turn-operands"

    def apply(self, program: Program) -> Program:
        """Return the program with a row before each product for each such operand."""
        products = (program.op == OpClass.MATMUL) & (program.kind == Kind.COMPUTE)
        work = _Turning(program)
        rows = [r for r in np.flatnonzero(products).tolist() if work.edit.reads(r)]
        seen = {row: work.flattened(row) for row in rows}
        for row in rows:
            work.turned(row, seen[row])
        work.filters = {}
        for row in _convolutions(program):
            work.turned(row, set())
            work.turned_result(row)
        return work.edit.build().program if work.changed else program


def _convolutions(program: Program) -> list[int]:
    chosen = (program.op == OpClass.CONVOLUTION) & (program.kind == Kind.COMPUTE)
    chosen &= np.isin(program.dtypes, _FEATURES_LAST)[program.dtype]
    return np.flatnonzero(chosen).tolist()


class _Turning:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.edit = Editor(program)
        self.changed = False
        self.sizes = type_bytes(program)
        self.carried = carried(program)
        self.turn, self.see = (self.edit.index("opcode", o) for o in (_TURN, _SEE))
        self.views: dict[tuple[int, int], int] = {}  # by operand and region
        self.filters: dict[tuple[int, int], int] | None = None  # the same, of those that are turned

    def flattened(self, row: int) -> set[int]:
        """Give a product a plain result; returns the operands that are no plain matrices."""
        p, operands = self.program, self.edit.reads(row)
        ranks = [len(p.shapes[p.shape[d]]) for d in operands]
        result = p.shapes[p.shape[row]]
        batch, contracted = _dimensions(ranks, result, int(ProductDims.of(p.dims[row]).batch))
        if len(result) > batch + 2:
            self.edit.change(row, shape=self._flat(row))
            self.changed = True
        deep = (contracted > 1 or rank > batch + 2 for rank in ranks)
        return {d for d, is_deep in zip(operands, deep, strict=True) if is_deep}

    def turned(self, row: int, seen: set[int]) -> None:
        """Let a product read rows that turn its operands, or see those of `seen` as matrices."""
        deps = self.edit.reads(row)
        flags = Flag(int(self.program.flags[row]))
        flags &= ~self._seen(row)
        turned = {deps[0]} if Flag.TURNED_FIRST in flags else set()
        turned |= {deps[-1]} if Flag.TURNED_LAST in flags else set()
        carried = {read for read in turned if self._is_carried(read)}
        turned, seen = turned - carried, seen | carried
        new = {}
        for read in sorted(turned | seen):
            new[read] = self._turn(row, read) if read in turned else self._see(row, read)
        if new:
            self.edit.change(row, deps=[new.get(d, d) for d in deps])
            self.changed = True

    def _is_carried(self, row: int) -> bool:
        """Whether a row is a value that a loop carries, or a view of one."""
        p = self.program
        while p.kind[row] == Kind.VALUE and not self.carried[row] and len(p.dependencies(row)) == 1:
            row = int(p.dependencies(row)[0])
        return bool(self.carried[row])

    def _seen(self, row: int) -> Flag:
        """Flags of operands that need not be turned."""
        flags = Flag(int(self.program.flags[row]))
        found = Flag.TURNED_FIRST if Flag.SEEN_FIRST in flags else Flag(0)
        return found | Flag.TURNED_LAST if Flag.SEEN_LAST in flags else found

    def turned_result(self, row: int) -> None:
        """Let a convolution whose result is turned be followed by a row that turns it."""
        if Flag.TURNED_RESULT not in Flag(int(self.program.flags[row])):
            return
        p, size = self.program, int(self.program.result_bytes[row])
        made = self.edit.copy(row, row, int(p.region[row]), self.edit.reads(row), alias=-1)
        work = {"kind": Kind.COMPUTE, "opcode": _TURN, "op": OpClass.TRANSPOSE}
        self.edit.change(row, deps=[made], alias=-1, **{**IDLE, **work, "operand_bytes": size})
        self.changed = True

    def _turn(self, row: int, read: int) -> int:
        if self.filters is None:
            return self._turning(row, read)
        key = read, int(self.program.region[row])
        if key not in self.filters:
            self.filters[key] = self._turning(row, read)
        return self.filters[key]

    def _turning(self, row: int, read: int) -> int:
        size = self.sizes[read]
        work = {
            "kind": Kind.COMPUTE,
            "operand_bytes": size,
            "opcode": self.turn,
            "op": OpClass.TRANSPOSE,
        }
        return self._before(row, read, **work)

    def _see(self, row: int, read: int) -> int:
        """The first view of an operand in a region is there for all."""
        key = read, int(self.program.region[row])
        if key not in self.views:
            view = {"flags": Flag.VIEW, "alias": read, "opcode": self.see, "op": OpClass.RESHAPE}
            self.views[key] = self._before(row, read, **view)
        return self.views[key]

    def _before(self, row: int, read: int, **columns: Any) -> int:
        p = self.program
        place = {c: getattr(p, c)[row] for c in ("stream", "phase", "scope", "location")}
        value = {"shape": self._flat(read), "result_bytes": self.sizes[read], "name": ""}
        region = int(p.region[row])
        return self.edit.value(read, row, region, [read], **{**place, **value, **columns})

    def _flat(self, row: int) -> tuple[int, ...]:
        """The shape in one dimension: in none that it had."""
        return (math.prod(self.program.shapes[self.program.shape[row]]),)


def _dimensions(ranks: list[int], result: tuple[int, ...], batch: int) -> tuple[int, int]:
    """How many dimensions are of the batch, and how many are summed over.

    The ranks of both operands have the first twice, as the result has once, and the second twice.
    """
    both = ranks[0] + ranks[-1] - len(result)
    for contracted in range(1, both // 2 + 1):
        count = both - 2 * contracted
        if math.prod(result[:count]) == batch:
            return count, contracted
    return 0, 1
