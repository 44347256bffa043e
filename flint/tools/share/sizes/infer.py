"""Reading the rows of a workload: which dimensions are equal, products or sums of others.

Rows that can be read in one way come first, then those whose dimensions are of equal size and tell
nothing by themselves. What no relation explains becomes constant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np

from flint.ir.dims import StashDims
from flint.ir.op_class import ATTENTION, ELEMENTWISE, OpClass
from flint.ir.program import Kind, RegionKind
from flint.ir.workload import Workload
from flint.tools.share.sizes.copies import (
    broadcast,
    concatenate,
    dynamic_slice,
    elementwise,
    fresh,
    pad,
    ranked,
    reshape,
    result_of,
    same,
    slice_,
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
    message,
    reduce,
    scatter,
)
from flint.tools.share.sizes.rows import Outcome, Rows
from flint.tools.share.sizes.symbols import Symbols, Term

# What passes of a pipeline read of earlier passes: values of their shape, and what waits for them.

#: What a saved value is told by: its dims, type and shape, and which of such it is in its unit.
_Key = tuple[int, ...]
_Type = tuple[int, int]


def equate_saved(rows: Rows) -> None:
    """Equate what is read again: in all units, and with a value of its shape that was made.

    Nothing says which row made it. The n-th value of one shape and type that a loop produces, or
    else the n-th row of them, is taken for the n-th that is read.
    """
    firsts: dict[_Key, int] = {}
    nth: Counter[_Type] = Counter()
    made: dict[int, dict[_Type, list[int]]] = {}
    for unit in _units(rows):
        made[unit[0]] = _made(rows, unit[0])
        for key, row in _told(rows, unit):
            if key in firsts:
                rows.equate_rows(firsts[key], row)
                continue
            firsts[key] = row
            kind = _type(rows, row)
            ways = next((m[kind] for m in made.values() if kind in m), [])
            if ways:
                rows.equate_rows(ways[nth[kind] % len(ways)], row)
                nth[kind] += 1
            else:
                _freeze(rows, row)


def equate_stash(rows: Rows) -> None:
    """What waits in the stash are values that are read later, each as often as microbatches wait."""
    p = rows.program
    stashes = np.flatnonzero(p.op == OpClass.STASH).tolist()
    if not stashes:
        return
    held = _held(rows, int(p.result_bytes[stashes[0]])) if len(stashes) == 1 else None
    if held is not None:
        rows.symbols.equate(rows.elements(stashes[0]), held)
        return
    freeze_saved(rows)


def freeze_saved(rows: Rows) -> None:
    """Leave what is saved and read again as it is."""
    for row in np.flatnonzero(np.isin(rows.program.op, (OpClass.STASH, OpClass.SAVED))).tolist():
        _freeze(rows, row)


def saved_terms(rows: Rows, chunk: int) -> list[Term] | None:
    """Bytes of each value of a chunk that is saved for a microbatch; None for types of few bits."""
    first = {
        key[:3]: rows.bytes(row)
        for unit in _units(rows)
        if not _is_numbered_anew(rows, unit)
        for key, row in _told(rows, unit)
        if key[1] == chunk
    }
    terms = [t for t in first.values() if t is not None]
    return terms if len(terms) == len(first) else None


def _held(rows: Rows, stash_bytes: int) -> Term | None:
    """The sum of what waits, if it is as much as the stash holds.

    Weights' gradients, where they have passes of their own, read what the pass before them saved.
    Their dims do not say how many of those wait: all units' alike, as often as is left.
    """
    parts: dict[_Key, tuple[int, Term | None]] = {}
    late: list[Term | None] = []
    for unit in _units(rows):
        if _is_numbered_anew(rows, unit):
            late = late or [rows.bytes(row) for row in unit]
            continue
        for key, row in _told(rows, unit):
            parts.setdefault(key, (key[0], rows.bytes(row)))
    terms = [(t[0] * n, t[1]) for n, t in parts.values() if n and t is not None]
    extra = [t for t in late if t is not None]
    if len(extra) < len(late) or any(t is None for n, t in parts.values() if n):
        return None
    value = rows.symbols.value
    left, each = stash_bytes - sum(map(value, terms)), sum(map(value, extra))
    if left and (not each or left < 0 or left % each):
        return None
    times = left // each if left else 0
    return rows.symbols.sum([*terms, *((t[0] * times, t[1]) for t in extra if times)])


def _units(rows: Rows) -> list[list[int]]:
    """Rows of saved values, one list for each pass that reads them."""
    saved = np.flatnonzero(rows.program.op == OpClass.SAVED)
    if not len(saved):
        return []
    parts = np.split(saved, np.flatnonzero(np.diff(saved) > 1) + 1)
    return [unit.tolist() for part in parts for unit in _cut(rows, part)]


def _cut(rows: Rows, run: np.ndarray) -> list[np.ndarray]:
    """A run of rows where numbers of saved values begin again."""
    number = StashDims.of(rows.program.dims[run]).number
    begins = np.flatnonzero((number[1:] == 0) & (number[:-1] > 0)) + 1
    return np.split(run, begins)


def _is_numbered_anew(rows: Rows, unit: list[int]) -> bool:
    return len(unit) > 1 and not rows.program.dims[unit].any()


def _told(rows: Rows, unit: list[int]) -> list[tuple[_Key, int]]:
    again: Counter[_Key] = Counter()
    found = []
    for row in unit:
        key = (*rows.program.dims[row].tolist()[:3], *_type(rows, row))
        found.append(((*key, again[key]), row))
        again[key] += 1
    return found


def _type(rows: Rows, row: int) -> _Type:
    return int(rows.program.dtype[row]), int(rows.program.shape[row])


def _made(rows: Rows, before: int) -> dict[_Type, list[int]]:
    """Rows by type and shape: what loops produce, or else what has a value."""
    p = rows.program
    produced = [b for r in p.regions for a, b in r.carries if a != b and b < before]
    others = np.flatnonzero(p.op[:before] != OpClass.SAVED).tolist()
    found: dict[_Type, list[int]] = {}
    for numbers in (produced, others):
        loops = frozenset(found)
        for row in numbers:
            key = _type(rows, row)
            if key not in loops:
                found.setdefault(key, []).append(row)
    return found


def _freeze(rows: Rows, row: int) -> None:
    for term in rows.dims[row]:
        rows.symbols.freeze(term)


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
    OpClass.PART: result_of,
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
        *(OpClass.RESULT, OpClass.TURN, OpClass.SAVED, OpClass.STASH, OpClass.NEIGHBOUR),
        *(OpClass.ACCUMULATOR, OpClass.HOST_VALUE, OpClass.FREED),
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
