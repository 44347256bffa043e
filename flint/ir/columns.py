"""Rewriting a Program in columns: who reads a row, dropping rows, the tables that are left, sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import IntEnum, IntFlag
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from flint.ir.arrays import Mask as Mask  # noqa: PLC0414 (a name of this module)
from flint.ir.op_class import Classes, OpClass
from flint.ir.program import (
    COLUMN_TYPES,
    COLUMNS,
    MOST_INT64,
    Collective,
    Flag,
    Int32s,
    Int64s,
    Kind,
    Phase,
    Program,
)

T = TypeVar("T")
Edges = tuple[NDArray[np.int64], NDArray[np.int64]]

#: Columns with one entry per row; `dims` has four, `deps` and `dep_start` are not among them.
ROW_COLUMNS: tuple[str, ...] = tuple(c for c in COLUMNS if c not in ("dep_start", "deps"))
#: The lookup table that a column indexes.
TABLE_OF: dict[str, str] = {
    "opcode": "opcodes",
    "dtype": "dtypes",
    "shape": "shapes",
    "group": "groups",
    "route": "routes",
    "stream": "streams",
    "product": "products",
} | dict.fromkeys(("name", "scope", "location", "cause"), "strings")
#: Tables whose first entry stays without a row that has it, and that entry.
ALWAYS_THERE: dict[str, str] = {"strings": "", "streams": "compute", "products": ""}
#: Columns that hold members of an enumeration.
COLUMN_MEMBERS: dict[str, type[IntEnum | IntFlag]] = {
    "op": OpClass,
    "kind": Kind,
    "collective": Collective,
    "phase": Phase,
    "flags": Flag,
}
_BITS = re.compile(r"[a-z]+?(\d+)")


def is_any(program: Program, classes: Classes | OpClass) -> Mask:
    """For each row, whether it is of one of `classes`."""
    wanted = np.zeros(256, dtype=np.bool_)
    wanted[[classes] if isinstance(classes, OpClass) else sorted(classes)] = True
    return wanted[program.op]


def consumers(program: Program) -> tuple[NDArray[np.int64], Int32s]:
    """Who reads each row, as (start, rows): row i is read by rows[start[i]:start[i + 1]]."""
    start = np.zeros(len(program) + 1, dtype=np.int64)
    np.cumsum(np.bincount(program.deps, minlength=len(program)), out=start[1:])
    return start, program.dep_owner[np.argsort(program.deps, kind="stable")]


def yielded(program: Program) -> Mask:
    """For each row, whether a loop takes it as a value for its next iteration."""
    mask = np.zeros(len(program), dtype=np.bool_)
    mask[[produced for r in program.regions for _, produced in r.carries]] = True
    return mask


def carried(program: Program) -> Mask:
    """For each row, whether it stands for a value that a loop carries."""
    mask = np.zeros(len(program), dtype=np.bool_)
    mask[[row for r in program.regions for row, _ in r.carries]] = True
    return mask


def use_counts(program: Program) -> NDArray[np.int64]:
    """For each row, how many rows read it; a loop that carries it on counts as one more."""
    counts = np.bincount(program.deps, minlength=len(program))
    return counts + yielded(program)


def edges(program: Program) -> Edges:
    """Every dependency as (rows that read, rows that are read)."""
    return program.dep_owner.astype(np.int64), program.deps.astype(np.int64)


def barrier_views(program: Program) -> Mask:
    """Views of what passes an optimization barrier, which wait for it."""
    waits = program.dep_owner[(program.op == OpClass.BARRIER)[program.deps]]
    found: Mask = (program.kind == Kind.VALUE) & ((program.flags & Flag.VIEW) != 0)
    return found & np.isin(np.arange(len(program)), waits)


def read_at_home(program: Program) -> Mask:
    """Rows that only rows of their own region and stream read, and no loop yields."""
    owner, target = edges(program)
    away = program.region[owner] != program.region[target]
    away |= program.stream[owner] != program.stream[target]
    home = ~yielded(program)
    home[target[away]] = False
    return home


def with_value(table: tuple[T, ...], value: T) -> tuple[tuple[T, ...], int]:
    """The table with `value` in it, appended if it is new, and the index of `value`."""
    if value in table:
        return table, table.index(value)
    return (*table, value), len(table)


def changed(program: Program, rows: NDArray[Any], **values: Any) -> Program:
    """A copy in which `rows` of the named columns hold `values` (one value, or one per row)."""
    columns = {}
    for name, value in values.items():
        column = getattr(program, name).copy()
        column[rows] = value
        columns[name] = column
    return replace(program, **columns)


def rewired(program: Program, links: Edges) -> Program:
    """A copy whose dependencies are `links` (any order, repeats allowed).

    A row that no longer reads what it shared storage with shares it with none.
    """
    n = max(len(program), 1)
    keys = np.unique(links[0] * n + links[1])
    start = np.zeros(len(program) + 1, dtype=np.int64)
    np.cumsum(np.bincount(keys // n, minlength=len(program)), out=start[1:])
    owner, deps = keys // n, (keys % n).astype(np.int32)
    shares = np.zeros(len(program), dtype=np.bool_)
    shares[owner[program.alias[owner] == deps]] = True
    alias = np.where(shares, program.alias, -1).astype(np.int32)
    return replace(program, dep_start=start, deps=deps, alias=alias)


def past_barriers(program: Program, values: Mask | None = None) -> Program:
    """The program in which `values` (all without it) pass optimization barriers at once: nobody waits."""
    views = barrier_views(program)
    if values is not None:
        views &= values | values[program.alias]
    if not views.any():
        return program
    owner, target = edges(program)
    gone = views[owner] & (target != program.alias[owner])
    gone |= is_any(program, OpClass.BARRIER)[owner] & np.isin(target, program.alias[views])
    return rewired(program, (owner[~gone], target[~gone]))


def forwarded(program: Program, gone: Mask) -> Program:
    """A copy in which readers of `gone` rows read what those rows read, through any chain.

    Each round replaces a link by two-step links of the round before, so that a chain of n gone
    rows takes log2(n) rounds.
    """
    owner, target = edges(program)
    while (through := gone[target]).any():
        start, deps = program.dep_start, program.deps
        width = start[target[through] + 1] - start[target[through]]
        inner = np.repeat(start[target[through]] - (np.cumsum(width) - width), width)
        reached = deps[inner + np.arange(len(inner))].astype(np.int64)
        readers = np.repeat(owner[through], width)
        program = rewired(
            program, (np.append(owner[~through], readers), np.append(target[~through], reached))
        )
        owner, target = edges(program)
    return program


def compact_tables(program: Program) -> Program:
    """A copy whose tables hold only entries that a row uses, in the order they had."""
    orders: dict[str, list[int]] = {}
    for name in dict.fromkeys(TABLE_OF.values()):
        used = np.zeros(len(getattr(program, name)) + 1, dtype=np.bool_)  # the last is for -1
        used[: name in ALWAYS_THERE] = True
        for user in (c for c, table in TABLE_OF.items() if table == name):
            used[getattr(program, user)] = True
        if not used[:-1].all():
            orders[name] = np.flatnonzero(used[:-1]).tolist()
    return _with_entries(program, orders)


def _with_entries(program: Program, orders: Mapping[str, Sequence[int]]) -> Program:
    new: dict[str, Any] = {}
    for name, order in orders.items():
        table = getattr(program, name)
        number = np.full(len(table) + 1, -1, dtype=np.int64)  # the last entry answers for -1
        number[order] = np.arange(len(order))
        new[name] = tuple(table[i] for i in order)
        for user in (c for c, t in TABLE_OF.items() if t == name):
            new[user] = number[getattr(program, user)].astype(COLUMN_TYPES[user])
    return replace(program, **new)


def first_uses(program: Program, table: str) -> list[int]:
    """Entries of a table in the order in which rows use them, those that are always there first."""
    users = [c for c in ROW_COLUMNS if TABLE_OF.get(c) == table]
    entries = getattr(program, table)
    used = np.stack([getattr(program, c).astype(np.int64) for c in users], axis=1).ravel()
    always = [entries.index(v) for v in (ALWAYS_THERE.get(table),) if v in entries]
    numbers = np.append(np.array(always, dtype=np.int64), used[used >= 0])
    _, first = np.unique(numbers, return_index=True)
    found: list[int] = numbers[np.sort(first)].tolist()
    return found


def in_order_of_use(program: Program) -> Program:
    """A copy whose tables hold what rows use, in the order of its first use, as a builder's do."""
    names = dict.fromkeys(TABLE_OF.values())
    return _with_entries(program, {name: first_uses(program, name) for name in names})


def type_bytes(program: Program) -> Int64s:
    """Bytes of each row's first result, by its type: also where a row writes a part of it."""
    width = max(len(program.dtypes), 1)
    keys = program.shape.astype(np.int64) * width + program.dtype
    pairs, which = np.unique(keys, return_inverse=True)
    sizes = [
        bytes_of_type(program.dtypes[key % width], program.shapes[key // width])
        for key in pairs.tolist()
    ]
    return np.asarray(np.array(sizes, dtype=np.int64)[which.reshape(-1)])


def bytes_of_type(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of an array, at most what an int64 holds; 0 for a type that Flint does not know."""
    return min(-(-math.prod(shape) * dtype_bits(dtype) // 8), MOST_INT64)


def dtype_bits(dtype: str) -> int:
    """Bits of an element, which most types have in their names; 0 for a type Flint does not know."""
    found = _BITS.match(dtype)
    return int(found[1][:4]) if found else 8 * (dtype in ("bool", "pred"))


def bytes_in(program: Program, kernel: Int64s, links: Edges, seen: Int64s) -> Int64s:
    """For each kernel, bytes that it reads from outside, each value once: `seen` by each link.

    A row that reads less than a value (a slice of it) counts what it reads, rows that read several
    slices their sum up to the whole, and a kernel no more than its rows read together.
    """
    n = len(program)
    owner, target = links
    computing = program.kind == Kind.COMPUTE
    read = np.where(computing[owner], np.minimum(seen, program.operand_bytes[owner]), seen)
    pairs, pair = np.unique(kernel[owner] * n + target, return_inverse=True)
    together = np.zeros(len(pairs), dtype=np.int64)
    whole = np.zeros(len(pairs), dtype=np.int64)
    np.add.at(together, pair, read)
    np.maximum.at(whole, pair, seen)
    total = np.zeros(n, dtype=np.int64)
    np.add.at(total, pairs // n, np.minimum(together, whole))
    most = np.zeros(n, dtype=np.int64)
    np.add.at(most, kernel[computing], program.operand_bytes[computing])
    return np.minimum(total, most)
