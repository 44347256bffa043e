"""Who needs what in any program, by following edges one at a time."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flint.ir.program import Program, RegionKind
from flint.passes.pipeline.split.reach import (
    choice_rows,
    common_region,
    dependent,
    needed,
    readers,
    readers_as_bits,
    region_rows,
)
from tests.random_programs import QUICK, programs

Edges = set[tuple[int, int]]


def reads(program: Program) -> Edges:
    """(read, reader), and what a loop produces with what it carries."""
    edges = {(d, row) for row in range(len(program)) for d in program.dependencies(row).tolist()}
    return edges | {(made, kept) for region in program.regions for kept, made in region.carries}


def reached(edges: Edges, seeds: Iterable[int]) -> set[int]:
    found: set[int] = set()
    waiting = list(seeds)
    while waiting:
        row = waiting.pop()
        if row not in found:
            found.add(row)
            waiting += [b for a, b in edges if a == row]
    return found


def branches(program: Program) -> dict[int, set[int]]:
    """Rows of all branches of each choice."""
    found: dict[int, set[int]] = {}
    for region in program.regions:
        if region.kind is RegionKind.BRANCH:
            found.setdefault(region.choice, set()).update(range(region.start, region.stop))
    return found


def some_rows(data: st.DataObject, program: Program) -> set[int]:
    last = len(program) - 1
    found = data.draw(st.sets(st.integers(0, last), min_size=1, max_size=3))
    return found | ({last} if data.draw(st.booleans()) else set())


@QUICK
@given(st.data())
def test_what_rows_need_is_what_leads_to_them(data: st.DataObject) -> None:
    program = data.draw(programs())
    roots = some_rows(data, program)
    backwards = {(b, a) for a, b in reads(program)}
    assert set(np.flatnonzero(needed(program, roots))) == reached(backwards, roots)


@QUICK
@given(st.data())
def test_bits_of_rows_are_of_all_that_need_them(data: st.DataObject) -> None:
    program = data.draw(programs())
    roots = {row: 1 << bit for bit, row in enumerate(sorted(some_rows(data, program)))}
    expected = [0] * len(program)
    for root, bit in roots.items():
        for row in np.flatnonzero(needed(program, [root])).tolist():
            expected[row] |= bit
    assert readers_as_bits(program, roots) == expected


@QUICK
@given(st.data())
def test_branches_of_a_choice_depend_on_what_one_of_them_does(data: st.DataObject) -> None:
    """And on what their results are chosen by: all rows of a choice are one."""
    program = data.draw(programs())
    seeds = np.zeros(len(program), dtype=np.bool_)
    seeds[list(some_rows(data, program))] = True
    edges = reads(program)
    for rows in branches(program).values():
        edges |= {(a, b) for a in rows for b in rows}
        edges |= {(reader, row) for a, reader in reads_of(program, rows) for row in rows}
    assert set(np.flatnonzero(dependent(program, seeds))) == reached(edges, np.flatnonzero(seeds))


def reads_of(program: Program, rows: set[int]) -> Edges:
    """Reads of these rows from outside of them."""
    return {
        (d, row)
        for row in range(len(program))
        for d in program.dependencies(row).tolist()
        if d in rows and row not in rows
    }


@QUICK
@given(st.data())
def test_rows_know_their_readers_and_regions(data: st.DataObject) -> None:
    program = data.draw(programs())
    count = len(program)
    for row, found in enumerate(readers(program)):
        assert found == [r for r in range(count) if row in program.dependencies(r)]
    assert {frozenset(r) for r in choice_rows(program)} == set(
        map(frozenset, branches(program).values())
    )

    def around(row: int) -> list[int]:
        """Regions of a row, the outermost first."""
        found = [n for n, r in enumerate(program.regions) if r.start <= row < r.stop]
        return sorted(found, key=lambda n: (program.regions[n].start, -program.regions[n].stop, n))

    for row in range(count):
        assert region_rows(program)[row] == (around(row) or [-1])[0]
    pairs = data.draw(st.lists(st.tuples(*[st.integers(0, count - 1)] * 2), max_size=10))
    for one, other in pairs:
        both = [region for region in around(one) if region in around(other)]
        assert common_region(program, one, other) == (both or [-1])[-1]
