"""Where the elements of a value change their order between two products of matrices."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flint.ir.columns import consumers, is_any
from flint.ir.dims import ProductDims
from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Kind, Program
from flint.passes.fusion.merging import LOOKED_UP, overwritten, storage_rows
from flint.passes.fusion.roles import ELEMENT, VIEW, Roles, RowRole


def turning_rows(program: Program, roles: Roles) -> tuple[list[int], list[int]]:
    """Rows whose kernels change the order of elements, and others that only do that.

    XLA gives each array one order of its dimensions, and element-wise rows the order of what they
    read. Results of products of a batch are in the order of the product, so that what several
    products lead to (the scores of attention, and their gradient) has the order of the first: others
    are turned, by the last row before more than one row reads them. A product without a
    batch may write in either order and takes that of its readers. Then what the program turns is
    turned, and softmax and norms stay along rows.
    """
    work = _Orders(program, roles)
    ends: list[int] = []
    alone: list[int] = []
    for rows, products in work.values_between():
        first, *others = products
        if work.batch(first) > 1:
            turned = work.is_turned(first)
            ends += [work.end(p) for p in others if work.is_turned(p) != turned]
        elif work.reduces(rows):
            ends += [work.end(p) for p in products if work.is_turned(p)]
            alone += [row for row in rows if work.only_for_products(row)]
    return [row for row in ends if row >= 0], alone


class _Orders:
    def __init__(self, program: Program, roles: Roles) -> None:
        self._program = program
        self._role = roles.role.tolist()
        self._results = roles.results.tolist()
        self._region = program.region.tolist()
        self._turns = (is_any(program, OpClass.TRANSPOSE) & (program.kind == Kind.COMPUTE)).tolist()
        self._start, self._deps = program.dep_start.tolist(), program.deps.tolist()
        self._first, self._rows = (column.tolist() for column in consumers(program))
        self._batch = ProductDims.of(program.dims).batch.tolist()

    def batch(self, product: int) -> int:
        """How many matrices a product multiplies."""
        return int(self._batch[product])

    def _readers(self, row: int) -> list[int]:
        found: list[int] = self._rows[self._first[row] : self._first[row + 1]]
        return found

    def values_between(self) -> Iterator[tuple[list[int], list[int]]]:
        """Element-wise rows that pass values of one size on, and the products that they read.

        Of those only products whose result has as many dimensions as can be turned.
        """
        unit = self._units()
        rows: dict[int, list[int]] = {}
        products: dict[int, list[int]] = {}
        for row, number in enumerate(unit):
            if number < 0:
                continue
            rows.setdefault(number, []).append(row)
            for read in self._reads(row):
                if self._role[read] == RowRole.MATMUL and self._results[read] == self._results[row]:
                    products.setdefault(number, []).append(read)
        for number, found in sorted(products.items()):
            yield rows[number], sorted(set(found))

    def _reads(self, row: int) -> list[int]:
        found: list[int] = self._deps[self._start[row] : self._start[row + 1]]
        return found

    def _units(self) -> list[int]:
        """For each row the first of those that it passes values to or takes them from, or -1."""
        passes = [
            role in (ELEMENT, VIEW) and size > 1
            for role, size in zip(self._role, self._results, strict=True)
        ]
        unit = [row if here else -1 for row, here in enumerate(passes)]

        def find(row: int) -> int:
            while unit[row] != row:
                unit[row] = unit[unit[row]]
                row = unit[row]
            return row

        for row, here in enumerate(passes):
            for read in self._reads(row) if here else ():
                same = passes[read] and self._results[read] == self._results[row]
                if same and self._region[read] == self._region[row]:
                    one, other = sorted((find(read), find(row)))
                    unit[other] = one
        return [find(row) if here else -1 for row, here in enumerate(passes)]

    def is_turned(self, product: int) -> bool:
        """Whether the program turns the result of a product before anything else."""
        readers = self._readers(product)
        return bool(readers) and all(self._turns[r] for r in readers)

    def end(self, product: int) -> int:
        """The last row that alone passes on what a product makes; -1 if several read it."""
        found, at = -1, product
        while len(readers := self._readers(at)) == 1:
            (reader,) = readers
            same = self._results[reader] == self._results[at]
            if self._role[reader] not in (ELEMENT, VIEW) or not same:
                break
            if self._region[reader] != self._region[at]:
                break
            found = reader if self._role[reader] == ELEMENT else found
            at = reader
        return found

    def reduces(self, rows: list[int]) -> bool:
        """Whether any of `rows` is reduced along its rows."""
        return any(self._role[r] == RowRole.ROWS for row in rows for r in self._readers(row))

    def only_for_products(self, row: int) -> bool:
        """Whether a row turns what nothing but products read."""
        readers = self._readers(row)
        multiplied = all(self._role[r] == RowRole.MATMUL for r in readers)
        return self._turns[row] and bool(readers) and multiplied


def with_turns(program: Program, roles: Roles) -> Roles:
    """Roles in which rows that turn values of several products end their kernels."""
    ends, alone = turning_rows(program, roles)
    role = roles.role.copy()
    role[ends] = RowRole.TURN
    role[alone] = RowRole.ALONE
    return Roles(**{**vars(roles), "role": np.asarray(role)})


def with_copies(program: Program, roles: Roles) -> Roles:
    """Roles of XLA for GPUs: look-ups are element-wise, and convolutions, which cuDNN runs, join no kernel.

    Slices of stacks are copies in loops with an optimization barrier, which JAX's checkpointing sets,
    and where the slice or the stack is overwritten.
    """
    held = np.array([*(r.barrier for r in program.regions), False])[program.region]
    slices = is_any(program, OpClass.DYNAMIC_SLICE) & (roles.role == RowRole.ELEMENT)
    storage = storage_rows(program) if slices.any() else []
    written = overwritten(program, storage) if storage else set()
    role = roles.role.copy()
    for row in np.flatnonzero(slices).tolist():
        values = (row, *program.dependencies(row).tolist())
        if held[row] or any((program.region[row], storage[d]) in written for d in values):
            role[row] = RowRole.ALONE
    looked = is_any(program, LOOKED_UP) & (program.kind == Kind.COMPUTE)
    looked &= (program.flags & (Flag.LAUNCHED | Flag.UNPRICED)) == 0
    role[looked] = RowRole.ELEMENT
    role[is_any(program, OpClass.CONVOLUTION)] = RowRole.ALONE
    return Roles(**{**vars(roles), "role": role, "moves": roles.moves | looked})
