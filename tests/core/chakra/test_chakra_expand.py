"""Programs become flat graphs: loops in trip order, rows without work routed through."""

from __future__ import annotations

import numpy as np
import pytest

from flint.backends.chakra.writing.expand import expand, occurrences
from flint.ir.mesh import Mesh
from flint.ir.program import Flag, Kind, Program, RegionKind
from tests.program_rows import ProgramBuilder

MESH = Mesh.parse("4")


def work(b: ProgramBuilder, *deps: int) -> int:
    return b.add("dot", deps=deps, flops=2, result_bytes=4)


def value(b: ProgramBuilder, *deps: int) -> int:
    return b.add("value", Kind.VALUE, deps=deps)


def graph(b: ProgramBuilder) -> list[tuple[int, list[int]]]:
    """(row, dependencies) of each node."""
    program = b.build()
    program.verify()
    nodes = expand(program)
    return [(int(nodes.row[i]), nodes.dependencies(i).tolist()) for i in range(len(nodes))]


def test_rows_without_work_route_their_dependencies_through() -> None:
    b = ProgramBuilder(MESH)
    p = b.add("param", Kind.PARAMETER, result_bytes=8)
    a = work(b, p)
    c = work(b, p)
    joined = value(b, value(b, a), c, p)
    free = b.add("reshape", deps=[joined])
    view = b.add("slice", deps=[free], result_bytes=8, flags=Flag.VIEW)
    work(b, view, a)
    assert graph(b) == [(1, []), (2, []), (7, [0, 1])]


def test_loop_carries_from_iteration_to_iteration() -> None:
    b = ProgramBuilder(MESH)
    first = work(b)
    b.begin_region(RegionKind.LOOP, 3)
    carried = value(b, first)
    body = work(b, carried, first)
    b.end_region([(carried, body)])
    work(b, body)
    assert graph(b) == [(0, []), (2, [0]), (2, [0, 1]), (2, [0, 2]), (3, [3])]


def test_carried_row_seen_from_outside_is_that_of_the_last_iteration() -> None:
    b = ProgramBuilder(MESH)
    first = work(b)
    b.begin_region(RegionKind.LOOP, 3)
    carried = value(b, first)
    body = work(b, carried)
    b.end_region([(carried, body)])
    work(b, carried)
    assert graph(b)[-1] == (3, [2])


def test_loop_that_never_runs_hands_its_initial_values_on() -> None:
    b = ProgramBuilder(MESH)
    first, other = work(b), work(b)
    b.begin_region(RegionKind.LOOP, 0)
    carried = value(b, first)
    body = work(b, carried, other)
    inner = work(b, other)
    b.end_region([(carried, body)])
    work(b, body, inner)
    assert graph(b) == [(0, []), (1, []), (5, [0])]


def test_values_that_swap_places() -> None:
    b = ProgramBuilder(MESH)
    x, y = work(b), work(b)
    b.begin_region(RegionKind.LOOP, 5)
    p, q = value(b, x), value(b, y)
    seen = work(b, p)
    b.end_region([(p, q), (q, p)])
    work(b, p, seen)
    deps = [d for _, d in graph(b)]
    assert deps == [[], [], [0], [1], [0], [1], [0], [0, 6]]


def test_nested_loops() -> None:
    b = ProgramBuilder(MESH)
    x = work(b)
    b.begin_region(RegionKind.LOOP, 2)
    outer = value(b, x)
    b.begin_region(RegionKind.LOOP, 3)
    inner = value(b, outer)
    step = work(b, inner, outer)
    b.end_region([(inner, step)])
    after = work(b, step, outer)
    b.end_region([(outer, after)])
    work(b, after)
    assert [d for _, d in graph(b)] == [
        [],
        [0], [0, 1], [0, 2], [0, 3],
        [4], [4, 5], [4, 6], [4, 7],
        [8],
    ]  # fmt: skip


def test_branch_not_taken_vanishes() -> None:
    b = ProgramBuilder(MESH)
    x = work(b)
    b.begin_region(RegionKind.BRANCH, 1, choice=0)
    taken = work(b, x)
    b.end_region()
    b.begin_region(RegionKind.BRANCH, 0, choice=0)
    other = work(b, x)
    b.end_region()
    work(b, value(b, taken, other))
    assert graph(b) == [(0, []), (1, [0]), (4, [1])]


def test_instances_count_executions() -> None:
    b = ProgramBuilder(MESH)
    b.begin_region(RegionKind.LOOP, 4)
    work(b)
    work(b)
    b.end_region()
    nodes = expand(b.build())
    assert nodes.instance.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_no_rows() -> None:
    assert len(expand(ProgramBuilder(MESH).build())) == 0


def test_occurrences() -> None:
    assert occurrences(np.array([5, 3, 5, 5, 3])).tolist() == [0, 0, 1, 2, 1]


def _interpret(program: Program) -> list[set[int]]:
    """The rule of Region, executed row by row: the slow reference that the fast one must match."""
    from flint.backends.chakra.writing.expand import works

    busy = works(program)
    inner = [[i for i, r in enumerate(program.regions) if r.parent == p] for p in range(-1, 99)]
    values: dict[int, set[int]] = {}
    nodes: list[set[int]] = []

    def run(region: int, start: int, stop: int, skip: set[int]) -> None:
        row = start
        while row < stop:
            child = next((c for c in inner[region + 1] if program.regions[c].start == row), None)
            if child is not None and program.regions[child].stop > row:
                loop(child)
                row = program.regions[child].stop
                continue
            if row not in skip:
                found = set().union(*(values[int(d)] for d in program.dependencies(row)))
                if busy[row]:
                    nodes.append(found)
                    found = {len(nodes) - 1}
                values[row] = found
            row += 1

    def loop(index: int) -> None:
        r = program.regions[index]
        start = {
            c: set().union(*(values[int(d)] for d in program.dependencies(c))) for c, _ in r.carries
        }
        if r.trip_count == 0:
            values.update({row: set() for row in range(r.start, r.stop)})
            values.update(start)
            for c, p in r.carries:  # a row that several carries name stands for all of them
                values[p] = values[p] | start[c]
        for trip in range(r.trip_count):
            values.update(start if trip == 0 else {c: values[p] for c, p in r.carries})
            run(index, r.start, r.stop, {c for c, _ in r.carries})

    run(-1, 0, len(program), set())
    return nodes


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_agree_with_the_rule(seed: int) -> None:
    rng = np.random.default_rng(seed)
    b = ProgramBuilder(MESH)
    work(b)

    def rows(depth: int) -> None:
        for _ in range(int(rng.integers(1, 5))):
            deps = rng.integers(0, len(b), size=2).tolist()
            choice = rng.random()
            if choice < 0.3 and depth < 3:
                b.begin_region(RegionKind.LOOP, int(rng.integers(0, 6)))
                carried = [value(b, int(d)) for d in rng.integers(0, len(b), size=2)]
                rows(depth + 1)
                produced = rng.integers(carried[0], len(b), size=2).tolist()
                if rng.random() < 0.5:
                    produced = carried[::-1]
                b.end_region(list(zip(carried, produced, strict=True)))
            elif choice < 0.6:
                value(b, *deps)
            else:
                work(b, *deps)

    rows(0)
    rows(0)
    program = b.build()
    program.verify()
    nodes = expand(program)
    assert [set(nodes.dependencies(i).tolist()) for i in range(len(nodes))] == _interpret(program)
