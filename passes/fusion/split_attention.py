"""Attention whose forward pass is elsewhere: the backward pass of a pipeline's stage has what it saved.

A graph of what surrounds a softmax finds it: the product that it normalizes, and all that its values
reach.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from flint.ir.columns import Mask, carried, consumers, is_any
from flint.ir.dims import StashDims
from flint.ir.op_class import OpClass
from flint.ir.program import Kind, Program
from flint.passes.fusion.again import made_from_nothing
from flint.passes.fusion.naming import EXPONENTIAL
from flint.passes.fusion.roles import ELEMENT, VIEW, Roles, RowRole


@dataclass(frozen=True)
class SplitAttention:
    """The backward pass of an attention whose weights were saved.

    `gradient` is the product that is the gradient of the weights, `values` the one that takes the
    weights, `late` those that take the gradient of the scores. `reach` has all rows that these
    and what was saved of the size of scores lead to, before they enter the products.
    """

    gradient: int
    values: int
    late: frozenset[int]
    reach: SoftmaxReach
    masks: frozenset[int]


class SplitFinder:
    """Finds the backward passes of attention whose forward pass is not in the same program, or
    not connected with it."""

    def __init__(self, graph: SoftmaxGraph) -> None:
        self._graph = graph
        self._saved = {row: r for row in graph.saved if (r := _of_saved(graph, row)) is not None}

    def found(self) -> Iterator[SplitAttention]:
        """All of them, in row order."""
        if not self._saved:
            return
        for row, role in enumerate(self._graph.role):
            if role == RowRole.MATMUL and (attention := self._attention(row)) is not None:
                yield attention

    def _attention(self, gradient: int) -> SplitAttention | None:
        """The attention of which a product is the gradient of the weights."""
        graph = self._graph
        reach = graph.reach(gradient)
        if reach is None or len(reach.products) != 2 or reach.stored:
            return None
        if not any(graph.role[row] == RowRole.ROWS for row in reach.rows):
            return None  # no softmax: its derivative sums along rows
        late, size = frozenset(reach.products), graph.results[gradient]
        products, between, masks = graph.products_above(reach.rows, size)
        taken = self._saved_for(gradient, late, size)
        values = {p for r in taken for p in r.products} - late
        if products != {gradient} or len(values) != 1 or gradient in values:
            return None
        whole = SoftmaxReach(set(reach.rows), set(), set(late | values))
        for other in taken:
            whole.rows |= other.rows
            whole.stored |= other.stored
        whole.rows |= self._only_for(between, whole.rows | whole.products)
        return SplitAttention(gradient, min(values), late, whole, frozenset(masks))

    def _saved_for(self, gradient: int, late: frozenset[int], size: int) -> list[SoftmaxReach]:
        """Of what was saved in the size of scores, that which leads to the products of an attention:
        those that the gradient leads to, and one that reads what the gradient reads."""
        read = self._operands(gradient)
        found = []
        for row, reach in self._saved.items():
            elements = self._graph.results[row]
            if elements < size or elements % size:
                continue
            others = reach.products - late
            if len(others) <= 1 and all(self._operands(p) & read for p in others):
                found.append(reach)
        return found

    def _only_for(self, rows: set[int], kernel: set[int]) -> set[int]:
        """Those of `rows` that nothing but a kernel reads: sums of rows, spread to their size."""
        found: set[int] = set()
        for row in sorted(rows, reverse=True):
            if all(reader in kernel or reader in found for reader in self._graph.readers(row)):
                found.add(row)
        return found

    def _operands(self, product: int) -> set[int]:
        """What a product reads, before changes of layout."""
        graph, found = self._graph, set[int]()
        for read in graph.reads(product):
            while len(graph.reads(read)) == 1 and (
                graph.role[read] == RowRole.VIEW
                or (graph.role[read] == RowRole.ELEMENT and graph.moves[read])
            ):
                read = graph.reads(read)[0]
            found.add(read)
        return found


def without_unread(before: Program, after: Program) -> Program:
    """`after`, whose stash has no values that `before` read back and it does not any more.

    The stash of a pipeline is what other microbatches in flight have saved, in one row. Rows that
    read a value back say in their dims how many of it are there.
    """
    gone = _waiting(before).items() - _waiting(after).items()
    stash = is_any(after, OpClass.STASH)
    if not gone or not stash.any():
        return after
    num_bytes = after.result_bytes.copy()
    num_bytes[stash] = np.maximum(num_bytes[stash] - sum(size for _, size in gone), 0)
    return after.with_rows(result_bytes=num_bytes)


def _waiting(program: Program) -> dict[tuple[int, int], int]:
    """Bytes in the stash of each value that is read back, by chunk and number."""
    found = {}
    for row in np.flatnonzero(is_any(program, OpClass.SAVED)).tolist():
        waiting, chunk, number = map(int, StashDims.of(program.dims[row]))
        if waiting:
            found[chunk, number] = waiting * int(program.result_bytes[row])
    return found


def _of_saved(graph: SoftmaxGraph, row: int) -> SoftmaxReach | None:
    """What a saved value reaches; the value itself counts as stored."""
    found = graph.reach(row)
    if found is None or not found.products:
        return None
    found.rows.add(row)
    found.stored.add(row)
    return found


#: Rows that a softmax and its backward pass may have; JAX writes fewer than 60.
LIMIT = 400
#: Reads and writes of a part of an array.
_STORES = frozenset({OpClass.UPDATE_SLICE, OpClass.DYNAMIC_SLICE})


@dataclass
class SoftmaxReach:
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
        self._idle = ((roles.role == RowRole.ELEMENT) & (program.flops == 0)).tolist()
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
                self.role[row] == RowRole.ROWS
                or (
                    self.role[row] == RowRole.ELEMENT
                    and any(self.role[r] == RowRole.ROWS for r in self._through(row))
                )
            )
        ]

    def _through(self, row: int) -> list[int]:
        """Readers of a row, through changes of layout and type."""
        found: list[int] = []
        for reader in self.readers(row):
            if self.role[reader] == RowRole.VIEW or self._idle[reader]:
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
                elif self.role[read] == RowRole.MATMUL and self.results[read] == size:
                    products.add(read)
                elif self.role[read] in through and self.results[read] == size:
                    between.add(read)
                    pending.append(read)
        return products, between, masks

    def reach(self, product: int) -> SoftmaxReach | None:
        """What the values of a product reach; None if they leave through anything but products."""
        found = SoftmaxReach()
        pending = self.readers(product)
        while pending:
            row = pending.pop()
            if row in found.rows or row in found.products:
                continue
            role = self.role[row]
            if role == RowRole.MATMUL:
                found.products.add(row)
                continue
            if role == RowRole.ALONE and not self._carried[row]:
                return None
            found.rows.add(row)
            if self._stores[row] or self._carried[row]:
                found.stored.add(row)
            if len(found.rows) > LIMIT:
                return None
            pending += self.readers(row)
        self._views_of_stored(found)
        return found

    def _views_of_stored(self, found: SoftmaxReach) -> None:
        """A view of what is stored, and of what is written into a stack, count too."""
        for row in sorted(found.rows):
            views = self.role[row] == RowRole.VIEW and all(
                r in found.stored for r in self.reads(row)
            )
            if views or (self.role[row] == RowRole.VIEW and self._only_stored(row, found)):
                found.stored.add(row)

    def _only_stored(self, row: int, found: SoftmaxReach) -> bool:
        readers = self.readers(row)
        return bool(readers) and all(self._stores[r] or r in found.stored for r in readers)

    def _generated(self, program: Program, roles: Roles) -> tuple[list[bool], list[bool]]:
        """Rows made from nothing, also as loops carry them unchanged, and those that compare."""
        made = made_from_nothing(program, roles).tolist()
        free = self._scalars(program).tolist()
        element = np.isin(roles.role, (RowRole.ELEMENT, RowRole.VIEW)).tolist()
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
