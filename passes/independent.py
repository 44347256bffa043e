"""All-reduces that do not wait for each other, as a compiler finds them before it joins them."""

from __future__ import annotations

import numpy as np

from flint.program import Collective, Kind, Program

#: What all-reduces of a set have in common.
_Key = tuple[int, ...]


def independent_all_reduces(program: Program) -> list[list[int]]:
    """Sets of two or more all-reduces of one region, group, type and operator.

    None of a set needs another of it. Sets are filled one after the other, in program order, as
    XLA's `AllReduceCombiner` fills them; here they have no bound of bytes.
    """
    needs = _needs(program)
    found = []
    for rows in _alike(program).values():
        left = rows
        while len(left) > 1:
            chosen, left = _independent(left, needs)
            if len(chosen) > 1:
                found.append(chosen)
                _join(chosen, needs)
    return found


def _independent(rows: list[int], needs: dict[int, int]) -> tuple[list[int], list[int]]:
    """Rows of which none needs another, greedily, and the rest."""
    chosen: list[int] = []
    rest: list[int] = []
    have = wanted = 0
    for row in rows:
        if needs[row] & have or wanted >> row & 1:
            rest.append(row)
            continue
        chosen.append(row)
        have |= 1 << row
        wanted |= needs[row]
    return chosen, rest


def _join(rows: list[int], needs: dict[int, int]) -> None:
    """What needs one of the rows needs all, and what all of them need."""
    have = sum(1 << row for row in rows)
    wanted = 0
    for row in rows:
        wanted |= needs[row]
    for row, mask in needs.items():
        if mask & have:
            needs[row] = mask | have | wanted
    needs.update(dict.fromkeys(rows, wanted))


def _alike(program: Program) -> dict[_Key, list[int]]:
    found: dict[_Key, list[int]] = {}
    summed = (program.kind == Kind.COLLECTIVE) & (program.collective == Collective.ALL_REDUCE)
    columns = (program.region, program.group, program.dtype, program.opcode)
    for row in np.flatnonzero(summed).tolist():
        found.setdefault(tuple(int(c[row]) for c in columns), []).append(row)
    return found


def _needs(program: Program) -> dict[int, int]:
    """For each all-reduce, those that it needs, directly or not, as bits.

    What is read from a loop or branch needs all that is in it.
    """
    bits = {row for rows in _alike(program).values() for row in rows}
    needs = [0] * len(program)
    inside = [0] * (len(program.regions) + 1)
    region = program.region.tolist()
    start, deps = program.dep_start.tolist(), program.deps.tolist()
    chains = _chains(program)
    for row in range(len(program)):
        mask = 0
        for read in deps[start[row] : start[row + 1]]:
            left = [r for r in chains[region[read]] if r not in chains[region[row]]]
            mask |= inside[left[-1]] if left else needs[read] | (read in bits) << read
        needs[row] = mask
        for outer in chains[region[row]]:
            inside[outer] |= mask | (row in bits) << row
    return {row: needs[row] for row in bits}


def _chains(program: Program) -> list[tuple[int, ...]]:
    """For each region itself and those around it, from inside; none for -1."""
    found: list[tuple[int, ...]] = []
    for index, region in enumerate(program.regions):
        found.append((index, *(found[region.parent] if region.parent >= 0 else ())))
    return [*found, ()]
