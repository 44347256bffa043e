"""Kernels with several results: element-wise chains, softmaxes, norms, products of matrices."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from flint.ir.columns import consumers, is_any, yielded
from flint.ir.op_class import OpClass
from flint.ir.program import Kind, Program
from flint.passes.base import Pass
from flint.passes.fusion.again import Inlined, compute_again
from flint.passes.fusion.groups import Groups
from flint.passes.fusion.merging import LOOKED_UP, CircleError, merged, without_circles
from flint.passes.fusion.naming import kernel_names
from flint.passes.fusion.roles import (
    ELEMENT,
    ROWS,
    TAKING,
    VIEW,
    RowRole,
    compiled_apart,
    few_blocks,
    named_kernels,
    written_by_index,
)

#: Which row stands for a kernel: products first, then updates in place.
_STANDS = dict.fromkeys((RowRole.ELEMENT, RowRole.ROWS, RowRole.REDUCE), 1)
_STANDS |= {RowRole.MATMUL: 4, RowRole.UPDATE: 3, RowRole.TURN: 2}
#: Bits of roles in the marks of a kernel.
_ALONE, _, _, _ROWS, _REDUCE, _MATMUL, _UPDATE, _TURN = (1 << role for role in RowRole)
#: Of an array that a scatter writes into, and of a row for which kernels along rows store their result.
_WRITTEN, _STORED = (1 << len(RowRole) + number for number in range(2))
#: Rows between kernels that still become siblings. (Inductor's limit; others far apart would keep
#: an early one waiting for a late one.)
_NEAR = 64


@dataclass(frozen=True)
class FuseChains(Pass):
    """Compute cheap rows again (`compute_again`; element-wise rows with `again`), then merge rows
    that run over the same elements into kernels, by named rules.

    * `chain`: an element-wise row joins the kernel of a row that reads it, if both run over as many
      elements, or the kernel holds all readers and each takes another slice. What others read is a
      further result of the kernel.
    * `rows`: a reduction along rows shares the kernel of what it reads and, with `blocks`
      "shared", of what reads it: a block of rows stays on chip (Inductor). With "diamonds" only if
      nothing outside the kernel reads the reduction and nothing in it is transposed (XLA's
      softmax rewriter). Other reductions end their kernel.
    * `epilogue`: the reader of a product joins it if it is "any" element-wise row (TPU),
      or, with "vector", one whose other operands are no larger than a row of it: a bias, a
      factor, a change of type (the epilogues of cuBLASLt).
    * `prologue`: a change of layout or type that only one product reads joins the product; if it
      is "any", so does any element-wise kernel that nothing else reads; if it is "again", products
      compute rows of their operands themselves, whatever else reads these (`prologues`).
    * `siblings`: kernels of as many elements that read the same array become one.
    * `update`: what only one update in place or by index reads is computed by the kernel that writes it.
    * `slices`: kernels read slices of stacks where they are; else a copy does (XLA for GPUs).
    * `parts`: a concatenation, pad or scatter computes what it alone reads; else that is stored (TPU).
    * `named`: rows in a scope `kernel.NAME` are a kernel that somebody wrote by hand: they join
      each other, whatever the other rules say, and no other row but views.

    * `compiled`: only rows of compiled calls (`Program.compiled`) take part, each call by itself.

    Kernels never read each other in a circle. With `operators`, those of PyTorch take part too, and
    rows of the forward and backward pass are not together: they are compiled one by one. flops are
    summed; bytes are those that cross.
    """

    again: bool = True
    blocks: str = "diamonds"
    prologue: str = "layout"
    epilogue: str = "vector"
    siblings: str = "same"
    slices: bool = False
    operators: bool = False
    named: bool = False
    compiled: bool = False
    sinks: bool = True
    orders: bool = False
    parts: bool = True
    name: ClassVar[str] = "fuse-chains"

    def apply(self, program: Program) -> Program:
        """Return the program with one row per kernel."""
        inlined = compute_again(
            program,
            elements=self.again,
            operators=self.operators,
            slices=self.slices,
            blocks=self.blocks,
            named=self.named,
            compiled=self.compiled,
            sinks=self.sinks,
            orders=self.orders,
            products=self.prologue == "again",
            scatters=self.parts,
        )
        program, roles = inlined.program, inlined.roles
        work = _Chains(inlined, self)
        if self.named:
            work.join_named()
        work.join_inner()
        work.join_chains()
        if self.orders:
            work.join_inner()  # what is inside now
        work.join_products()
        if self.siblings:
            work.join_siblings()
        stands = np.zeros(len(program), dtype=np.int64)
        for role, rank in _STANDS.items():
            stands[(roles.role == role) & (program.kind == Kind.COMPUTE)] = rank
        kernel = work.groups.kernels(stands)
        while True:
            named = kernel_names(program, roles, inlined.busy, inlined.softmax, kernel)
            try:
                return merged(program, kernel, inlined.changed, **named)
            except CircleError as circle:
                kernel = without_circles(kernel, circle)


class _Chains:
    def __init__(self, inlined: Inlined, options: FuseChains) -> None:
        program, roles = inlined.program, inlined.roles
        self._program = program
        self._options = options
        self._role = roles.role.tolist()
        self._elements = roles.elements.tolist()
        self._moves = (roles.moves | roles.converts).tolist()
        self._converts, self._turns = roles.converts.tolist(), roles.turns.tolist()
        self._plain = (roles.converts & ~inlined.busy).tolist()
        self._slices = is_any(program, OpClass.SLICE).tolist()
        self._whole, self._ends = inlined.whole, inlined.ends
        self._bytes = program.result_bytes.tolist()
        self._alias = program.alias.tolist()
        self._phase = program.phase.tolist()
        self._yielded = yielded(program).tolist()
        self._start, self._deps = program.dep_start.tolist(), program.deps.tolist()
        self._first, self._rows = (column.tolist() for column in consumers(program))
        self._known_reads: dict[int, list[int]] = {}
        self._known_readers: dict[int, list[int]] = {}
        self._named = self._named_of(named_kernels(program, options.named).tolist())
        apart = self._named
        if options.compiled:  # a recorded program has no kernels that it names
            apart = self._named_of(compiled_apart(program, True).tolist())
        marks = (1 << roles.role) + _WRITTEN * written_by_index(program, roles)
        marks |= _ROWS * inlined.along
        reduces = (roles.role == RowRole.REDUCE) & (options.blocks == "diamonds")
        marks |= _STORED * (is_any(program, LOOKED_UP) | reduces)
        self._few = (few_blocks(program, roles) & options.orders).tolist()
        self._by_index = is_any(program, OpClass.SCATTER).tolist()
        self.groups = Groups(program, marks.tolist(), apart)

    def _named_of(self, numbers: list[int]) -> list[int]:
        """The named kernel of each row; a view belongs to the one that reads it."""
        for row in range(len(numbers) - 1, -1, -1):
            if self._role[row] == RowRole.VIEW:
                readers = self._rows[self._first[row] : self._first[row + 1]]
                found = {numbers[r] for r in readers}
                numbers[row] = found.pop() if len(found) == 1 else 0
        return numbers

    def join_named(self) -> None:
        """Rule `named`: rows of a kernel that read each other, or the same values."""
        joins = frozenset(map(int, (RowRole.ELEMENT, RowRole.ROWS, RowRole.REDUCE)))
        for row, number in enumerate(self._named):
            same = [r for r in self._readers(row) if self._named[r] and self._role[r] in joins]
            if number and self._role[row] in joins:
                for reader in same:
                    if self._named[reader] == number:
                        self._merge(row, reader)
            for one, other in pairwise(sorted(same, key=lambda r: (self._named[r], r))):
                self.groups.merge(one, other)

    def join_inner(self) -> None:
        """Rules `chain` and `rows`, for rows that one kernel reads: they leave nothing outside."""
        for row in range(len(self._role) - 1, -1, -1):
            if self._role[row] not in (ELEMENT, ROWS):
                continue
            readers = self._readers(row)
            one = len({self.groups.of(r) for r in readers}) == 1 and not self._yielded[row]
            if one and self._role[readers[0]] in TAKING and self._chains(row, readers[0]):
                for reader in readers:
                    self._merge(row, reader)

    def join_chains(self) -> None:
        """Rules `chain`, `rows` and `update`: each row with those that it reads, largest first."""
        for row in range(len(self._role)):
            if self._role[row] in TAKING:
                for read in sorted(self._reads(row), key=lambda d: -self._bytes[d]):
                    if self._chains(read, row):
                        self._merge(read, row)

    def join_products(self) -> None:
        """Rules `epilogue` and `prologue`."""
        for row in range(len(self._role)):
            if self._role[row] == RowRole.MATMUL:
                for read in self._reads(row):
                    if self._prologue(read, row):
                        self._merge(read, row)
                self._epilogue(row)

    def join_siblings(self) -> None:
        """Rule `siblings`: kernels that read the same array."""
        for row in range(len(self._role)):
            readers = self._readers(row)
            if len(readers) < 2 or not self._bytes[row]:
                continue
            kernels = list(dict.fromkeys(self.groups.of(r) for r in readers))
            for one, other in pairwise(kernels):
                near = self.groups.apart(one, other) <= _NEAR
                if near and self._are_siblings(one, other):
                    self.groups.merge(one, other)

    def _reads(self, row: int) -> list[int]:
        """Rows that do the work for what a row reads: through views."""
        if row not in self._known_reads:
            self._known_reads[row] = self._find_reads(row)
        return self._known_reads[row]

    def _find_reads(self, row: int) -> list[int]:
        found = []
        for read in self._deps[self._start[row] : self._start[row + 1]]:
            while self._role[read] == VIEW:
                read = self._deps[self._start[read]]
            found.append(read)
        return found

    def _readers(self, row: int) -> list[int]:
        """Rows that work with what a row makes: through views."""
        if row not in self._known_readers:
            self._known_readers[row] = self._find_readers(row)
        return self._known_readers[row]

    def _find_readers(self, row: int) -> list[int]:
        found, pending = [], self._rows[self._first[row] : self._first[row + 1]]
        while pending:
            reader = pending.pop()
            if self._role[reader] == VIEW:
                pending += self._rows[self._first[reader] : self._first[reader + 1]]
            else:
                found.append(reader)
        return sorted(found)

    def _merge(self, read: int, row: int) -> None:
        """Merge a row with one that it reads, and with the views between them."""
        apart = self._phase[read] != self._phase[row] and self._options.operators
        if apart or not self.groups.merge(read, row):
            return
        for between in self._deps[self._start[row] : self._start[row + 1]]:
            chain = []
            while self._role[between] == VIEW:
                chain.append(between)
                between = self._deps[self._start[between]]
            if between == read:
                for view in chain:
                    self.groups.merge(view, row)

    def _chains(self, read: int, row: int) -> bool:
        role = self._role[read]
        if role not in (ELEMENT, ROWS) or self._bytes[read] == 0:
            return False
        if self._role[row] == RowRole.UPDATE:
            return self._updates(read, row)
        one, other = self.groups.of(read), self.groups.of(row)
        if self._has(one, _MATMUL | _UPDATE) or self._has(other, _MATMUL):
            return False
        if self._has(one, _WRITTEN) and self._has(other, _UPDATE):
            return False
        along = self._has(one, _ROWS) or read in self._ends
        if along and self._has(other, _STORED):
            return False  # a softmax or norm along rows is a kernel of its own, which stores its result
        if self._few[row] and not self._is_inside(read, other):
            return False
        if role == ROWS or self._has(one, _ROWS) or self._has(other, _ROWS):
            return self._blocks(read, row, one, other)
        if self._options.orders and self._has(other, _UPDATE) and not self._is_inside(read, other):
            return False
        if self._moves[row] and self._start[row + 1] - self._start[row] > 1:  # joins parts, or pads
            part = self._options.parts or self._moves[read]
            return part and self._only_reader(read, row) and not self._is_turned(row)
        same = bool(self._elements[read] == self._elements[row])
        return same or (self._options.parts and self._takes_parts(read, row))

    def _takes_parts(self, read: int, row: int) -> bool:
        """Whether slices that became part of the readers of a row take no more than all of it together.

        Then one kernel computes what they take, each element once.
        """
        readers = self._readers(read)
        narrow = all(
            self._role[r] == ELEMENT and self._elements[r] < self._elements[read] for r in readers
        )
        taken = sum(self._elements[r] for r in readers)
        inside = narrow and self._is_inside(read, self.groups.of(row))
        return inside and taken <= self._elements[read] and not self._turns[read]

    def _updates(self, read: int, row: int) -> bool:
        group = self.groups.of(read)
        whole = self._alias[row] == read or self._has(group, _MATMUL | _UPDATE)
        if self._by_index[row]:
            whole |= self._has(group, _ROWS | _REDUCE | _WRITTEN)
            return not whole and self._is_inside(read, self.groups.of(row))
        fits = bool(self._bytes[read] == self._bytes[row])
        return fits and not whole and self._only_reader(read, row)

    def _is_turned(self, row: int) -> bool:
        """Whether a change of layout or type leads to a transpose, where `orders` matter."""
        while self._options.orders and len(readers := self._readers(row)) == 1:
            (row,) = readers
            if self._turns[row] or not self._converts[row]:
                return bool(self._turns[row])
        return False

    def _only_reader(self, read: int, row: int) -> bool:
        return self._readers(read) == [row]

    def _blocks(self, read: int, row: int, one: int, other: int) -> bool:
        """Whether rows of a block stay on chip between `read` and `row`."""
        sizes = self._sizes(one) | self._sizes(other)
        if len(sizes) > 2:
            return False
        if self._options.blocks == "shared":
            return self._one_block(one, other)
        # with "diamonds" it has one result: XLA computes it again for others
        inside = self._is_inside(read, other) and self._one_block(one, other)
        if self._role[read] != ROWS and not self._has(one, _ROWS):
            return inside or bool(self._elements[read] == self._elements[row])
        return inside and all(
            r in self._whole for r in self.groups.rows(one) if self._role[r] == ROWS
        )

    def _is_inside(self, read: int, group: int) -> bool:
        """Whether nothing outside a kernel reads a row."""
        return not self._yielded[read] and all(
            self.groups.of(r) == group for r in self._readers(read)
        )

    def _one_block(self, one: int, other: int) -> bool:
        """Whether two kernels have the same rows: as many rows of as many columns."""
        shapes = {
            tuple(self._program.dims[r].tolist())
            for g in (one, other)
            for r in self.groups.rows(g)
            if self._role[r] == ROWS
        }
        if len(shapes) != 1:
            return not shapes and len(self._sizes(one) | self._sizes(other)) == 1
        _, rows, _, columns = next(iter(shapes))
        return self._sizes(one) | self._sizes(other) <= {rows, rows * columns}

    def _sizes(self, group: int) -> set[int]:
        return {self._elements[r] for r in self.groups.rows(group) if self._role[r] != VIEW}

    def _has(self, group: int, roles: int) -> bool:
        return bool(self.groups.marks(group) & roles)

    def _prologue(self, read: int, row: int) -> bool:
        if self._role[read] != ELEMENT or not self._only_reader(read, row):
            return False
        kernel = self.groups.rows(self.groups.of(read))
        if self._options.prologue == "again":
            return all(self._plain[r] or self._role[r] == VIEW for r in kernel)
        if self._options.prologue != "any":
            return all(self._moves[r] or self._role[r] == VIEW for r in kernel)
        if self._has(self.groups.of(read), _ALONE | _ROWS | _REDUCE | _MATMUL | _UPDATE):
            return False
        inside = {*kernel, row}
        return all(reader in inside for r in kernel for reader in self._readers(r))

    def _epilogue(self, row: int) -> None:
        readers = self._readers(row)
        if len(readers) != 1 or not self._options.epilogue:
            return
        reader = readers[0]
        if self._role[reader] != ELEMENT or self._elements[reader] != self._elements[row]:
            return
        kernel = self.groups.rows(self.groups.of(reader))
        if self._has(self.groups.of(reader), _ROWS | _REDUCE | _MATMUL | _UPDATE | _TURN):
            return
        if self._options.orders and self._turned(self.groups.of(reader)):
            return
        if self._options.epilogue == "vector" and not self._small_operands(kernel, row):
            return
        self._merge(row, reader)

    def _small_operands(self, kernel: list[int], row: int) -> bool:
        """Whether a kernel reads, beside a product, nothing as large, and has one result."""
        inside = {*kernel, row}
        outside = [d for r in kernel for d in self._reads(r) if d not in inside]
        results = [r for r in kernel if any(x not in inside for x in self._readers(r))]
        small = all(self._elements[d] * 16 <= self._elements[row] for d in outside)
        return small and len(results) <= 1

    def _are_siblings(self, one: int, other: int) -> bool:
        if any(self._has(group, _ALONE | _MATMUL | _UPDATE | _TURN) for group in (one, other)):
            return False
        if self._options.orders and self._only_slices(one) and self._only_slices(other):
            return False
        turned = any(self._turned(group) for group in (one, other))
        if turned and (self._options.orders or not self._options.blocks):
            return False
        sizes = self._sizes(one) | self._sizes(other)
        if self._options.operators and self._phase[one] != self._phase[other]:
            return False
        rows = [self._has(group, _ROWS) for group in (one, other)]
        if any(rows) and self._options.blocks == "shared":
            return self._one_block(one, other)
        if any(rows) and self._options.blocks and not (all(rows) and self._plain_sums(one, other)):
            return False
        if len(sizes) != 1 or self._waits(one, other) or self._waits(other, one):
            return False
        if self._options.siblings == "any" and self._options.blocks:
            return True
        first, second = self._inputs(one), self._inputs(other)
        if self._options.siblings == "any":
            return not first.isdisjoint(second)
        shared = [self._has(self.groups.of(read), _MATMUL) for read in first & second]
        if self._options.orders and shared and all(shared):
            return False  # XLA for GPUs: what reads only a product stays apart
        differ = all(rows) or self._has(one, _REDUCE) != self._has(other, _REDUCE)
        return first == second or (differ and (first <= second or second <= first))

    def _plain_sums(self, one: int, other: int) -> bool:
        """Whether two kernels reduce rows of one shape that nothing reduced before."""
        members = (*self.groups.rows(one), *self.groups.rows(other))
        return self._one_block(one, other) and self._ends.isdisjoint(members)

    def _turned(self, group: int) -> bool:
        """Whether a row of a kernel transposes."""
        return any(self._turns[r] for r in self.groups.rows(group))

    def _only_slices(self, group: int) -> bool:
        """Whether a kernel only takes a part of an array: XLA makes such of one operation."""
        return all(self._slices[r] or self._role[r] == VIEW for r in self.groups.rows(group))

    def _waits(self, one: int, other: int) -> bool:
        """Whether a kernel needs what another has reduced: all of it, before it can begin."""
        reduced = [r for r in self.groups.rows(one) if self._role[r] in (ROWS, RowRole.REDUCE)]
        return any(self.groups.of(x) == other for r in reduced for x in self._readers(r))

    def _inputs(self, group: int) -> set[int]:
        """Large values that a kernel reads from outside."""
        rows = set(self.groups.rows(group))
        size = max(self._elements[r] for r in rows)
        read = {d for r in rows if self._role[r] != VIEW for d in self._reads(r)}
        return {d for d in read - rows if self._elements[d] * 16 > size}
