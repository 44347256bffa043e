"""What passes of a pipeline read of earlier passes: values of their shape, and what waits for them."""

from __future__ import annotations

from collections import Counter

import numpy as np

from flint.ir.dims import StashDims
from flint.ir.op_class import OpClass
from flint.tools.share.sizes.rows import Rows
from flint.tools.share.sizes.symbols import Term

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
    """Rows of a unit by what they are told by."""
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
