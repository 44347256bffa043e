"""What a matrix library does in the kernel of a product: strides, turned results, sums."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import permutations
from typing import ClassVar

import numpy as np

from flint.ir.columns import changed, consumers, is_any, yielded
from flint.ir.dims import ProductDims
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Flag, Int64s, Kind, Program
from flint.passes.base import Pass
from flint.passes.fusion.roles import RowRole, roles_of

#: Changes of layout that strides can express.
_STRIDED = frozenset({OpClass.TRANSPOSE, OpClass.SLICE})
#: Sums of this type take products in the kernel of the product, which has them in it anyway.
_SUM = "float32"


@dataclass(frozen=True)
class UseBlas(Pass):
    """What BLAS does as it reads operands and writes a result has no kernel, by named rules.

    * `strided_operands`: a slice or transpose that only products read is a view.
    * `turned_results`: so is a product of two matrices turned around, (m, n) to (n, m), if nothing
      else reads the product: the library exchanges the operands.
    * `sums`: a product that is only added in place to a sum in 32 bits is added by the product's
      kernel (beta 1), also layer by layer where the sum is a stack of all layers.
    """

    name: ClassVar[str] = "use-blas"

    def apply(self, program: Program) -> Program:
        """Return the program with fewer rows that do work."""
        program = _strided(program)
        products = _BlasProducts(program)
        turned = products.turned()
        if turned:
            rows = np.array(turned)
            program = _views(program, rows)
            products = _BlasProducts(program)
        return products.summed()


@dataclass(frozen=True)
class TurnResults(Pass):
    """What turns the result of a product around, and alone reads it, has no kernel: rule `turned_results`.

    XLA exchanges the operands (`AlgebraicSimplifier`) before anything is added up over devices, and a
    product with a batch writes where the transpose would (`GemmFusion`).
    """

    name: ClassVar[str] = "turn-results"

    def apply(self, program: Program) -> Program:
        """Return the program in which such rows are views."""
        turned = _BlasProducts(program, through=True).turned()
        return _views(program, np.array(turned)) if turned else program


def _views(program: Program, rows: Int64s) -> Program:
    """The program in which each of `rows` is a view of what it reads first."""
    flags = program.flags[rows] | np.uint16(Flag.VIEW)
    alias = program.deps[program.dep_start[rows]].astype(np.int32)
    return changed(
        program, rows, kind=Kind.VALUE, flops=0, operand_bytes=0, flags=flags, alias=alias
    )


def _strided(program: Program) -> Program:
    """Rule `strided_operands`."""
    role = roles_of(program, operators=False).role.tolist()
    first, rows = (column.tolist() for column in consumers(program))
    may = (program.kind == Kind.COMPUTE) & (np.diff(program.dep_start) == 1) & ~yielded(program)
    may &= is_any(program, _STRIDED)
    candidates = may.tolist()
    only = [False] * len(program)
    for row in range(len(program) - 1, -1, -1):
        if candidates[row] or role[row] == RowRole.VIEW:
            readers = rows[first[row] : first[row + 1]]
            only[row] = bool(readers) and all(role[r] == RowRole.MATMUL or only[r] for r in readers)
    chosen = np.flatnonzero(np.array(only, dtype=np.bool_) & may)
    return _views(program, chosen) if len(chosen) else program


class _BlasProducts:
    """What becomes of each product that only one row reads."""

    def __init__(self, program: Program, through: bool = False) -> None:
        """Ways lead `through` sums over devices if asked to."""
        self._program = program
        self._role = roles_of(program, operators=False).role
        self._passes = (program.collective == Collective.ALL_REDUCE) & through
        self._batches = through
        self._first, self._rows = (column.tolist() for column in consumers(program))
        self._trips = program.trips.tolist()

    def turned(self) -> list[int]:
        """Rule `turned_results`: rows that only turn a product around."""
        turns = is_any(self._program, OpClass.TRANSPOSE) & (self._program.kind == Kind.COMPUTE)
        found = []
        for product in np.flatnonzero(self._role == RowRole.MATMUL).tolist():
            way = self._way(product)
            if way and turns[way[-1]] and self._exchanged(product, way[-1]):
                found.append(way[-1])
        return found

    def _exchanged(self, product: int, row: int) -> bool:
        """Whether a row has the columns of a product before its rows."""
        program = self._program
        batch, rows, columns, _ = map(int, ProductDims.of(program.dims[product]))
        (read,) = program.dependencies(row).tolist()
        if batch > 1 and self._batches:
            return self._moved_as_one(
                program.shapes[program.shape[product]],
                (batch, rows, columns),
                program.shapes[program.shape[row]],
            )
        shape, turned = program.shapes[program.shape[read]], program.shapes[program.shape[row]]
        for at in range(1, len(shape)):
            sizes = math.prod(shape[:at]), math.prod(shape[at:])
            if batch == 1 and sizes == (rows, columns) and turned == shape[at:] + shape[:at]:
                return True
        return False

    @staticmethod
    def _moved_as_one(
        shape: tuple[int, ...], sizes: tuple[int, ...], turned: tuple[int, ...]
    ) -> bool:
        """Whether batch, rows and columns of a result change places and none is taken apart."""
        parts, left = [], list(shape)
        for size in sizes:
            part: list[int] = []
            while left and (math.prod(part) < size or left[0] == 1):
                part.append(left.pop(0))
            parts.append(part)
        return not left and any(
            tuple(d for part in order for d in part) == turned for order in permutations(parts)
        )

    def _way(self, row: int) -> list[int]:
        """Rows from what alone reads a row, through views, to the first that does work."""
        found: list[int] = []
        at = row
        while (reader := self._only_reader(at)) >= 0:
            found.append(reader)
            passed = self._role[reader] == RowRole.VIEW or self._passes[reader]
            if not passed and not self._places(reader, at):
                break
            at = reader
        return found

    def _only_reader(self, row: int) -> int:
        readers = self._rows[self._first[row] : self._first[row + 1]]
        return int(readers[0]) if len(readers) == 1 else -1

    def _places(self, row: int, part: int) -> bool:
        """Whether `row` is a stack of which `part` is one (see `SeparateLayers`)."""
        shown = bool(self._program.flags[row] & Flag.VIEW) and self._program.alias[row] != part
        return shown and self._program.kind[row] == Kind.VALUE

    def summed(self) -> Program:
        """Rule `sums`."""
        program = self._program
        operand, result = program.operand_bytes.copy(), program.result_bytes.copy()
        idle = []
        for product in np.flatnonzero(self._role == RowRole.MATMUL).tolist():
            way = self._way(product)
            if way and self._adds(way[-1]) and self._all_of(product, way[-1]):
                each = int(result[way[-1]] * self._trips[way[-1]] // self._trips[product])
                operand[product] += each
                result[product] = each
                idle.append(way[-1])
        if not idle:
            return program
        found = program.with_rows(operand_bytes=operand, result_bytes=result)
        return changed(found, np.array(idle), kind=Kind.VALUE, flops=0, operand_bytes=0)

    def _adds(self, row: int) -> bool:
        program = self._program
        adds = program.op[row] == OpClass.ADD and program.kind[row] == Kind.COMPUTE
        placed = bool(program.flags[row] & Flag.IN_PLACE) and program.alias[row] >= 0
        return adds and placed and program.dtypes[program.dtype[row]] == _SUM

    def _all_of(self, product: int, total: int) -> bool:
        """Whether a sum has as many elements as all that the product computes."""
        program = self._program
        one, other = (
            math.prod(program.shapes[program.shape[r]]) * int(self._trips[r])
            for r in (product, total)
        )
        return one == other
