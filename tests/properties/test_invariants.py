"""Random programs verify, and every invariant fails when its property is broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from flint.ir import verify
from flint.ir.mesh import AxisRef, Group, Mesh, Route
from flint.ir.program import Collective, Kind, Program, RegionKind
from tests.program_rows import ProgramBuilder
from tests.random_programs import QUICK, programs

X, Y = Group((AxisRef("x"),)), Group((AxisRef("y"),))
SHIFT = Route((AxisRef("x"),), 1)

# Rows of `sample()`, by what they are.
PARAM, CARRIED, DOT, REDUCE, INNER, SLICE, PERMUTE, SEND, RECV, LAST = range(10)


def sample() -> Program:
    """A small program with every kind of row, a loop in a loop and a branch."""
    b = ProgramBuilder(Mesh(("x", "y", "z"), (4, 2, 1)))
    b.add("func.argument", Kind.PARAMETER, result_bytes=64, shape=(16,), dtype="f32")
    b.begin_region(RegionKind.LOOP, 5)
    b.add("flint.carried", Kind.VALUE, deps=[PARAM])
    b.add("stablehlo.dot_general", deps=[PARAM, CARRIED], flops=16, dims=(1, 2, 2, 2))
    b.add(
        "sdy.all_reduce",
        Kind.COLLECTIVE,
        deps=[DOT],
        collective=Collective.ALL_REDUCE,
        group=X,
        comm_bytes=64,
    )
    b.begin_region(RegionKind.LOOP, 2)
    b.add("stablehlo.add", deps=[CARRIED, REDUCE], flops=16)
    b.end_region()
    b.end_region([(CARRIED, REDUCE)])
    b.add("sdy.all_slice", Kind.VALUE, deps=[INNER], group=Y)
    b.begin_region(RegionKind.BRANCH, 1, choice=0)
    b.add(
        "sdy.collective_permute",
        Kind.COLLECTIVE,
        collective=Collective.PERMUTE,
        route=SHIFT,
        comm_bytes=8,
    )
    b.end_region()
    b.add("stablehlo.send", Kind.SEND, deps=[DOT], route=SHIFT, channel=1, comm_bytes=8)
    b.add("stablehlo.recv", Kind.RECV, route=SHIFT, channel=1, comm_bytes=8)
    b.add("flint.result", Kind.VALUE, deps=[SLICE, PERMUTE, RECV])
    return b.build()


def entry(column: str, row: int, value: object) -> Callable[[Program], Program]:
    """A mutation that changes one entry of a column."""

    def mutate(program: Program) -> Program:
        changed = getattr(program, column).copy()
        changed[row] = value
        return replace(program, **{column: changed})

    return mutate


def column(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Program], Program]:
    """A mutation of a whole column."""
    return lambda program: replace(program, **{name: change(getattr(program, name))})


def region(index: int, **values: object) -> Callable[[Program], Program]:
    """A mutation of one region."""

    def mutate(program: Program) -> Program:
        regions = list(program.regions)
        regions[index] = replace(regions[index], **values)
        return replace(program, regions=tuple(regions))

    return mutate


def group_of_one(program: Program) -> Program:
    return replace(program, groups=(Group((AxisRef("z"),)), *program.groups[1:]))


def deep(program: Program) -> Program:
    """A hundred further regions inside the innermost."""
    inner = program.regions[1]
    more = tuple(replace(inner, trip_count=1, parent=i or 1) for i in range(3, 103))
    regions = (*program.regions, replace(more[0], parent=1), *more)
    return entry("region", INNER, len(regions) - 1)(replace(program, regions=regions))


MUTATIONS: dict[Callable[[Program], None], dict[str, Callable[[Program], Program]]] = {
    verify.columns_have_one_length_and_type: {
        "type": column("flops", lambda c: c.astype(np.int32)),
        "short": column("kind", lambda c: c[:-1]),
        "dims": column("dims", lambda c: c[:, :3]),
        "dep_start": column("dep_start", lambda c: c[:-1]),
    },
    verify.indices_are_in_their_tables: {
        "opcode": entry("opcode", DOT, 999),
        "dtype": entry("dtype", DOT, 255),
        "shape": entry("shape", DOT, -1),
        "group": entry("group", REDUCE, 2),
        "route": entry("route", SEND, 1),
        "region": entry("region", LAST, 3),
        "below": entry("region", LAST, -2),
        "stream": entry("stream", DOT, 1),
        "kind": entry("kind", DOT, len(Kind)),
        "collective": entry("collective", REDUCE, len(Collective)),
        "phase": entry("phase", DOT, 200),
        "name": entry("name", DOT, -1),
        "scope": entry("scope", DOT, 10**6),
        "location": entry("location", DOT, 10**6),
        "cause": entry("cause", REDUCE, -5),
    },
    verify.quantities_are_not_negative: {
        "result_bytes": entry("result_bytes", DOT, -1),
        "operand_bytes": entry("operand_bytes", DOT, -1),
        "flops": entry("flops", DOT, -1),
        "comm_bytes": entry("comm_bytes", REDUCE, -64),
        "dims": entry("dims", (DOT, 2), -2),
    },
    verify.sums_fit: {
        "flops": entry("flops", DOT, 2**63 - 1),
        "bytes": column("result_bytes", lambda c: np.full_like(c, 2**61)),
    },
    verify.dependencies_point_back: {
        "itself": lambda p: entry("deps", p.dep_start[DOT] + 1, DOT)(p),
        "forward": lambda p: entry("deps", p.dep_start[DOT] + 1, LAST)(p),
        "negative": lambda p: entry("deps", p.dep_start[DOT], -1)(p),
        "repeated": lambda p: entry("deps", p.dep_start[DOT], CARRIED)(p),
        "unsorted": lambda p: entry("deps", p.dep_start[LAST], PERMUTE)(
            entry("deps", p.dep_start[LAST] + 1, SLICE)(p)
        ),
        "starts late": entry("dep_start", 0, 1),
        "ends early": entry("dep_start", -1, 0),
        "start decreases": entry("dep_start", CARRIED + 1, 9),
    },
    verify.aliases_are_dependencies: {
        "itself": entry("alias", DOT, DOT),
        "not read": entry("alias", LAST, PARAM),
        "later": entry("alias", DOT, LAST),
        "below": entry("alias", DOT, -2),
    },
    verify.only_work_has_work: {
        "parameter": entry("flops", PARAM, 1),
        "value": entry("flops", LAST, 1),
        "compute communicates": entry("comm_bytes", DOT, 8),
        "collective without bytes": entry("comm_bytes", REDUCE, 0),
        "send without bytes": entry("comm_bytes", SEND, 0),
    },
    verify.communication_is_complete: {
        "collective without kind": entry("collective", REDUCE, Collective.NONE),
        "kind on compute": entry("collective", DOT, Collective.ALL_REDUCE),
        "no group": entry("group", REDUCE, -1),
        "group on compute": entry("group", DOT, 0),
        "group on permute": entry("group", PERMUTE, 0),
        "permute without route": entry("route", PERMUTE, -1),
        "send without route": entry("route", SEND, -1),
        "route on compute": entry("route", DOT, 0),
        "recv without channel": entry("channel", RECV, -1),
        "channel on compute": entry("channel", DOT, 4),
        "group of one": group_of_one,
    },
    verify.regions_nest: {
        "parent later": region(0, parent=1),
        "leaves parent": region(1, stop=SLICE + 1),
        "backwards": region(1, start=SLICE, stop=INNER),
        "beyond the end": region(2, stop=99),
        "overlap": region(2, start=INNER),
        "row in another": entry("region", INNER, 0),
        "row in none": entry("region", PERMUTE, -1),
    },
    verify.trip_counts_fit: {
        "negative trips": region(0, trip_count=-1),
        "together": lambda p: region(1, trip_count=2**32)(region(0, trip_count=2**31)(p)),
        "deep": deep,
    },
    verify.loops_carry_values: {
        "branch twice": region(2, trip_count=2),
        "branch carries": region(2, carries=((PERMUTE, PERMUTE),)),
        "carried outside": region(0, carries=((PARAM, REDUCE),)),
        "yielded outside": region(0, carries=((CARRIED, LAST),)),
        "carried twice": region(0, carries=((CARRIED, REDUCE), (CARRIED, DOT))),
        "carried computes": region(0, carries=((DOT, REDUCE),)),
        "carried in inner loop": lambda p: entry("kind", INNER, Kind.VALUE)(
            entry("flops", INNER, 0)(region(0, carries=((INNER, REDUCE),))(p))
        ),
    },
}
CASES = [
    pytest.param(invariant, mutate, id=f"{invariant.__name__}: {what}")
    for invariant, mutations in MUTATIONS.items()
    for what, mutate in mutations.items()
]


@QUICK
@given(programs())
def test_random_programs_verify(program: Program) -> None:
    program.verify()


def test_the_sample_verifies() -> None:
    sample().verify()


def test_every_invariant_is_broken_by_a_mutation() -> None:
    assert list(MUTATIONS) == list(verify.INVARIANTS)
    assert all(MUTATIONS.values())


@pytest.mark.parametrize(("invariant", "mutate"), CASES)
def test_a_broken_invariant_is_found(
    invariant: Callable[[Program], None], mutate: Callable[[Program], Program]
) -> None:
    broken = mutate(sample())
    for earlier in verify.INVARIANTS[: verify.INVARIANTS.index(invariant)]:
        earlier(broken)
    with pytest.raises(AssertionError):
        invariant(broken)
    with pytest.raises(AssertionError):
        broken.verify()
