"""What products of matrices and reductions say of dimensions."""

from __future__ import annotations

import math
from itertools import permutations as orders
from itertools import product

from flint.ir.product_types import groups_of
from flint.tools.share.rules.view import Shape
from flint.tools.share.sizes.placing import cut, embeddings, sides
from flint.tools.share.sizes.rows import Outcome, Rows
from flint.tools.share.sizes.symbols import ONE, Term, joined

#: More operands than these are looked at in no order.
_MOST_OPERANDS = 4
_Pairs = list[tuple[Term, Term]]


def matmul(rows: Rows, row: int) -> Outcome:
    """The result is batch, free of the first, free of the last; contracted are the others."""
    p = rows.program
    b, m, n, k = p.dims[row].tolist()
    ends = cut(rows.long_shape(row), b, m, n)
    if ends is None or groups_of(p.products[int(p.product[row])]) is not None:
        return Outcome.UNKNOWN
    options = _readings(rows, row, ends, k)
    ways = [pairs for pairs, _ in options]
    outcome = rows.choose(row, ways)
    if outcome is Outcome.DONE:
        same = rows.symbols.is_same
        _, contracted = max(options, key=lambda o: sum(same(a, b) for a, b in o[0]))
        dims = rows.long_dims(row)
        parts = (dims[: ends[0]], dims[ends[0] : ends[1]], dims[ends[1] :], contracted)
        rows.work[row] = tuple(map(joined, parts))  # type: ignore[assignment]
    return outcome


def _readings(rows: Rows, row: int, ends: list[int], k: int) -> list[tuple[_Pairs, list[Term]]]:
    """Ways to read two operands: pairs that are then equal, and contracted dimensions."""
    reads = rows.reads[row][:_MOST_OPERANDS]
    shape = rows.long_shape(row)
    batch, first, last = shape[: ends[0]], shape[ends[0] : ends[1]], shape[ends[1] :]
    pairs = [(reads[0], reads[0])] if len(reads) == 1 else list(orders(reads, 2))
    found, laid_out = [], []
    for one, other in pairs:
        ways = product(
            sides(rows.long_shape(one), batch, first, k),
            sides(rows.long_shape(other), batch, last, k),
        )
        for left, right in ways:
            reading = _reading(rows, row, (one, *left), (other, *right))
            if reading is not None:
                found.append(reading)
                if _is_laid_out(rows, row, (one, *left), (other, *right)):
                    laid_out.append(reading)
    return laid_out or found


_Side = tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def _is_laid_out(rows: Rows, row: int, left: _Side, right: _Side) -> bool:
    """Whether free dimensions, those of 1 too, are the result's in their order: told if one operand has none of 1."""
    shapes = [rows.shapes[operand] for operand, *_ in (left, right)]
    if left[1] or right[1] or all(1 in shape for shape in shapes):
        return False
    kept = [
        _without(shape, [rows.long(operand)[p] for p in contracted])
        for (operand, _, _, contracted), shape in zip((left, right), shapes, strict=True)
    ]
    return (*kept[0], *kept[1]) == rows.shapes[row]


def _without(shape: Shape, places: list[int]) -> Shape:
    return tuple(size for i, size in enumerate(shape) if i not in places)


def _reading(rows: Rows, row: int, left: _Side, right: _Side) -> tuple[_Pairs, list[Term]] | None:
    result = rows.long_dims(row)
    pairs: _Pairs = []
    inner: list[tuple[list[Term], Shape]] = []
    at = len(left[1])
    for (operand, batch, free, contracted), start in (
        (left, at),
        (right, at + len(left[2])),
    ):
        dims, shape = rows.long_dims(operand), rows.long_shape(operand)
        pairs += [(dims[p], result[i]) for i, p in enumerate(batch)]
        pairs += [(dims[p], result[start + i]) for i, p in enumerate(free)]
        inner.append(([dims[p] for p in contracted], tuple(shape[p] for p in contracted)))
    (one, sizes), (other, others) = inner
    if sorted(sizes) != sorted(others):
        return None
    rest = list(zip(other, others, strict=True))
    for term, size in zip(one, sizes, strict=True):
        fitting = [i for i, (_, s) in enumerate(rest) if s == size]
        best = max(fitting, key=lambda i: rows.symbols.is_same(rest[i][0], term))
        pairs.append((term, rest.pop(best)[0]))
    return pairs, one


def reduce(rows: Rows, row: int) -> Outcome:
    """Dimensions of the operand that are not the result's are reduced."""
    p = rows.program
    _, kept, _, reduced = p.dims[row].tolist()
    elements = math.prod(rows.shapes[row])
    arrays = [
        r
        for r in rows.reads[row]
        if math.prod(rows.shapes[r]) == kept * reduced and kept == elements
    ]
    if not arrays or kept * reduced == 0:
        return Outcome.UNKNOWN
    read = arrays[0]
    for other in arrays[1:]:
        if rows.shapes[other] == rows.shapes[read]:
            rows.equate_rows(read, other)
    shape, dims = rows.long_shape(read), rows.long_dims(read)
    places = embeddings(rows.long_shape(row), shape)
    pairs = [list(zip([dims[q] for q in w], rows.long_dims(row), strict=True)) for w in places]
    outcome = rows.choose(row, pairs)
    if outcome is Outcome.DONE:
        same = rows.symbols.is_same
        best = max(range(len(pairs)), key=lambda i: sum(same(a, b) for a, b in pairs[i]))
        inner = [d for i, d in enumerate(dims) if i not in places[best]]
        rows.work[row] = (ONE, rows.elements(row), ONE, joined(inner))
    return outcome
