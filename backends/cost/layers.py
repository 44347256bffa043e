"""Which layer each node belongs to: iterations of loops, and numbers in scopes."""

from __future__ import annotations

import re

import numpy as np

from flint.backends.chakra.expand import Nodes
from flint.program import Collective, Int64s, Kind, Program, RegionKind

#: The first component of a scope that ends in a number: `layers/3/mlp`, `block_3/attention`.
_NUMBERED = re.compile(r"(?:^|/)([^/]*\d)(?=/|$)")


def layer_runs(program: Program, nodes: Nodes) -> Int64s:
    """For each node how many layers have begun before its own, in node order.

    A layer begins where a loop with collectives in it begins an iteration or ends, and where the
    first numbered component of the scope changes. Nodes without a number, such as those that a
    frontend adds, belong to the layer that is being run.
    """
    return runs_of_rows(program, nodes.row.astype(np.int64))


def runs_of_rows(program: Program, rows: Int64s) -> Int64s:
    """The same for rows in the order in which they run."""
    if not len(rows):
        return rows
    loops = loop_of_rows(program)[rows]
    again = (rows[1:] <= rows[:-1]) & (loops[1:] >= 0)
    begins = again | (loops[1:] != loops[:-1])
    numbers = _carried_on(_scope_numbers(program)[rows])
    begins |= (numbers[1:] != numbers[:-1]) & (numbers[:-1] >= 0)
    return np.append(0, np.cumsum(begins))


def loop_of_rows(program: Program) -> Int64s:
    """For each row the innermost loop around it that has collectives, or -1."""
    collective = (program.kind == Kind.COLLECTIVE) & (program.collective != Collective.PERMUTE)
    found = np.full(len(program), -1, dtype=np.int64)
    for number, region in enumerate(program.regions):  # parents come before what is in them
        inside = slice(region.start, region.stop)
        if region.kind is RegionKind.LOOP and collective[inside].any():
            found[inside] = number
    return found


def _scope_numbers(program: Program) -> Int64s:
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
