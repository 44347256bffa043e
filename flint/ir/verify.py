"""The invariants of a Program. Every pass may rely on them, and the driver checks them after each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flint.ir.op_class import OpClass
from flint.ir.program_columns import (
    COLUMN_TYPES,
    MOST_INT64,
    MOST_NESTED_REGIONS,
    Collective,
    Int64s,
    Kind,
    Phase,
    ProgramColumns,
    RegionKind,
)

#: Columns that passes add up over rows.
QUANTITIES = ("result_bytes", "operand_bytes", "flops", "comm_bytes")
_TYPES = {name: np.dtype(dtype) for name, dtype in COLUMN_TYPES.items()}
_ENUMERATIONS = {"op": OpClass, "kind": Kind, "collective": Collective, "phase": Phase}
#: Columns of an enumeration: it, and for each number of a byte whether it is a member.
_MEMBERS = {
    name: (members, np.isin(np.arange(256), list(members)))
    for name, members in _ENUMERATIONS.items()
}
#: numpy compares with a plain number five times faster than with a member.
_COLLECTIVE, _SEND, _RECV = int(Kind.COLLECTIVE), int(Kind.SEND), int(Kind.RECV)


def groups_fit_the_mesh(p: ProgramColumns) -> None:
    """Groups and routes are of axes, ranks and positions that the mesh has, each once.

    Raises FlintError FL102 for axes that the mesh lacks.
    """
    for i, group in enumerate(p.groups):
        p.mesh.require(group.axes)
        ranks = np.array([r for members in group.ranks for r in members], dtype=np.int64)
        _distinct(ranks, p.mesh.size, f"group {i}: a rank")
        hold(all(group.ranks), f"group {i}: a list of no ranks")
        positions = np.array(group.positions, dtype=np.int64)
        _distinct(positions, p.mesh.group_size(group.axes), f"group {i}: a position")
    for i, route in enumerate(p.routes):
        p.mesh.require(route.axes)
        size = p.mesh.group_size(route.axes) if route.axes else p.mesh.size
        hold(abs(route.offset) <= size, f"route {i}: offset {route.offset} among {size}")
        pairs = np.array(route.pairs, dtype=np.int64).reshape(-1, 2)
        for ends in pairs.T:
            _distinct(ends, size, f"route {i}: an end")


def _distinct(numbers: NDArray[np.int64], size: int, what: str) -> None:
    """Numbers are in range(size), each once."""
    if not len(numbers):
        return
    hold(int(numbers.min()) >= 0 and int(numbers.max()) < size, f"{what} is not below {size}")
    hold(len(np.unique(numbers)) == len(numbers), f"{what} appears twice")


def verify_program(program: ProgramColumns) -> None:
    """Check all INVARIANTS in order. Raises AssertionError naming the first that fails."""
    for invariant in INVARIANTS:
        invariant(program)


def columns_have_one_length_and_type(p: ProgramColumns) -> None:
    """Every column has its numpy type and one entry per row; `dims` has four per row."""
    n = len(p.opcode)
    others = {"deps": (p.deps.size,), "dep_start": (n + 1,), "dims": (n, 4)}
    for name, dtype in _TYPES.items():
        column = getattr(p, name)
        if column.dtype != dtype:
            raise AssertionError(f"column {name} is {column.dtype}")
        if column.shape != others.get(name, (n,)):
            shapes = f"{column.shape}, opcode {p.opcode.shape}"
            raise AssertionError(f"column {name} has shape {shapes}")


def indices_are_in_their_tables(p: ProgramColumns) -> None:
    """Table indices are inside their tables; -1 is allowed where a row may have none.

    Columns of an enumeration hold its members.
    """
    for name, (members, known) in _MEMBERS.items():
        _require(p, known[getattr(p, name)], f"{name} is not of {members.__name__}")
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
        column = getattr(p, name)
        if len(column) and not low <= int(column.min()) <= int(column.max()) < len(table):
            column = column.astype(np.int64)
            _require(p, (column >= low) & (column < len(table)), f"{name} is outside its table")


def quantities_are_not_negative(p: ProgramColumns) -> None:
    """Bytes, flops, dims, cycles, times and numbers of calls are zero or more."""
    for name in (*QUANTITIES, "compiled", "cycles", "measured_ns", "launcher"):
        _require(p, getattr(p, name) >= 0, f"{name} is negative")
    _require(p, (p.dims >= 0).all(axis=1), "dims are negative")


def sums_fit(p: ProgramColumns) -> None:
    """Bytes and flops of all rows together fit int64: no sum that a pass makes can overflow."""
    for name in QUANTITIES:
        total = exact_sum(getattr(p, name))
        hold(total <= MOST_INT64, f"{name} of all rows are {total:,}, more than {MOST_INT64:,}")


def exact_sum(values: Int64s) -> int:
    """Sum of non-negative int64 as a Python int: halves cannot overflow below 2**31 rows."""
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())


def dependencies_point_back(p: ProgramColumns) -> None:
    """Dependencies are ascending, unique, and smaller than their row."""
    ends = int(p.dep_start[0]) == 0 and int(p.dep_start[-1]) == len(p.deps)
    hold(ends, "dep_start does not begin at 0 and end at the number of dependencies")
    hold(bool((np.diff(p.dep_start) >= 0).all()), "dep_start decreases")
    if not len(p.deps):
        return
    owner = p.dep_owner
    bad = np.flatnonzero((p.deps < 0) | (p.deps >= owner))[:1]
    if len(bad):
        raise AssertionError(f"row {owner[bad][0]} depends on row {p.deps[bad][0]}")
    repeated = np.flatnonzero((owner[1:] == owner[:-1]) & (p.deps[1:] <= p.deps[:-1]))[:1]
    if len(repeated):
        raise AssertionError(f"row {owner[repeated + 1][0]} has unsorted or repeated dependencies")


def aliases_are_dependencies(p: ProgramColumns) -> None:
    """A row shares storage with one of its dependencies, or with none."""
    found = np.zeros(len(p), dtype=np.bool_)
    found[p.dep_owner[p.deps == p.alias[p.dep_owner]]] = True
    _require(p, (p.alias == -1) | found, "alias is not a dependency")


def only_work_has_work(p: ProgramColumns) -> None:
    """PARAMETER and VALUE rows have no flops, and only communication rows have comm_bytes."""
    idle = (p.kind == int(Kind.PARAMETER)) | (p.kind == int(Kind.VALUE))
    _require(p, ~idle | (p.flops == 0), "a row without work has flops")
    communicates = p.kind >= _COLLECTIVE
    _require(p, communicates == (p.comm_bytes > 0), "comm_bytes and kind disagree")


def communication_is_complete(p: ProgramColumns) -> None:
    """A collective has a kind and a group of two or more; messages have a route and a channel.

    An ALL_SLICE (each device keeps its part) of one dimension holds the axes that it slices over as
    its group.
    """
    collective = p.kind == _COLLECTIVE
    _require(p, collective == (p.collective != int(Collective.NONE)), "collective kind is wrong")
    grouped = collective & (p.collective != int(Collective.PERMUTE))
    slices = p.op == int(OpClass.ALL_SLICE)
    _require(p, ~grouped | (p.group >= 0), "a group is missing")
    _require(p, grouped | slices | (p.group < 0), "a group is misplaced")
    paired = (p.kind == _SEND) | (p.kind == _RECV)
    routed = (collective & ~grouped) | paired
    _require(p, routed == (p.route >= 0), "a route is missing or misplaced")
    _require(p, paired == (p.channel >= 0), "a channel is missing or misplaced")
    for index in np.unique(p.group[p.group >= 0]).tolist():
        hold(p.groups[index].size(p.mesh) > 1, f"group {p.groups[index]} has one member")


def regions_nest(p: ProgramColumns) -> None:
    """Regions lie inside their parents, siblings do not overlap, rows name their innermost one.

    A region adds its number less its parent's at its first row and takes it away after its last:
    the regions around a row are a chain, so that what is added there is its innermost one's number.
    """
    start, stop, parent = _region_bounds(p)
    numbers = np.arange(len(parent))
    _hold_each((parent >= -1) & (parent < numbers), "region", "has no parent before it")
    low, high = np.append(start, 0)[parent], np.append(stop, len(p))[parent]
    nested = (low <= start) & (start <= stop) & (stop <= high)
    _hold_each(nested, "region", "leaves its parent")
    order = np.lexsort((start, parent))
    order = order[start[order] < stop[order]]
    before, after = order[:-1], order[1:]
    apart = (parent[before] != parent[after]) | (stop[before] <= start[after])
    if not apart.all():
        raise AssertionError(f"region {after[~apart][0]} overlaps a sibling")
    change = np.zeros(len(p) + 1, dtype=np.int64)
    np.add.at(change, start, numbers - parent)
    np.add.at(change, stop, parent - numbers)
    _require(p, p.region == np.cumsum(change)[:-1] - 1, "row does not name its innermost region")


def _region_bounds(p: ProgramColumns) -> tuple[Int64s, Int64s, Int64s]:
    """First rows, rows behind the last, and parents of all regions."""
    table = [(r.start, r.stop, r.parent) for r in p.regions]
    columns = np.array(table, dtype=np.int64).reshape(-1, 3)
    return columns[:, 0], columns[:, 1], columns[:, 2]


def trip_counts_fit(p: ProgramColumns) -> None:
    """Trip counts are zero or more; how often a row runs fits int64, and nests end."""
    trips: list[int] = []
    depths: list[int] = []
    for i, r in enumerate(p.regions):
        hold(r.trip_count >= 0, f"region {i} runs {r.trip_count} times")
        trips.append((trips[r.parent] if r.parent >= 0 else 1) * r.trip_count)
        depths.append((depths[r.parent] if r.parent >= 0 else 0) + 1)
        hold(trips[-1] <= MOST_INT64, f"region {i} runs more than {MOST_INT64:,} times in a step")
        deep = depths[-1] > MOST_NESTED_REGIONS
        hold(not deep, f"region {i} is inside more than {MOST_NESTED_REGIONS} others")


def loops_carry_values(p: ProgramColumns) -> None:
    """Carries go from rows inside a loop to VALUE rows directly inside it; branches carry none."""
    for i, r in enumerate(p.regions):
        if r.kind is RegionKind.BRANCH:
            hold(r.trip_count <= 1 and not r.carries, f"branch {i} loops")
        if not r.carries:
            continue
        carried, produced = np.array(r.carries, dtype=np.int64).T
        for rows, what in ((carried, "carries"), (produced, "yields")):
            inside = (r.start <= rows) & (rows < r.stop)
            _hold_each(inside, f"region {i}", f"{what} a row outside it", rows)
        _hold_each(p.kind[carried] == Kind.VALUE, f"region {i}", "carries no VALUE", carried)
        _hold_each(p.region[carried] == i, f"region {i}", "carries an inner row", carried)
        hold(len(np.unique(carried)) == len(carried), f"region {i} carries a row twice")


#: What `Program.verify` proves, in order.
INVARIANTS: tuple[Callable[[ProgramColumns], None], ...] = (
    columns_have_one_length_and_type,
    indices_are_in_their_tables,
    quantities_are_not_negative,
    sums_fit,
    dependencies_point_back,
    aliases_are_dependencies,
    only_work_has_work,
    communication_is_complete,
    regions_nest,
    trip_counts_fit,
    loops_carry_values,
)


def hold(condition: bool, what: str) -> None:
    """Like `assert`, with `python -O` too."""
    if not condition:
        raise AssertionError(what)


def _hold_each(good: NDArray[np.bool_], whose: str, what: str, named: Int64s | None = None) -> None:
    """Raise AssertionError for the first that is not good: its number, or what it is `named`."""
    if not good.all():
        at = int(np.flatnonzero(~good)[0])
        subject = f"{whose} {at} {what}" if named is None else f"{whose} {what}: {named[at]}"
        raise AssertionError(subject)


def _require(p: ProgramColumns, good: ArrayLike, what: str) -> None:
    holds = np.asarray(good)
    if not holds.all():
        at = int(np.flatnonzero(~holds)[0])
        opcode = int(p.opcode[at])
        named = p.opcodes[opcode] if opcode < len(p.opcodes) else f"opcode {opcode}"
        raise AssertionError(f"row {at} ({named}): {what}")
