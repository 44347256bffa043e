"""What products of matrices and reductions say of dimensions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import permutations as orders
from itertools import product

from flint.ir.dims import AttentionDims
from flint.ir.op_class import Collective
from flint.ir.product_types import groups_of
from flint.tools.share.sizes.rows import Outcome, Rows, Shape, cut, embeddings, sides
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
    kept: list[int] = []
    for (operand, _, _, contracted), shape in zip((left, right), shapes, strict=True):
        gone = [rows.long(operand)[p] for p in contracted]
        kept += [size for i, size in enumerate(shape) if i not in gone]
    return tuple(kept) == rows.shapes[row]


def _reading(rows: Rows, row: int, left: _Side, right: _Side) -> tuple[_Pairs, list[Term]] | None:
    result = rows.long_dims(row)
    pairs: _Pairs = []
    inner: list[tuple[list[Term], Shape]] = []
    at = len(left[1])
    for (operand, batch, free, contracted), start in ((left, at), (right, at + len(left[2]))):
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


# What look-ups and writes by index say of dimensions.


def gather(rows: Rows, row: int) -> Outcome:
    """Rows of a table: the result is indices times the last dimensions of the table."""
    p = rows.program
    wanted = int(p.operand_bytes[row] - p.result_bytes[row])
    indices = [r for r in rows.reads[row] if rows.type_bytes(r) == wanted]
    tables = [r for r in rows.reads[row] if p.dtype[r] == p.dtype[row] and r not in indices[-1:]]
    if not indices or len(tables) != 1:
        return Outcome.UNKNOWN
    return _looked_up(rows, row, row, indices[-1], tables[0])


def scatter(rows: Rows, row: int) -> Outcome:
    """Rows of elements are written into an array of the result's shape."""
    p = rows.program
    wanted = int(p.operand_bytes[row] - 2 * p.result_bytes[row])
    reads = rows.reads[row]
    wholes = [r for r in reads if rows.shapes[r] == rows.shapes[row] and p.dtype[r] == p.dtype[row]]
    indices = [r for r in reads if rows.type_bytes(r) == wanted and r not in wholes]
    parts = [
        r
        for r in reads
        if rows.type_bytes(r) == p.result_bytes[row] and r not in (*wholes[:1], *indices[:1])
    ]
    if not (wholes and indices and parts):
        return Outcome.UNKNOWN
    alias = int(p.alias[row])
    rows.equate_rows(alias if alias in wholes else wholes[0], row)
    return _looked_up(rows, row, parts[0], indices[0], row)


def _looked_up(rows: Rows, row: int, part: int, indices: int, table: int) -> Outcome:
    """`part` are as many rows as indices say, of elements of the table."""
    _, number, _, size = rows.program.dims[row].tolist()
    shape, dims = rows.long_shape(part), rows.long_dims(part)
    ends = cut(shape, number, size)
    own = rows.long_shape(table)
    if (
        number * size == 0
        or ends is None
        or own[len(own) - ends[1] + ends[0] :] != shape[ends[0] :]
    ):
        return Outcome.UNKNOWN
    index_dims, count = rows.long_dims(indices), ends[0]
    each = math.prod(rows.long_shape(indices)) // number
    if rows.long_shape(indices)[:count] != shape[:count] or len(index_dims) > count + 1:
        return Outcome.UNKNOWN
    rows.equate_all(index_dims[:count], dims[:count])
    inner: list[Term] = dims[count:]
    rows.equate_all(rows.long_dims(table)[len(own) - len(inner) :], inner)
    if each > 1:
        rows.symbols.freeze(index_dims[-1])
    _equate_batches(rows, table, dims[:count], each)
    rows.work[row] = (ONE, joined(dims[:count]), ONE, joined(inner))
    return Outcome.DONE


def _equate_batches(rows: Rows, table: int, counted: list[Term], each: int) -> None:
    """A table of as many parts as there are rows, each looked up in its own."""
    own = rows.long_dims(table)
    lead = min(len(own) - 1, len(counted))
    value = rows.symbols.value
    if each == 1 and list(map(value, own[:lead])) == list(map(value, counted[:lead])):
        rows.equate_all(own[:lead], counted[:lead])


# What attention in one kernel says of dimensions.

#: Places of batch, heads, positions and size in arrays of four dimensions: the two usual layouts.
_LAYOUTS = ((0, 1, 2, 3), (0, 2, 1, 3))
_Named = tuple[Term, Term, Term, Term]


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


# What collectives say of dimensions: a group's size is a factor of one of them.


def collective(rows: Rows, row: int) -> Outcome:
    """By kind; of what is read, the one operand whose sizes fit."""
    p = rows.program
    kind = Collective(int(p.collective[row]))
    reads = [r for r in rows.reads[row] if math.prod(rows.shapes[r]) == _payload(rows, row, kind)]
    if not reads or kind is Collective.PERMUTE and not rows.is_whole[row]:
        return Outcome.UNKNOWN
    read = reads[0]
    if kind in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER) and not _is_as_sent(rows, row):
        whole, part = (row, read) if kind is Collective.ALL_GATHER else (read, row)
        return split(rows, row, whole, part)
    if kind is Collective.ALL_TO_ALL and rows.shapes[read] != rows.shapes[row]:
        return _exchanged(rows, row, read)
    if rows.shapes[read] != rows.shapes[row]:
        return Outcome.UNKNOWN
    rows.equate_rows(read, row)
    if kind is Collective.ALL_TO_ALL:
        rows.exchanged[row] = rows.group_factor(row)
    return Outcome.DONE


def _payload(rows: Rows, row: int, kind: Collective) -> int:
    """How many elements are read."""
    elements, p = math.prod(rows.shapes[row]), rows.program
    if kind not in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER) or _is_as_sent(rows, row):
        return elements
    size = p.groups[int(p.group[row])].size(p.mesh)
    if kind is Collective.ALL_GATHER:
        return elements // size if elements % size == 0 else -1
    return elements * size


def _is_as_sent(rows: Rows, row: int) -> bool:
    """Whether what is gathered is reduced again by those who read it: the shape stays."""
    p = rows.program
    return bool(p.result_bytes[row] == p.comm_bytes[row])


def all_slice(rows: Rows, row: int, read: int) -> Outcome:
    """Each device keeps its part of what all of a group hold."""
    return Outcome.UNKNOWN if rows.program.group[row] < 0 else split(rows, row, read, row)


def split(rows: Rows, row: int, whole: int, part: int) -> Outcome:
    """One dimension of the whole is that of the part times the group; or a new first one is."""
    factor = rows.group_factor(row)
    size = rows.symbols.value(factor)
    a, b = rows.shapes[whole], rows.shapes[part]
    if len(a) == len(b):
        other = [i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]
        if len(other) != 1 or a[other[0]] != b[other[0]] * size:
            return _split_in_several(rows, row, whole, part, other)
        for i, (x, y) in enumerate(zip(rows.dims[whole], rows.dims[part], strict=True)):
            rows.symbols.equate(x, joined((factor, y)) if i in other else y)
        return Outcome.DONE
    if math.prod(a) != math.prod(b) * size:
        return Outcome.UNKNOWN
    done = rows.symbols.reshape(rows.long_dims(whole), [factor, *rows.long_dims(part)])
    return Outcome.DONE if done else Outcome.UNKNOWN


def _split_in_several(rows: Rows, row: int, whole: int, part: int, places: list[int]) -> Outcome:
    """Each axis of the group splits a dimension, the first axis the first one."""
    p = rows.program
    group = p.groups[int(p.group[row])]
    a, b = rows.shapes[whole], rows.shapes[part]
    sizes = [p.mesh.axis_size(x) for x in group.axes]
    ratios = [a[i] // b[i] if a[i] % b[i] == 0 else 0 for i in places]
    if group.is_listed or ratios != sizes or len(set(sizes)) != len(sizes):
        return Outcome.UNKNOWN
    factors: dict[int, Term] = {
        i: rows.symbols.axis(x, p.mesh.axis_size(x))
        for i, x in zip(places, group.axes, strict=True)
    }
    for i, (x, y) in enumerate(zip(rows.dims[whole], rows.dims[part], strict=True)):
        rows.symbols.equate(x, joined((factors[i], y)) if i in factors else y)
    return Outcome.DONE


def _exchanged(rows: Rows, row: int, read: int) -> Outcome:
    """One dimension is split over the group, another is put together of it."""
    factor = rows.group_factor(row)
    size = rows.symbols.value(factor)
    a, b = rows.shapes[read], rows.shapes[row]
    if len(a) != len(b):
        return Outcome.UNKNOWN
    less = [i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x == y * size]
    more = [i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x * size == y]
    equal = [i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x == y]
    if len(less) != 1 or len(more) != 1 or len(equal) != len(a) - 2:
        return Outcome.UNKNOWN
    for i, (x, y) in enumerate(zip(rows.dims[read], rows.dims[row], strict=True)):
        one = joined((factor, x)) if i in more else x
        other = joined((factor, y)) if i in less else y
        rows.symbols.equate(one, other)
    return Outcome.DONE
