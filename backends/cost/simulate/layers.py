"""Which layer each node belongs to: iterations of loops, numbers in scopes, and gathers that repeat."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from flint.backends.chakra.writing.expand import Nodes
from flint.backends.cost.simulate.preparing import Mask, Preparation
from flint.ir.program import Collective, Int64s, Kind, Program, RegionKind

#: The first component of a scope that ends in a number: `layers/3/mlp`, `block_3/attention`.
_NUMBERED = re.compile(r"(?:^|/)([^/]*\d)(?=/|$)")


def layer_runs(program: Program, nodes: Nodes, preparation: Preparation) -> Int64s:
    """For each node how many layers have begun before its own, in node order.

    A layer begins where a loop with collectives in it begins an iteration or ends, and where the
    first numbered component of the scope changes. Nodes without a number, such as those that a
    frontend adds, belong to the layer that is being run. A layer also begins with a gather of
    parameters that is like one of the layer before it.
    """
    return runs_of_rows(program, nodes.row.astype(np.int64), preparation)


def runs_of_rows(program: Program, rows: Int64s, preparation: Preparation) -> Int64s:
    """The same for rows in the order in which they run."""
    if not len(rows):
        return rows
    begins = _turns_begin(program, rows)
    numbers = _carried_on(_scope_numbers(program)[rows])
    begins |= (numbers[1:] != numbers[:-1]) & (numbers[:-1] >= 0)
    begins |= _repeated_gathers(program, preparation)[rows[1:]]
    return np.append(0, np.cumsum(begins))


def turns_of_rows(program: Program, rows: Int64s) -> Int64s:
    """For rows in the order in which they run how many iterations of loops, and stretches of rows
    outside of them, have begun before."""
    return np.append(0, np.cumsum(_turns_begin(program, rows))) if len(rows) else rows


def _turns_begin(program: Program, rows: Int64s) -> Mask:
    """For each row but the first whether an iteration of a loop begins there, or one has ended."""
    loops = loop_of_rows(program)[rows]
    again = (rows[1:] <= rows[:-1]) & (loops[1:] >= 0)
    return np.asarray(again | (loops[1:] != loops[:-1]))


def loop_of_rows(program: Program) -> Int64s:
    """For each row the innermost loop around it that has collectives, or -1."""
    collective = (program.kind == Kind.COLLECTIVE) & (program.collective != Collective.PERMUTE)
    found = np.full(len(program), -1, dtype=np.int64)
    for number, region in enumerate(program.regions):  # parents come before what is in them
        inside = slice(region.start, region.stop)
        if region.kind is RegionKind.LOOP and collective[inside].any():
            found[inside] = number
    return found


def follows_the_layers(program: Program, preparation: Preparation) -> Mask:
    """For each row whether it counts, slices, casts or gathers other parameters in each iteration.

    A loop with such gathers is one of layers: it gathers the part of stacked weights that its
    counter says. One that gathers the same weights in each iteration, as one over microbatches
    does, is not.
    """
    loops, changes = loop_of_rows(program), _changes_with(program, preparation)
    return np.asarray(preparation.counts | ((loops >= 0) & (changes == loops)))


def _changes_with(program: Program, preparation: Preparation) -> Int64s:
    """For each row the innermost loop around it with whose iterations its value changes, or -1.

    Only of what is made of parameters and counters alone; -1 for the rest.
    """
    found = np.full(len(program), -1, dtype=np.int64)
    around = _regions_around(program)
    carried = {
        row: number
        for number, region in enumerate(program.regions)
        for row, produced in region.carries
        if row != produced
    }
    inside = (program.region >= 0) & (preparation.ahead | preparation.gathers)
    for row in np.flatnonzero(inside).tolist():
        read = [*found[program.dependencies(row)].tolist(), carried.get(row, -1)]
        found[row] = max((n for n in read if n in around[int(program.region[row])]), default=-1)
    return found


def _regions_around(program: Program) -> list[frozenset[int]]:
    """For each region itself and those that it lies in."""
    found: list[frozenset[int]] = []
    for number, region in enumerate(program.regions):  # parents come before what is in them
        outer = found[region.parent] if region.parent >= 0 else frozenset()
        found.append(outer | {number})
    return found


def _repeated_gathers(program: Program, preparation: Preparation) -> Mask:
    """For each row whether a layer begins there because it gathers what this layer did already.

    Gathers are alike if they have the same place in the source, shape and type; where scopes have
    numbers, which say more, if they read the same too. What a loop of layers gathers for each
    iteration makes no layers of its own.
    """
    found = np.zeros(len(program), dtype=np.bool_)
    rows = np.arange(len(program), dtype=np.int64)
    turn, number = turns_of_rows(program, rows), _carried_on(_scope_numbers(program))
    alone = preparation.gathers & ~follows_the_layers(program, preparation)
    columns = (program.location, program.shape, program.dtype, program.result_bytes, turn, number)
    seen: set[tuple[int, ...]] = set()
    for row in np.flatnonzero(alone).tolist():
        read = _origin(program, row) if number[row] >= 0 else -1
        key = (read, *(int(c[row]) for c in columns))
        if key in seen:
            found[row] = True
            seen.clear()
        seen.add(key)
    return found


def _origin(program: Program, row: int) -> int:
    """The parameter, or the first of what else, that a gather reads through casts and slices."""
    while (read := program.dependencies(row)).size and int(read[0]) < row:
        row = int(read[0])
    return row


def _scope_numbers(program: Program) -> NDArray[np.int64]:
    """For each row the index of the first numbered component of its scope, or -1."""
    known: dict[str, int] = {}
    of_string = [-1] * len(program.strings)
    for at in np.unique(program.scope).tolist():
        match = _NUMBERED.search(program.strings[at])
        if match:
            prefix = program.strings[at][: match.end()]
            of_string[at] = known.setdefault(prefix, len(known))
    return np.array(of_string, dtype=np.int64)[program.scope]


def _carried_on(numbers: Int64s) -> Int64s:
    """Each -1 replaced by the last other number before it."""
    last = np.maximum.accumulate(np.where(numbers >= 0, np.arange(len(numbers)), -1))
    return np.where(last >= 0, numbers[np.maximum(last, 0)], -1)
