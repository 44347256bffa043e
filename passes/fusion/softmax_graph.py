"""What surrounds a softmax: the product that it normalises, and all that its values reach."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from flint.ir.columns import Mask, carried, consumers, is_any
from flint.ir.op_class import OpClass
from flint.ir.program import Kind, Program
from flint.passes.fusion.again import EXPONENTIAL, made_from_nothing
from flint.passes.fusion.roles import ELEMENT, VIEW, Role, Roles

#: Rows that a softmax and its backward pass may have; JAX writes fewer than 60.
LIMIT = 400
#: Reads and writes of a part of an array.
_STORES = frozenset({OpClass.UPDATE_SLICE, OpClass.DYNAMIC_SLICE})


@dataclass
class Reach:
    """All rows that the values of a product reach before they enter another product.

    `stored` are those that keep a value for another loop: writes into a stack, what loops carry,
    and reads. `products` are the products that take a value.
    """

    rows: set[int] = field(default_factory=set)
    stored: set[int] = field(default_factory=set)
    products: set[int] = field(default_factory=set)


class SoftmaxGraph:
    """A program as lists, to walk from a softmax in both directions."""

    def __init__(self, program: Program, roles: Roles) -> None:
        self.role = roles.role.tolist()
        self.results: list[int] = roles.results.tolist()
        self.elements = roles.elements.tolist()
        self.moves = (roles.moves & (program.flops == 0)).tolist()
        self._idle = ((roles.role == Role.ELEMENT) & (program.flops == 0)).tolist()
        self.exponential = is_any(program, EXPONENTIAL).tolist()
        self._start: list[int] = program.dep_start.tolist()
        self._deps: list[int] = program.deps.tolist()
        first, rows = consumers(program)
        self._first: list[int] = first.tolist()
        self._rows: list[int] = rows.tolist()
        self._carried = carried(program).tolist()
        self._yields: dict[int, list[int]] = {}
        for region in program.regions:
            for value, produced in region.carries:
                if value != produced:
                    self._yields.setdefault(produced, []).append(value)
        self._stores = is_any(program, _STORES).tolist()
        self._positions = is_any(program, OpClass.COMPARE).tolist()
        self._waits: list[bool] = is_any(program, OpClass.TURN).tolist()
        self.saved: list[int] = np.flatnonzero(is_any(program, OpClass.SAVED)).tolist()
        self.made, self.compares = self._generated(program, roles)

    def comparisons(self, masks: frozenset[int]) -> int:
        """How many comparisons of positions masks are made of."""
        seen, pending = set[int](), [m for m in masks if self.compares[m]]
        while pending:
            row = pending.pop()
            if row not in seen:
                seen.add(row)
                pending += [r for r in self.reads(row) if self.compares[r]]
        return sum(self._positions[row] for row in seen)

    def reads(self, row: int) -> list[int]:
        """Rows that a row reads."""
        return self._deps[self._start[row] : self._start[row + 1]]

    def readers(self, row: int) -> list[int]:
        """Rows that read a row, as loops carry it too."""
        found = self._rows[self._first[row] : self._first[row + 1]]
        read = [reader for reader in found if not self._waits[reader]]
        return read + self._yields.get(row, [])

    def softmaxes(self) -> list[int]:
        """Exponentials that are summed along rows, and softmaxes in one row."""
        return [
            row
            for row, exponential in enumerate(self.exponential)
            if exponential
            and (
                self.role[row] == Role.ROWS
                or (
                    self.role[row] == Role.ELEMENT
                    and any(self.role[r] == Role.ROWS for r in self._through(row))
                )
            )
        ]

    def _through(self, row: int) -> list[int]:
        """Readers of a row, through changes of layout and type."""
        found: list[int] = []
        for reader in self.readers(row):
            if self.role[reader] == Role.VIEW or self._idle[reader]:
                found += self._through(reader)
            else:
                found.append(reader)
        return found

    def products_above(
        self, rows: set[int], size: int, through: frozenset[int] = frozenset({ELEMENT, VIEW})
    ) -> tuple[set[int], set[int], set[int]]:
        """Products of `size` elements that `rows` read, the rows between, and the masks they read.

        Rows between are of the roles `through`, of that size, and not in `rows`. Masks are what is
        made from positions alone.
        """
        products, between, masks = set[int](), set[int](), set[int]()
        pending = list(rows)
        seen = set(rows)
        while pending and len(seen) < LIMIT:
            for read in self.reads(pending.pop()):
                if read in seen:
                    continue
                seen.add(read)
                if self.made[read]:
                    masks.add(read)
                elif self.role[read] == Role.MATMUL and self.results[read] == size:
                    products.add(read)
                elif self.role[read] in through and self.results[read] == size:
                    between.add(read)
                    pending.append(read)
        return products, between, masks

    def reach(self, product: int) -> Reach | None:
        """What the values of a product reach; None if they leave through anything but products."""
        found = Reach()
        pending = self.readers(product)
        while pending:
            row = pending.pop()
            if row in found.rows or row in found.products:
                continue
            role = self.role[row]
            if role == Role.MATMUL:
                found.products.add(row)
                continue
            if role == Role.ALONE and not self._carried[row]:
                return None
            found.rows.add(row)
            if self._stores[row] or self._carried[row]:
                found.stored.add(row)
            if len(found.rows) > LIMIT:
                return None
            pending += self.readers(row)
        self._views_of_stored(found)
        return found

    def _views_of_stored(self, found: Reach) -> None:
        """A view of what is stored, and of what is written into a stack, count too."""
        for row in sorted(found.rows):
            views = self.role[row] == Role.VIEW and all(r in found.stored for r in self.reads(row))
            if views or (self.role[row] == Role.VIEW and self._only_stored(row, found)):
                found.stored.add(row)

    def _only_stored(self, row: int, found: Reach) -> bool:
        readers = self.readers(row)
        return bool(readers) and all(self._stores[r] or r in found.stored for r in readers)

    def _generated(self, program: Program, roles: Roles) -> tuple[list[bool], list[bool]]:
        """Rows made from nothing, also as loops carry them unchanged, and those that compare."""
        made = made_from_nothing(program, roles).tolist()
        free = self._scalars(program).tolist()
        element = np.isin(roles.role, (Role.ELEMENT, Role.VIEW)).tolist()
        same = {v for region in program.regions for v, produced in region.carries if v == produced}
        compares = list(self._positions)
        for row in range(len(made)):
            reads = self.reads(row)
            if row in same or (element[row] and reads and not made[row]):
                made[row] = bool(reads) and all(made[r] or free[r] for r in reads)
            compares[row] = made[row] and (compares[row] or any(compares[r] for r in reads))
        return made, compares

    def _scalars(self, program: Program) -> Mask:
        constant = (program.kind == Kind.VALUE) & (np.diff(program.dep_start) == 0)
        return np.asarray(constant, dtype=np.bool_)
