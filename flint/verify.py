"""The invariants of a Program. Every pass may rely on them, and the driver checks them after each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from flint.program import (
    COLUMN_TYPES,
    COLUMNS,
    Collective,
    Kind,
    Phase,
    Program,
    RegionKind,
)


def verify_program(program: Program) -> None:
    """Check all INVARIANTS in order. Raises AssertionError naming the first that fails."""
    for invariant in INVARIANTS:
        invariant(program)


def columns_have_one_length_and_type(p: Program) -> None:
    """Every column has its numpy type and one entry per row; `dims` has four per row."""
    n = len(p.opcode)
    for name in COLUMNS:
        column = getattr(p, name)
        assert column.dtype == COLUMN_TYPES[name], f"column {name} is {column.dtype}"
        expected = {"deps": (len(p.deps),), "dep_start": (n + 1,), "dims": (n, 4)}
        assert column.shape == expected.get(name, (n,)), f"column {name} has shape {column.shape}"


def indices_are_in_their_tables(p: Program) -> None:
    """Table indices are inside their tables; -1 is allowed where a row may have none.

    Columns of an enumeration hold its members.
    """
    for name, members in (("kind", Kind), ("collective", Collective), ("phase", Phase)):
        _require(p, getattr(p, name) < len(members), f"{name} is not a {members.__name__}")
    limits = {
        "opcode": (0, p.opcodes),
        "dtype": (0, p.dtypes),
        "shape": (0, p.shapes),
        "stream": (0, p.streams),
        "product": (0, p.products),
        "group": (-1, p.groups),
        "route": (-1, p.routes),
        "region": (-1, p.regions),
    } | dict.fromkeys(("name", "scope", "location", "cause"), (0, p.strings))
    for name, (low, table) in limits.items():
        column = getattr(p, name).astype(np.int64)
        _require(p, (column >= low) & (column < len(table)), f"{name} is outside its table")


def quantities_are_not_negative(p: Program) -> None:
    """Bytes, flops and dims are zero or more."""
    for name in ("result_bytes", "operand_bytes", "flops", "comm_bytes"):
        _require(p, getattr(p, name) >= 0, f"{name} is negative")
    _require(p, (p.dims >= 0).all(axis=1), "dims are negative")


def dependencies_point_back(p: Program) -> None:
    """Dependencies are ascending, unique, and smaller than their row."""
    assert int(p.dep_start[0]) == 0 and int(p.dep_start[-1]) == len(p.deps), "dep_start ends"
    assert (np.diff(p.dep_start) >= 0).all(), "dep_start decreases"
    if not len(p.deps):
        return
    owner = p.dep_owner
    bad = (p.deps < 0) | (p.deps >= owner)
    assert not bad.any(), f"row {owner[bad][0]} depends on row {p.deps[bad][0]}"
    same = owner[1:] == owner[:-1]
    repeated = same & (p.deps[1:] <= p.deps[:-1])
    assert not repeated.any(), f"row {owner[1:][repeated][0]} has unsorted or repeated dependencies"


def aliases_are_dependencies(p: Program) -> None:
    """A row shares storage with one of its dependencies, or with none."""
    found = np.zeros(len(p), dtype=np.bool_)
    found[p.dep_owner[p.deps == p.alias[p.dep_owner]]] = True
    _require(p, (p.alias == -1) | found, "alias is not a dependency")


def only_work_has_work(p: Program) -> None:
    """PARAMETER and VALUE rows have no flops, and only communication rows have comm_bytes."""
    idle = (p.kind == Kind.PARAMETER) | (p.kind == Kind.VALUE)
    _require(p, ~idle | (p.flops == 0), "a row without work has flops")
    communicates = p.kind >= Kind.COLLECTIVE
    _require(p, communicates == (p.comm_bytes > 0), "comm_bytes and kind disagree")


def communication_is_complete(p: Program) -> None:
    """A collective has a kind and a group of two or more; messages have a route and a channel.

    `sdy.all_slice` (each device keeps its part) holds the axes that it slices over as its group.
    """
    collective = p.kind == Kind.COLLECTIVE
    _require(p, collective == (p.collective != Collective.NONE), "collective kind is wrong")
    grouped = collective & (p.collective != Collective.PERMUTE)
    slices = np.array([o == "sdy.all_slice" for o in p.opcodes], dtype=np.bool_)[p.opcode]
    _require(p, (grouped | slices) == (p.group >= 0), "a group is missing or misplaced")
    routed = (collective & ~grouped) | (p.kind == Kind.SEND) | (p.kind == Kind.RECV)
    _require(p, routed == (p.route >= 0), "a route is missing or misplaced")
    paired = (p.kind == Kind.SEND) | (p.kind == Kind.RECV)
    _require(p, paired == (p.channel >= 0), "a channel is missing or misplaced")
    for index in {int(g) for g in p.group[p.group >= 0]}:
        assert p.groups[index].size(p.mesh) > 1, f"group {p.groups[index]} has one member"


def regions_nest(p: Program) -> None:
    """Regions lie inside their parents, siblings do not overlap, rows name their innermost one."""
    owner = np.full(len(p), -1, dtype=np.int64)
    for i, r in enumerate(p.regions):
        assert -1 <= r.parent < i, f"region {i} has parent {r.parent}"
        outer = p.regions[r.parent] if r.parent >= 0 else None
        low, high = (outer.start, outer.stop) if outer else (0, len(p))
        assert low <= r.start <= r.stop <= high, f"region {i} leaves its parent"
        assert r.trip_count >= 0, f"region {i} runs {r.trip_count} times"
        assert (owner[r.start : r.stop] == r.parent).all(), f"region {i} overlaps a sibling"
        owner[r.start : r.stop] = i
    _require(p, p.region == owner, "row does not name its innermost region")


def loops_carry_values(p: Program) -> None:
    """Carries go from rows inside a loop to VALUE rows directly inside it; branches carry none."""
    for i, r in enumerate(p.regions):
        if r.kind is RegionKind.BRANCH:
            assert r.trip_count <= 1 and not r.carries, f"branch {i} loops"
        for carried, produced in r.carries:
            assert r.start <= carried < r.stop, f"region {i} carries row {carried} outside it"
            assert r.start <= produced < r.stop, f"region {i} yields row {produced} outside it"
            assert p.kind[carried] == Kind.VALUE, f"carried row {carried} is not a VALUE"
            assert p.region[carried] == i, f"carried row {carried} is not directly in region {i}"


#: What `Program.verify` proves, in order.
INVARIANTS: tuple[Callable[[Program], None], ...] = (
    columns_have_one_length_and_type,
    indices_are_in_their_tables,
    quantities_are_not_negative,
    dependencies_point_back,
    aliases_are_dependencies,
    only_work_has_work,
    communication_is_complete,
    regions_nest,
    loops_carry_values,
)


def _require(p: Program, good: ArrayLike, what: str) -> None:
    holds = np.asarray(good)
    if not holds.all():
        at = int(np.flatnonzero(~holds)[0])
        opcode = int(p.opcode[at])
        named = p.opcodes[opcode] if opcode < len(p.opcodes) else f"opcode {opcode}"
        raise AssertionError(f"row {at} ({named}): {what}")
