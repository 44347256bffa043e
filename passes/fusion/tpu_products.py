"""What XLA for TPUs makes part of products of matrices, beyond a prologue and an epilogue."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flint.ir.columns import Mask, consumers, forwarded, is_any, kept, yielded
from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Kind, Program
from flint.passes.base import Pass
from flint.passes.fusion.groups import Groups
from flint.passes.fusion.merging import merged, segments
from flint.passes.fusion.roles import Role, roles_of

#: Kernels that run once for each element of their only result.
#: A reduction that joins a product leaves little: a maximum or a sum of each row.
SMALL = 8


@dataclass(frozen=True)
class FuseTpuProducts(Pass):
    """Kernels of a program that XLA's TPU compiler makes part of a product, by named rules.

    * `operands_again`: an element-wise kernel that only products read, two or more, is computed by
      each of them, if that moves no more bytes: n x read <= read + (1 + n) x stored. Each then
      has its flops.
    * `turned_results`: a transpose of a product that nothing else reads: the product writes in
      that layout.
    * `reduced_results`: a reduction of a product's result whose other operands are no larger, and
      that leaves a small part of it, is a further result of the product: the maximum of scores,
      the mean square of a norm. One for each product.

    The program has one row per kernel already (`FuseChains`).
    """

    name: ClassVar[str] = "fuse-tpu-products"

    def apply(self, program: Program) -> Program:
        """Return the program with fewer kernels."""
        program = _operands_again(program)
        work = _Products(program)
        work.join()
        stands = np.where(work.product, 1, 0).astype(np.int64)
        return merged(program, work.groups.kernels(stands))


class _Products:
    """Rules `turned_results` and `reduced_results`."""

    def __init__(self, program: Program) -> None:
        self.groups = Groups(program)
        self.product = _products(program)
        self._program = program
        self._readers = _Readers(program)
        self._turns = is_any(program, OpClass.TRANSPOSE)
        self._reduces = _reductions(program)

    def join(self) -> None:
        """Apply them to each product."""
        for row in np.flatnonzero(self.product).tolist():
            readers = self._readers.through_views(row)
            if len(readers) == 1 and self._turns[readers[0]]:
                self._merge(row, readers[0])
            else:
                self._reduced(row, readers)

    def _reduced(self, row: int, readers: list[int]) -> None:
        size = int(self._program.result_bytes[row])
        for reader in readers:
            small = self._program.result_bytes[reader] * SMALL <= size
            fits = self._program.operand_bytes[reader] <= 2 * size + size // SMALL
            if self._reduces[reader] and small and fits and self._merge(row, reader):
                return

    def _merge(self, row: int, reader: int) -> bool:
        if not self.groups.merge(row, reader):
            return False
        for view in self._readers.views_between(row, reader):
            self.groups.merge(view, row)
        return True


class _Readers:
    """What reads a row, through views of it, in the row's own segment."""

    def __init__(self, program: Program) -> None:
        self._first, self._rows = (column.tolist() for column in consumers(program))
        single = np.diff(program.dep_start) == 1
        self._view = ((program.kind == Kind.VALUE) & single).tolist()

    def direct(self, row: int) -> list[int]:
        found: list[int] = self._rows[self._first[row] : self._first[row + 1]]
        return found

    def through_views(self, row: int) -> list[int]:
        """Rows, each once; a view that nothing reads stands for itself: a result of the step."""
        found, pending = set(), [row]
        while pending:
            for reader in self.direct(pending.pop()):
                if self._view[reader] and self.direct(reader):
                    pending.append(reader)
                else:
                    found.add(reader)
        return sorted(found)

    def views(self, row: int) -> list[int]:
        """All views of a row."""
        found: list[int] = []
        pending = [row]
        while pending:
            inner = [r for r in self.direct(pending.pop()) if self._view[r]]
            found += inner
            pending += inner
        return found

    def views_between(self, row: int, reader: int) -> list[int]:
        """Views of a row that only lead to one reader."""
        return [v for v in self.views(row) if self.through_views(v) == [reader]]


def _operands_again(program: Program) -> Program:
    """Rule `operands_again`."""
    readers, product = _Readers(program), _products(program)
    segment = segments(program).tolist()
    operand, flops = program.operand_bytes.copy(), program.flops.copy()
    gone = np.zeros(len(program), dtype=np.bool_)
    for row in np.flatnonzero(_candidates(program)).tolist()[::-1]:
        reading = readers.through_views(row)
        if len(reading) < 2 or not all(product[r] for r in reading):
            continue
        views = readers.views(row)
        if any(segment[r] != segment[row] for r in (*reading, *views)):
            continue
        read, stored, n = int(operand[row]), int(program.result_bytes[row]), len(reading)
        if n * read > read + (1 + n) * stored:
            continue
        operand[reading] += read - np.minimum(stored, operand[reading])
        flops[reading] += flops[row]
        gone[[row, *views]] = True
    if not gone.any():
        return program
    changed = program.with_rows(operand_bytes=operand, flops=flops)
    return kept(forwarded(changed, gone), ~gone)


def _candidates(program: Program) -> Mask:
    """Element-wise kernels with one result that no loop takes."""
    roles = roles_of(program, operators=False, slices=False)
    element = (roles.role == Role.ELEMENT) | is_any(program, OpClass.FUSED)
    bits = np.array([_bits(name) for name in program.dtypes] or [8])
    single = roles.results * bits[program.dtype] == program.result_bytes * 8
    placed = (program.flags & (Flag.IN_PLACE | Flag.VIEW | Flag.UNPRICED)) != 0
    found = element & single & ~placed & ~yielded(program) & (program.kind == Kind.COMPUTE)
    found &= np.diff(program.dep_start) > 0
    return np.asarray(found, dtype=np.bool_)


def _bits(dtype: str) -> int:
    """Bits of an element, which most types have in their names."""
    number = re.search(r"\d+", dtype)
    return int(number[0]) if number else 8


def _products(program: Program) -> Mask:
    roles = roles_of(program, operators=False, slices=False)
    return np.asarray(roles.role == Role.MATMUL, dtype=np.bool_)


def _reductions(program: Program) -> Mask:
    roles = roles_of(program, operators=False, slices=False)
    reduces = np.isin(roles.role, (Role.ROWS, Role.REDUCE)) | is_any(
        program, OpClass.FUSED_REDUCTION
    )
    return np.asarray(reduces & (program.kind == Kind.COMPUTE), dtype=np.bool_)
