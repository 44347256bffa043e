"""What look-ups and writes by index say of dimensions."""

from __future__ import annotations

import math

from flint.tools.share.sizes.placing import cut
from flint.tools.share.sizes.rows import Outcome, Rows
from flint.tools.share.sizes.symbols import ONE, Term, joined


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
