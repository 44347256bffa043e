"""What collectives say of dimensions: a group's size is a factor of one of them."""

from __future__ import annotations

import math

from flint.ir.op_class import Collective
from flint.ir.program import Kind
from flint.tools.share.sizes.copies import among, ends_in
from flint.tools.share.sizes.rows import Outcome, Rows
from flint.tools.share.sizes.symbols import Term, joined


def collective(rows: Rows, row: int) -> Outcome:
    """By kind; of what is read, the one operand whose sizes fit."""
    p = rows.program
    kind = Collective(int(p.collective[row]))
    reads = [r for r in rows.reads[row] if math.prod(rows.shapes[r]) == _payload(rows, row, kind)]
    if not reads or kind is Collective.PERMUTE and p.result_bytes[row] != rows.view.type_bytes[row]:
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


def all_slice(rows: Rows, row: int) -> Outcome:
    """Each device keeps its part of what all of a group hold."""
    if len(rows.reads[row]) != 1 or rows.program.group[row] < 0:
        return Outcome.UNKNOWN
    return split(rows, row, rows.reads[row][0], row)


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


def message(rows: Rows, row: int) -> Outcome:
    """What is sent is an operand; what is received comes from the other program."""
    p = rows.program
    if p.kind[row] == Kind.RECV:
        alias = int(p.alias[row])
        return ends_in(rows, row, alias) if alias >= 0 else Outcome.DONE
    if len(rows.reads[row]) != 1:
        return Outcome.UNKNOWN
    return among(rows, row, rows.reads[row][0])
