"""Whatever is changed of a program is a difference, unless it is a name; and it is found at its row."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

pytest.importorskip("jax")

from flint.ir.program import Kind, Program
from flint.ir.workload import Workload
from flint.tools.change.diff.difference import Side, compare
from flint.tools.change.diff.snapshot import snapshot
from tests.planted import Model, traced

NUMBERS = ("flops", "result_bytes", "operand_bytes", "comm_bytes", "mask")
NAMES = ("name", "scope", "location", "cause")


@cache
def captured() -> Program:
    return traced(Model(gathers="data")).program


def with_value(p: Program, column: str, row: int, value: int) -> Program:
    changed = getattr(p, column).copy()
    changed[row] = value
    return p.with_rows(**{column: changed})


def compared(p: Program) -> object:
    return compare(Side.of(Workload.single(captured())), Side.of(Workload.single(p)))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(NUMBERS), st.integers(0, 10_000), st.integers(1, 1000))
def test_any_number_of_any_row_that_works(column: str, at: int, more: int) -> None:
    p = captured()
    rows = np.flatnonzero(p.kind >= Kind.COMPUTE)
    row = int(rows[at % len(rows)])
    if column == "comm_bytes":
        row = int(np.flatnonzero(p.kind == Kind.COLLECTIVE)[at % int((p.kind == Kind.COLLECTIVE).sum())])  # fmt: skip
    found = compared(with_value(p, column, row, int(getattr(p, column)[row]) + more))
    assert not found.is_equal  # type: ignore[attr-defined]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["dtype", "shape", "group", "phase", "op"]), st.integers(0, 10_000))
def test_any_entry_of_any_row_that_works(column: str, at: int) -> None:
    p = captured()
    wanted = p.kind == Kind.COLLECTIVE if column == "group" else p.kind >= Kind.COMPUTE
    rows = np.flatnonzero(wanted)
    row = int(rows[at % len(rows)])
    values = np.unique(getattr(p, column)[rows])
    others = values[values != getattr(p, column)[row]]
    assume(len(others))
    changed = with_value(p, column, row, int(others[at % len(others)]))
    assert snapshot(Workload.single(changed)) != snapshot(Workload.single(p))
    assert not compared(changed).is_equal  # type: ignore[attr-defined]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_another_dependency(at: int) -> None:
    """A row reads another row than before, of all that it might read."""
    p = captured()
    edges = np.flatnonzero(p.kind[p.dep_owner] == Kind.COMPUTE)
    edge = int(edges[at % len(edges)])
    reader, first = int(p.dep_owner[edge]), int(p.dep_start[p.dep_owner[edge]])
    own = set(p.dependencies(reader).tolist())
    free = [r for r in range(reader) if r not in own and p.kind[r] == Kind.COMPUTE]
    assume(free)
    deps = p.deps.copy()
    deps[edge] = free[at % len(free)]
    stop = int(p.dep_start[reader + 1])
    deps[first:stop] = np.sort(deps[first:stop])
    assert not compared(replace(p, deps=deps)).is_equal  # type: ignore[attr-defined]


def test_trip_counts_and_branches() -> None:
    p = captured()
    for number, region in enumerate(p.regions):
        more = replace(region, trip_count=region.trip_count + 1)
        regions = (*p.regions[:number], more, *p.regions[number + 1 :])
        found = compared(replace(p, regions=regions))
        assert not found.is_equal  # type: ignore[attr-defined]
        assert found.changes  # type: ignore[attr-defined]


@pytest.mark.parametrize("column", NAMES)
def test_names_are_none(column: str) -> None:
    p = captured()
    rows = np.flatnonzero(p.kind >= Kind.COMPUTE) if column == "cause" else np.arange(len(p))
    values = getattr(p, column).copy()
    values[rows] = len(p.strings)
    renamed = p.with_rows(**{column: values}, strings=(*p.strings, "renamed"))
    assert compared(renamed).is_equal  # type: ignore[attr-defined]


def test_order_of_rows_that_do_not_depend_on_each_other_is_none() -> None:
    """Two rows that nothing connects change places."""
    p = captured()
    for row in range(len(p) - 1):
        free = row not in p.dependencies(row + 1) and p.region[row] == p.region[row + 1] == -1
        differ = p.op[row] != p.op[row + 1] and p.kind[row] == p.kind[row + 1] == Kind.COMPUTE
        if free and differ:
            order = np.arange(len(p))
            order[[row, row + 1]] = order[[row + 1, row]]
            break
    place = np.argsort(order)
    owners = place[p.dep_owner]
    columns = {c: getattr(p, c)[order] for c in ("opcode", "op", "kind", "dtype", "shape", "result_bytes", "operand_bytes", "flops", "dims", "product", "mask", "collective", "group", "comm_bytes", "route", "channel", "stream", "name", "scope", "location", "cause", "phase", "flags", "region")}  # fmt: skip
    alias = np.where(p.alias >= 0, place[p.alias], -1)[order].astype(p.alias.dtype)
    links = sorted(zip(owners.tolist(), place[p.deps].tolist(), strict=True))
    start = np.zeros(len(p) + 1, dtype=np.int64)
    np.cumsum(np.bincount(owners, minlength=len(p)), out=start[1:])
    regions = tuple(
        replace(r, carries=tuple((int(place[i]), int(place[o])) for i, o in r.carries))
        for r in p.regions
    )
    swapped = replace(
        p,
        **columns,
        alias=alias,
        dep_start=start,
        deps=np.array([d for _, d in links], dtype=p.deps.dtype),
        regions=regions,
    )
    swapped.verify()
    assert not (swapped.op == p.op).all()
    assert compared(swapped).is_equal  # type: ignore[attr-defined]
