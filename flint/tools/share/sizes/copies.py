"""What rows that compute element by element, or copy elements, say of dimensions."""

from __future__ import annotations

import math
from itertools import pairwise

from flint.ir.columns import bytes_of_type
from flint.ir.op_class import OpClass
from flint.ir.program import Flag
from flint.tools.share.sizes.rows import Outcome, Rows, embeddings, permutations
from flint.tools.share.sizes.symbols import ONE, joined


def elementwise(rows: Rows, row: int) -> Outcome:
    """Operands are as the result, aligned at the end; dimensions of 1 are spread."""
    shape, pairs = rows.shapes[row], []
    for read in rows.reads[row]:
        own = rows.shapes[read]
        if math.prod(own) == 1:
            continue
        tail = len(shape) - len(own)
        if tail < 0 or any(a not in (1, b) for a, b in zip(own, shape[tail:], strict=True)):
            return Outcome.UNKNOWN
        aligned = zip(rows.dims[read], rows.dims[row][tail:], own, strict=True)
        pairs += [(a, b) for a, b, size in aligned if size != 1]
    return rows.choose(row, [pairs])


def same(rows: Rows, row: int) -> Outcome:
    """All that is read has the shape of the result."""
    for read in rows.reads[row]:
        if rows.shapes[read] != rows.shapes[row]:
            return Outcome.UNKNOWN
        rows.equate_rows(read, row)
    return Outcome.DONE


def fresh(rows: Rows, row: int) -> Outcome:
    """Nothing is said: the result is made from nothing, or from scalars."""
    one = all(math.prod(rows.shapes[r]) == 1 for r in rows.reads[row])
    return Outcome.DONE if one else Outcome.UNKNOWN


def result_of(rows: Rows, row: int, read: int) -> Outcome:
    """One of several results of a row: in the shape of the first of them, or with some of its dimensions.

    A result with other dimensions (the state of random numbers) has its own.
    """
    alike = rows.shapes[read] == rows.shapes[row]
    found = same(rows, row) if alike else among(rows, row, read)
    return Outcome.DONE if found is Outcome.UNKNOWN else found


def broadcast(rows: Rows, row: int, read: int) -> Outcome:
    """The operand's dimensions are among the result's, in their order."""
    return _in_order(rows, row, read, row)


def among(rows: Rows, row: int, read: int) -> Outcome:
    """Dimensions of what is read, some of them, in their order: a part, or another of its results."""
    return _in_order(rows, row, row, read)


def _in_order(rows: Rows, row: int, few: int, many: int) -> Outcome:
    """The dimensions of one of two rows are among the other's, in their order; the last ones first."""
    places = embeddings(rows.long_shape(few), rows.long_shape(many))
    own, dims = rows.long_dims(few), rows.long_dims(many)
    return rows.choose(
        row, [list(zip(own, [dims[p] for p in where], strict=True)) for where in reversed(places)]
    )


def transpose(rows: Rows, row: int, read: int) -> Outcome:
    """Dimensions in another order."""
    if read in rows.exchanged:
        for whole in rows.reads[rows.reads[read][0]]:
            _equate_members(rows, read, whole, read)
    ways = permutations(rows.long_shape(read), rows.long_shape(row))
    if not ways and OpClass(int(rows.program.op[read])) is OpClass.ATTENTION_BACKWARD:
        for other in rows.reads[read]:  # another of its results, the gradient of what it reads
            if ways := permutations(rows.long_shape(other), rows.long_shape(row)):
                read = other
                break
    dims = rows.long_dims(read)
    if len(dims) != len(rows.long_dims(row)) and rows.is_plain[read]:
        return Outcome.UNKNOWN
    return rows.choose(
        row, [list(zip([dims[p] for p in w], rows.long_dims(row), strict=True)) for w in ways]
    )


def reshape(rows: Rows, row: int, read: int) -> Outcome:
    """The same elements in the same order; of types of equal width."""
    p = rows.program
    wide = [bytes_of_type(p.dtypes[int(p.dtype[at])], (8,)) for at in (read, row)]
    if wide[0] != wide[1] or math.prod(rows.shapes[read]) != math.prod(rows.shapes[row]):
        return Outcome.UNKNOWN
    if read in rows.exchanged:
        _equate_members(rows, row, read, read)
    if not rows.symbols.reshape(rows.long_dims(read), rows.long_dims(row)):
        return Outcome.UNKNOWN
    return Outcome.DONE


def _equate_members(rows: Rows, split: int, whole: int, exchanged: int) -> None:
    """What an all-to-all sends or received, seen as a part of each member: a dimension of the group's length."""
    factor, shape = rows.exchanged[exchanged], rows.shapes[split]
    size = rows.symbols.value(factor)
    for place, (own, rest) in enumerate(pairwise(shape)):
        merged = (*shape[:place], own * rest, *shape[place + 2 :])
        if own == size and merged == rows.shapes[whole]:
            rows.symbols.equate(rows.dims[split][place], factor)


def part_of(rows: Rows, part: int, whole: int) -> Outcome:
    """A part of a whole, with as many dimensions: equal ones are equal, others no longer."""
    if len(rows.shapes[part]) != len(rows.shapes[whole]):
        return Outcome.UNKNOWN
    return ends_in(rows, part, whole)


def ends_in(rows: Rows, part: int, whole: int, inside: int = -1) -> Outcome:
    """A part has the last dimensions of a whole, each no longer; of the others it is one.

    In the loop of the row `inside` it may be one of as many parts as the loop has iterations.
    """
    tail = len(rows.shapes[whole]) - len(rows.shapes[part])
    if tail < 0:
        return Outcome.UNKNOWN
    sizes = list(zip(rows.shapes[part], rows.shapes[whole][tail:], strict=True))
    if any(p > w for p, w in sizes):
        return Outcome.UNKNOWN
    for (p, w), a, b in zip(sizes, rows.dims[part], rows.dims[whole][tail:], strict=True):
        if p == w:
            rows.symbols.equate(a, b)
        elif inside >= 0 and w % p == 0 and (loop := rows.loop_of(inside, w // p)) is not None:
            rows.symbols.equate((loop[0] * a[0], loop[1] + a[1]), b)
        elif p != 1:
            rows.within.append((b, a))
    return Outcome.DONE


def pad(rows: Rows, row: int) -> Outcome:
    """The operand with more around it."""
    array = [r for r in rows.reads[row] if math.prod(rows.shapes[r]) > 1]
    return part_of(rows, array[0], row) if len(array) == 1 else Outcome.UNKNOWN


def concatenate(rows: Rows, row: int) -> Outcome:
    """Parts follow each other along one dimension; a part may be there several times."""
    shape, reads = rows.shapes[row], rows.reads[row]
    if not reads or any(len(rows.shapes[r]) != len(shape) for r in reads):
        return Outcome.UNKNOWN
    differing = {
        i
        for r in reads
        for i, (a, b) in enumerate(zip(rows.shapes[r], shape, strict=True))
        if a != b
    }
    if len(differing) > 1:
        return Outcome.UNKNOWN
    along = next(iter(differing), None)
    if along is not None:
        times, rest = divmod(shape[along], sum(rows.shapes[r][along] for r in reads))
        if rest or (times > 1 and len(reads) > 1):
            return Outcome.UNKNOWN
        parts = [rows.dims[r][along] for r in reads] * times
        rows.symbols.equate(rows.symbols.sum(parts), rows.dims[row][along])
    for read in reads:
        for i, (a, b) in enumerate(zip(rows.dims[read], rows.dims[row], strict=True)):
            if i != along:
                rows.symbols.equate(a, b)
    return Outcome.DONE


def dynamic_slice(rows: Rows, row: int) -> Outcome:
    """A part of an operand, where scalars say; one of the loop's iterations, or so many."""
    reads = rows.reads[row]
    wholes = [r for r in reads if _may_hold(rows, r, row)]
    if len(wholes) == 1:
        return ends_in(rows, row, wholes[0], row)
    if len(reads) == 1 and rows.shapes[reads[0]][1:] == rows.shapes[row]:
        return _one_of(rows, row, row, reads[0])
    return Outcome.UNKNOWN


def _one_of(rows: Rows, row: int, part: int, stack: int) -> Outcome:
    """One of a stack, without the dimension that they are stacked along, in the loop of `row`."""
    first, *others = rows.dims[stack]
    rows.equate_all(others, rows.dims[part])
    loop = rows.loop_of(row, rows.shapes[stack][0])
    if loop is not None:
        rows.symbols.equate(loop, first)
    return Outcome.DONE


def update_slice(rows: Rows, row: int) -> Outcome:
    """A part is written into an array of the result's shape."""
    p = rows.program
    reads = rows.reads[row]
    wholes = [r for r in reads if rows.shapes[r] == rows.shapes[row]]
    parts = [
        r for r in reads if rows.type_bytes(r) == p.result_bytes[row] and _may_hold(rows, row, r)
    ]
    parts += [r for r in reads if not parts and rows.shapes[r] == rows.shapes[row][1:]]
    if not wholes or not parts:
        return Outcome.UNKNOWN
    alias = int(p.alias[row])
    whole = alias if alias in wholes else wholes[0]
    parts = [r for r in parts if r != whole] or parts
    rows.equate_rows(whole, row)
    if len(rows.shapes[parts[0]]) < len(rows.shapes[row]):
        return _one_of(rows, row, parts[0], row)
    return ends_in(rows, parts[0], row, row)


def ranked(rows: Rows, row: int) -> Outcome:
    """Sorted along one dimension, or the largest k of it. Work is by the logarithm of what is kept: it is constant."""
    arrays = [r for r in rows.reads[row] if len(rows.shapes[r]) == len(rows.shapes[row])]
    length = int(rows.program.dims[row][3])
    if not arrays or length < 1:
        return Outcome.UNKNOWN
    if rows.program.op[row] == OpClass.TOP_K and len(arrays) == 1:
        return _largest(rows, row, arrays[0])
    for read in arrays:
        sizes = zip(rows.shapes[read], rows.shapes[row], strict=True)
        for i, (a, b) in enumerate(sizes):
            if a == b:
                rows.symbols.equate(rows.dims[read][i], rows.dims[row][i])
            if a != b or a == length:
                rows.symbols.freeze(rows.dims[read][i])
                rows.symbols.freeze(rows.dims[row][i])
    return Outcome.DONE


def _largest(rows: Rows, row: int, read: int) -> Outcome:
    """The largest k of one dimension, whose length may be another one."""
    own = rows.shapes[row]
    cut = [i for i, (a, b) in enumerate(zip(rows.shapes[read], own, strict=True)) if a != b]
    if len(cut) != 1:
        return Outcome.UNKNOWN
    (along,) = cut
    outer = [d for i, d in enumerate(rows.dims[read]) if i != along]
    rows.equate_all(outer, [d for i, d in enumerate(rows.dims[row]) if i != along])
    rows.symbols.freeze(rows.dims[row][along])
    rows.work[row] = (ONE, joined(outer), ONE, rows.dims[read][along])
    return Outcome.DONE


def _may_hold(rows: Rows, whole: int, part: int) -> bool:
    a, b = rows.shapes[whole], rows.shapes[part]
    long = math.prod(a) > 1 or (len(a) > 0 and len(a) == len(b))
    return len(a) == len(b) and long and all(x >= y for x, y in zip(a, b, strict=True))


# What other names of a value say of dimensions, as frameworks and loops make them.


def view_of(rows: Rows, row: int) -> Outcome:
    """A value as it is, in another shape, turned, spread or a part of it; or nothing that is read."""
    reads = rows.reads[row]
    if not reads:
        return Outcome.DONE
    if all(rows.shapes[r] == rows.shapes[row] for r in reads):
        return same(rows, row)
    if rows.program.flags[row] & Flag.IN_PLACE and len(reads) > 1:
        return update_slice(rows, row)
    if len(reads) != 1:
        return Outcome.UNKNOWN
    alike = math.prod(rows.shapes[reads[0]]) == math.prod(rows.shapes[row])
    if not (alike or rows.is_plain[reads[0]]):
        return among(rows, row, reads[0])
    return _other_shape(rows, row, reads[0])


def _other_shape(rows: Rows, row: int, read: int) -> Outcome:
    own, shape = rows.shapes[read], rows.shapes[row]
    if math.prod(own) == math.prod(shape):
        turned = sorted(rows.long_shape(read)) == sorted(rows.long_shape(row))
        if turned and rows.long_shape(read) != rows.long_shape(row):
            return transpose(rows, row, read)
        return reshape(rows, row, read)
    if len(own) == len(shape) and all(a in (1, b) for a, b in zip(own, shape, strict=True)):
        return elementwise(rows, row)
    return part_of(rows, row, read)
