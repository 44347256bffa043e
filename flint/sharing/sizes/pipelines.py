"""What passes of a pipeline read of earlier passes has the shape of a value of those."""

from __future__ import annotations

import numpy as np

from flint.ir.dims import StashDims
from flint.ir.op_class import OpClass
from flint.sharing.sizes.rows import Rows
from flint.sharing.sizes.symbols import Term


def saved_rows(rows: Rows) -> dict[tuple[int, int, int], int]:
    """The first row of each value that is saved, by how many wait, chunk and number."""
    p = rows.program
    found: dict[tuple[int, int, int], int] = {}
    for row in np.flatnonzero(p.op == OpClass.SAVED).tolist():
        waiting, chunk, number = (int(n) for n in StashDims.of(p.dims[row])[:3])
        found.setdefault((waiting, chunk, number), row)
    return found


def equate_saved(rows: Rows) -> None:
    """Equate what is read again: by its number, and with the value of its shape that was made.

    Nothing says which row made it. The n-th value of one shape and type that a loop produces, or
    else the n-th row of them, is taken for the n-th that is read.
    """
    p = rows.program
    saved = np.flatnonzero(p.op == OpClass.SAVED).tolist()
    if not saved:
        return
    made = _made(rows, saved[0])
    firsts: dict[tuple[int, ...], int] = {}
    nth: dict[tuple[int, int], int] = {}
    for row in saved:
        key = (int(p.dtype[row]), int(p.shape[row]))
        number = (*p.dims[row].tolist()[:3], *key)
        if number in firsts:
            rows.equate_rows(firsts[number], row)
            continue
        firsts[number] = row
        ways = made.get(key, [])
        if not ways:
            for term in rows.dims[row]:
                rows.symbols.freeze(term)
            continue
        rows.equate_rows(ways[nth.get(key, 0) % len(ways)], row)
        nth[key] = nth.get(key, 0) + 1


def _made(rows: Rows, before: int) -> dict[tuple[int, int], list[int]]:
    """Rows by type and shape: what loops produce, or else what has a value."""
    p = rows.program
    produced = [b for r in p.regions for a, b in r.carries if a != b and b < before]
    found: dict[tuple[int, int], list[int]] = {}
    for numbers in (produced, range(before)):
        loops = dict(found)
        for row in numbers:
            key = (int(p.dtype[row]), int(p.shape[row]))
            if key not in loops and row not in found.get(key, ()):
                found.setdefault(key, []).append(row)
    return found


def equate_stash(rows: Rows) -> None:
    """What waits in the stash are values that are read later, each as often as microbatches wait."""
    p = rows.program
    stashes = np.flatnonzero(p.op == OpClass.STASH).tolist()
    if not stashes:
        return
    waiting = [(n, rows.bytes(row)) for (n, _, _), row in saved_rows(rows).items() if n]
    terms = [(t[0] * n, t[1]) for n, t in waiting if t is not None]
    held = rows.symbols.sum(terms)
    row = stashes[0]
    alone = len(stashes) == 1 and len(terms) == len(waiting)
    if alone and rows.symbols.value(held) == int(p.result_bytes[row]):
        rows.symbols.equate(rows.elements(row), held)
        return
    for at in (*stashes, *saved_rows(rows).values()):
        for term in rows.dims[at]:
            rows.symbols.freeze(term)
