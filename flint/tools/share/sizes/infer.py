"""Reading the rows of a workload: which dimensions are equal, products or sums of others.

Rows that can be read in one way come first, then those whose dimensions are of equal size and tell
nothing by themselves. What no relation explains becomes constant.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np

from flint.ir.op_class import ATTENTION, ELEMENTWISE, OpClass
from flint.ir.program import Kind, RegionKind
from flint.ir.workload import Workload
from flint.tools.share.sizes.attention import attention
from flint.tools.share.sizes.copies import (
    broadcast,
    concatenate,
    dynamic_slice,
    elementwise,
    fresh,
    pad,
    ranked,
    reshape,
    same,
    slice_,
    transpose,
    update_slice,
)
from flint.tools.share.sizes.exchange import all_slice, collective, message
from flint.tools.share.sizes.launched import view_of
from flint.tools.share.sizes.lookups import gather, scatter
from flint.tools.share.sizes.pipelines import equate_saved, equate_stash
from flint.tools.share.sizes.products import matmul, reduce
from flint.tools.share.sizes.rows import Outcome, Rows
from flint.tools.share.sizes.symbols import Symbols, Term

Relation = Callable[[Rows, int], Outcome]

_OF_CLASS: Mapping[OpClass, Relation] = {
    **dict.fromkeys(ELEMENTWISE, elementwise),
    **dict.fromkeys((OpClass.CONSTANT, OpClass.IOTA, OpClass.FILL, OpClass.RANDOM), fresh),
    **dict.fromkeys((OpClass.JOIN, OpClass.REVERSE, OpClass.DROPOUT), same),
    **dict.fromkeys((OpClass.SOFTMAX, OpClass.SCAN), same),
    OpClass.VALUE: view_of,
    OpClass.COPY: view_of,
    OpClass.BROADCAST: broadcast,
    OpClass.RESHAPE: reshape,
    OpClass.TRANSPOSE: transpose,
    OpClass.SLICE: slice_,
    OpClass.PAD: pad,
    OpClass.CONCATENATE: concatenate,
    OpClass.DYNAMIC_SLICE: dynamic_slice,
    OpClass.UPDATE_SLICE: update_slice,
    OpClass.GATHER: gather,
    OpClass.SCATTER: scatter,
    OpClass.ALL_SLICE: all_slice,
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
        OpClass.RESULT,
        OpClass.TURN,
        OpClass.SAVED,
        OpClass.STASH,
        OpClass.NEIGHBOUR,
        OpClass.ACCUMULATOR,
        OpClass.HOST_VALUE,
    }
)


def inferred(workload: Workload) -> tuple[Symbols, list[Rows]]:
    """All programs of a workload, read."""
    symbols = Symbols()
    about = workload.metadata.get("pipeline") or {}
    microbatches = int(about.get("microbatches", 1))
    programs = [Rows(p, symbols, microbatches) for p in workload.programs]
    for rows in programs:
        _equate_loops(rows)
        _equate_parts(rows)
    ambiguous = [_read(rows, range(len(rows.program))) for rows in programs]
    for rows in programs:
        equate_saved(rows)
    _equate_messages(programs)
    _equate_crossing(workload, programs)
    for rows, left in zip(programs, ambiguous, strict=True):
        rows.is_last_try = True
        _read(rows, left)
    symbols.settle()
    for rows in programs:
        _settle_parts(rows)
        equate_stash(rows)
    symbols.settle()
    if workload.compiled_by or workload.measured_by:
        _freeze_all(programs)
    return symbols, programs


def _read(rows: Rows, numbers: Sequence[int]) -> list[int]:
    """Read rows; gives those that were ambiguous."""
    p, left = rows.program, []
    ops, kinds = p.op.tolist(), p.kind.tolist()
    measured = ((p.measured_ns > 0) | (p.cycles > 0)).tolist()
    for row in numbers:
        relation = _relation(OpClass(ops[row]), Kind(kinds[row]))
        outcome = Outcome.UNKNOWN if measured[row] else relation(rows, row)
        if outcome is Outcome.AMBIGUOUS:
            left.append(row)
        elif outcome is Outcome.UNKNOWN:
            rows.freeze(row)
    return left


def _relation(op: OpClass, kind: Kind) -> Relation:
    if kind is Kind.COLLECTIVE:
        return collective
    if kind in (Kind.SEND, Kind.RECV):
        return message
    if kind is Kind.PARAMETER or op in _SOURCES:
        return _own
    return _OF_CLASS.get(op, _unknown)


def _own(rows: Rows, row: int) -> Outcome:
    return Outcome.DONE


def _unknown(rows: Rows, row: int) -> Outcome:
    return Outcome.UNKNOWN


def _freeze_all(programs: Sequence[Rows]) -> None:
    """What a compiler or a profile says of a step holds for its sizes alone."""
    for rows in programs:
        for term in (t for dims in rows.dims for t in dims):
            rows.symbols.freeze(term)


def _equate_loops(rows: Rows) -> None:
    """Carried, first and produced values of loops have one shape."""
    for region in rows.program.regions:
        for carried, produced in region.carries:
            first = [d for d in rows.reads[carried] if d < region.start]
            for end in (produced, *first[:1]):
                if rows.shapes[end] == rows.shapes[carried]:
                    rows.equate_rows(end, carried)
                else:
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


def _equate_messages(programs: Sequence[Rows]) -> None:
    """Both ends of a channel, and all of its messages, have one shape."""
    ends: dict[int, list[tuple[Rows, int]]] = {}
    for rows in programs:
        p = rows.program
        for row in np.flatnonzero(p.kind >= Kind.SEND).tolist():
            ends.setdefault(int(p.channel[row]), []).append((rows, row))
    for found in ends.values():
        (first, at), *others = found
        for rows, row in others:
            if rows.shapes[row] == first.shapes[at]:
                first.equate_all(first.dims[at], rows.dims[row])
                first.symbols.equate(first.trips_around(at), rows.trips_around(row))
            else:
                first.freeze(at)
                rows.freeze(row)


def _equate_crossing(workload: Workload, programs: Sequence[Rows]) -> None:
    """Collectives between ranks of several programs: the n-th of a kind is one for all members.

    Where programs do not have as many of them they stay as they are.
    """
    if len(programs) == 1:
        return
    split = {axis for c in workload.classes for axis in c.where}
    listed = any(c.ranks for c in workload.classes)
    found: dict[Hashable, dict[int, list[int]]] = {}
    for number, rows in enumerate(programs):
        p = rows.program
        crossing = [listed or g.is_listed or any(a.name in split for a in g.axes) for g in p.groups]
        for row in np.flatnonzero((p.kind == Kind.COLLECTIVE) & (p.group >= 0)).tolist():
            group = int(p.group[row])
            if crossing[group]:
                key = (p.groups[group], int(p.collective[row]), p.dtypes[int(p.dtype[row])])
                of_key = found.setdefault((*key, rows.shapes[row]), {})
                of_key.setdefault(number, []).append(row)
    for members in found.values():
        _equate_members([[(programs[n], row) for row in at] for n, at in members.items()])


def _equate_members(members: Sequence[Sequence[tuple[Rows, int]]]) -> None:
    if len({len(of_program) for of_program in members}) > 1:
        for rows, row in (end for of_program in members for end in of_program):
            rows.freeze(row)
        return
    for (first, at), *others in zip(*members, strict=True):
        for rows, row in others:
            first.equate_all(first.dims[at], rows.dims[row])
            first.symbols.equate(first.trips_around(at), rows.trips_around(row))


def freeze_other_trips(programs: Sequence[Rows]) -> None:
    """Trip counts that no dimension shares stay as they are."""
    symbols = programs[0].symbols if programs else Symbols()
    used: set[int] = set()
    for rows in programs:
        for term in dict.fromkeys(t for dims in rows.dims for t in dims):
            used |= symbols.free_symbols(term)
    for rows in programs:
        for region, trips in zip(rows.program.regions, rows.trips, strict=True):
            if region.kind is RegionKind.LOOP and not symbols.free_symbols(trips) <= used:
                symbols.freeze(trips)
