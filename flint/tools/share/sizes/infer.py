"""Reading the rows of a program: which dimensions are equal, products or sums of others.

Rows that can be read in one way come first, then those whose dimensions are of equal size and tell
nothing by themselves. What no relation explains becomes constant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from flint.ir.op_class import ATTENTION, ELEMENTWISE, OpClass
from flint.ir.program import Kind, Program, RegionKind
from flint.tools.share.sizes.copies import (
    broadcast,
    concatenate,
    dynamic_slice,
    elementwise,
    fresh,
    pad,
    part_of,
    ranked,
    reshape,
    result_of,
    same,
    transpose,
    update_slice,
    view_of,
)
from flint.tools.share.sizes.products import (
    all_slice,
    attention,
    collective,
    gather,
    matmul,
    reduce,
    scatter,
)
from flint.tools.share.sizes.rows import Outcome, Rows
from flint.tools.share.sizes.symbols import Symbols, Term

Relation = Callable[[Rows, int], Outcome]


def _of_one(relation: Callable[[Rows, int, int], Outcome]) -> Relation:
    """A relation between a row and what it reads, where that is one row."""

    def of_row(rows: Rows, row: int) -> Outcome:
        reads = rows.reads[row]
        return relation(rows, row, reads[0]) if len(reads) == 1 else Outcome.UNKNOWN

    return of_row


_OF_CLASS: Mapping[OpClass, Relation] = {
    **dict.fromkeys(ELEMENTWISE, elementwise),
    **dict.fromkeys((OpClass.CONSTANT, OpClass.IOTA, OpClass.FILL, OpClass.RANDOM), fresh),
    **dict.fromkeys((OpClass.JOIN, OpClass.REVERSE, OpClass.DROPOUT), same),
    **dict.fromkeys((OpClass.SOFTMAX, OpClass.SCAN), same),
    OpClass.VALUE: view_of,
    OpClass.COPY: view_of,
    OpClass.BROADCAST: _of_one(broadcast),
    OpClass.RESHAPE: _of_one(reshape),
    OpClass.TRANSPOSE: _of_one(transpose),
    OpClass.SLICE: _of_one(part_of),
    OpClass.PAD: pad,
    OpClass.CONCATENATE: concatenate,
    OpClass.DYNAMIC_SLICE: dynamic_slice,
    OpClass.UPDATE_SLICE: update_slice,
    OpClass.GATHER: gather,
    OpClass.SCATTER: scatter,
    OpClass.ALL_SLICE: _of_one(all_slice),
    OpClass.PART: _of_one(result_of),
    OpClass.MATMUL: matmul,
    OpClass.REDUCE: reduce,
    OpClass.NORM: elementwise,
    OpClass.TOP_K: ranked,
    OpClass.SORT: ranked,
    **dict.fromkeys(ATTENTION, attention),
}
#: Rows that have dimensions of their own, or none.
_SOURCES = frozenset(
    {
        *(OpClass.RESULT, OpClass.NEIGHBOUR, OpClass.ACCUMULATOR, OpClass.HOST_VALUE),
        *(OpClass.FREED, OpClass.BARRIER),
    }
)


def inferred(program: Program) -> Rows:
    """The rows of a program, read."""
    rows = Rows(program, Symbols())
    _equate_loops(rows)
    _equate_parts(rows)
    ambiguous = _read(rows, range(len(program)))
    rows.is_last_try = True
    _read(rows, ambiguous)
    _settle_parts(rows)
    return rows


def _read(rows: Rows, numbers: Sequence[int]) -> list[int]:
    p, left = rows.program, []
    ops, kinds = p.op.tolist(), p.kind.tolist()
    measured = ((p.measured_ns > 0) | (p.cycles > 0)).tolist()
    for row in numbers:
        relation = _relation(OpClass(ops[row]), Kind(kinds[row]))
        outcome = Outcome.UNKNOWN if measured[row] else relation(rows, row)
        if outcome is Outcome.AMBIGUOUS:
            left.append(row)
        elif outcome is Outcome.UNKNOWN:
            rows.unexplained.add(row)
            rows.freeze(row)
    return left


def _relation(op: OpClass, kind: Kind) -> Relation:
    if kind is Kind.COLLECTIVE:
        return collective
    if kind is Kind.PARAMETER or op in _SOURCES:
        return lambda rows, row: Outcome.DONE  # it has dimensions of its own
    return _OF_CLASS.get(op, lambda rows, row: Outcome.UNKNOWN)


def _equate_loops(rows: Rows) -> None:
    """Carried, first and produced values of loops have one shape."""
    for region in rows.program.regions:
        for carried, produced in region.carries:
            first = [d for d in rows.reads[carried] if d < region.start]
            for end in (produced, *first[:1]):
                if rows.shapes[end] == rows.shapes[carried]:
                    rows.equate_rows(end, carried)
                else:
                    rows.unexplained.add(carried)
                    rows.freeze(end)
                    rows.freeze(carried)


def _equate_parts(rows: Rows) -> None:
    """Slices of one value that add up to one of its dimensions are all of it."""
    p = rows.program
    slices = np.flatnonzero((p.op == OpClass.SLICE) & (p.kind <= Kind.COMPUTE)).tolist()
    found: dict[tuple[int, int], list[int]] = {}
    for row in slices:
        if len(rows.reads[row]) != 1:
            continue
        read = rows.reads[row][0]
        a, b = rows.shapes[row], rows.shapes[read]
        other = [i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y]
        if len(a) == len(b) and len(other) == 1:
            found.setdefault((read, other[0]), []).append(row)
    for (read, along), parts in found.items():
        if sum(rows.shapes[r][along] for r in parts) == rows.shapes[read][along]:
            whole = rows.symbols.sum([rows.dims[r][along] for r in parts])
            rows.symbols.equate(rows.dims[read][along], whole)
        elif len(parts) > 1 and all(rows.shapes[r][along] == 1 for r in parts):
            rows.symbols.freeze(rows.dims[read][along])


def _settle_parts(rows: Rows) -> None:
    """Wholes that nobody said more of: a multiple of the part, or so many more."""
    symbols = rows.symbols
    for whole, part in rows.within:
        whole, part = symbols.expand(whole), symbols.expand(part)
        if symbols.difference(whole, part).only_grows:
            continue
        size, own = symbols.value(whole), symbols.value(part)
        if symbols.is_free(whole) and not symbols.free_symbols(whole) & symbols.free_symbols(part):
            times, rest = divmod(size, own)
            other: Term = (part[0] * times, part[1])
            beyond = symbols.sum([part, (size - own, ())])
            symbols.equate(whole, beyond if rest else other)
            continue
        symbols.freeze(whole)
        symbols.freeze(part)


def freeze_other_trips(rows: Rows) -> None:
    """Trip counts that no dimension shares stay as they are."""
    symbols = rows.symbols
    terms = dict.fromkeys(t for dims in rows.dims for t in dims)
    used = frozenset().union(*map(symbols.free_symbols, terms))
    for region, trips in zip(rows.program.regions, rows.trips, strict=True):
        if region.kind is RegionKind.LOOP and not symbols.free_symbols(trips) <= used:
            symbols.freeze(trips)
