"""Attention whose forward pass is elsewhere: the backward pass of a pipeline's stage has what it saved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from flint.ir.columns import is_any
from flint.ir.op_class import OpClass
from flint.ir.program import Program
from flint.passes.fusion.roles import Role
from flint.passes.fusion.softmax_graph import Reach, SoftmaxGraph


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
    reach: Reach
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
            if role == Role.MATMUL and (attention := self._attention(row)) is not None:
                yield attention

    def _attention(self, gradient: int) -> SplitAttention | None:
        """The attention of which a product is the gradient of the weights."""
        graph = self._graph
        reach = graph.reach(gradient)
        if reach is None or len(reach.products) != 2 or reach.stored:
            return None
        if not any(graph.role[row] == Role.ROWS for row in reach.rows):
            return None  # no softmax: its derivative sums along rows
        late, size = frozenset(reach.products), graph.results[gradient]
        products, between, masks = graph.products_above(reach.rows, size)
        taken = self._saved_for(gradient, late, size)
        values = {p for r in taken for p in r.products} - late
        if products != {gradient} or len(values) != 1 or gradient in values:
            return None
        whole = Reach(set(reach.rows), set(), set(late | values))
        for other in taken:
            whole.rows |= other.rows
            whole.stored |= other.stored
        whole.rows |= self._only_for(between, whole.rows | whole.products)
        return SplitAttention(gradient, min(values), late, whole, frozenset(masks))

    def _saved_for(self, gradient: int, late: frozenset[int], size: int) -> list[Reach]:
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
                graph.role[read] == Role.VIEW
                or (graph.role[read] == Role.ELEMENT and graph.moves[read])
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
        count, chunk, number, _ = program.dims[row].tolist()
        if count:
            found[chunk, number] = count * int(program.result_bytes[row])
    return found


def _of_saved(graph: SoftmaxGraph, row: int) -> Reach | None:
    """What a saved value reaches; the value itself counts as stored."""
    found = graph.reach(row)
    if found is None or not found.products:
        return None
    found.rows.add(row)
    found.stored.add(row)
    return found
