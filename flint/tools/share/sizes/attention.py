"""What attention in one kernel says of dimensions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from flint.ir.dims import AttentionDims
from flint.tools.share.sizes.rows import Outcome, Rows
from flint.tools.share.sizes.symbols import ONE, Term, joined

#: Places of batch, heads, positions and size in arrays of four dimensions: the two usual layouts.
_LAYOUTS = ((0, 1, 2, 3), (0, 2, 1, 3))
_Named = tuple[Term, Term, Term, Term]
_Pairs = list[tuple[Term, Term]]


def attention(rows: Rows, row: int) -> Outcome:
    """Queries and what is of their shape, and keys and values with as many heads or a part of them."""
    d = AttentionDims(*rows.program.dims[row].tolist())
    options = []
    for own in _results(rows, row, d):
        options += [(own, pairs, keys) for pairs, keys in _operands(rows, row, own, d)]
    outcome = rows.choose(row, [pairs for _, pairs, _ in options])
    if outcome is Outcome.DONE:
        same = rows.symbols.is_same
        own, _, keys = max(options, key=lambda o: sum(same(a, b) for a, b in o[1]))
        together = (ONE, joined(own[:3])) if d.heads == 1 else (joined(own[:2]), own[2])
        rows.work[row] = (*together, keys, own[3])
    return outcome


def _results(rows: Rows, row: int, d: AttentionDims[int]) -> Iterator[_Named]:
    """Readings of the result; frameworks count queries of all heads together, and heads come first."""
    value = rows.symbols.value
    for positions in (d.queries, None):
        for batch, heads, at, size in _named(rows, row, positions):
            number = value(batch) * value(heads)
            told = (number, value(at)) == (d.heads, d.queries)
            told |= d.heads == 1 and number * value(at) == d.queries
            if told and value(size) == d.size:
                yield batch, heads, at, size
                if positions is None:
                    return


def _named(rows: Rows, row: int, positions: int | None) -> Iterator[_Named]:
    """Readings of an array as batch, heads, so many positions, and size."""
    dims = rows.dims[row]
    if len(dims) != len(_LAYOUTS[0]):
        return
    for layout in _LAYOUTS:
        batch, heads, at, size = (dims[i] for i in layout)
        if positions is None or rows.symbols.value(at) == positions:
            yield batch, heads, at, size


def _operands(
    rows: Rows, row: int, own: _Named, d: AttentionDims[int]
) -> Iterator[tuple[_Pairs, Term]]:
    ways: list[list[tuple[_Pairs, Term | None]]] = []
    for read in rows.reads[row]:
        of_read: list[tuple[_Pairs, Term | None]] = []
        if len(rows.dims[read]) == len(own):
            of_read = [*_of_queries(rows, read, own), *_of_keys(rows, read, own, d)]
            if not of_read:
                return
        ways.append(of_read or [([], None)])
    for chosen in product(*ways):
        keys = [k for _, k in chosen if k is not None]
        found = [pair for pairs, _ in chosen for pair in pairs]
        if not keys:
            if rows.symbols.value(own[2]) == d.keys:
                yield found, own[2]
            continue
        yield [*found, *((keys[0], k) for k in keys[1:])], keys[0]


def _of_queries(rows: Rows, read: int, own: _Named) -> Iterator[tuple[_Pairs, Term | None]]:
    """Arrays of one row for each query: queries, results, gradients; or one number for each."""
    value = rows.symbols.value
    for named in _named(rows, read, value(own[2])):
        sizes = [(value(a), value(b)) for a, b in zip(named[:3], own[:3], strict=True)]
        if all(a == b for a, b in sizes) and value(named[3]) in (1, value(own[3])):
            pairs = list(zip(named, own, strict=True))
            yield (pairs if value(named[3]) != 1 else pairs[:3]), None


def _of_keys(
    rows: Rows, read: int, own: _Named, d: AttentionDims[int]
) -> Iterator[tuple[_Pairs, Term | None]]:
    """Keys and values; each of their heads may be for several heads of queries."""
    value = rows.symbols.value
    for batch, heads, positions, size in _named(rows, read, d.keys):
        times, rest = divmod(value(own[1]), value(heads))
        if rest or value(batch) != value(own[0]) or value(size) != value(own[3]):
            continue
        shared: Term = (times * heads[0], heads[1])
        yield [(batch, own[0]), (own[1], shared), (size, own[3])], positions
