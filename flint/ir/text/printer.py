"""Write a Program as text: a line for each row, blocks for regions.

    flint.program/1 {data=8,model=4}
    %0 = parameter func.argument : f32[16,8] {name = "params['w']"}
    loop 0 x80 "while" carries(%1 = %2) {
      %1 = value flint.carried(%0) : f32[16,8]
      %2 = compute stablehlo.add(%0, %1) : f32[16,8] {operand_bytes = 1024, flops = 128} @layers
    }

A row is its kind, opcode, what it reads, its type, its other columns by name, its scope and its
location. Left out are columns that hold what most rows hold (0, no group, the stream `compute`) and
`result_bytes` where they are those of the type. Groups and routes that are long are named once,
`#0 = group ...`, before the first row. Tables follow from the rows; where they have another order,
or entries that no row uses, lines at the end say so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import numpy as np

from flint.ir.columns import ALWAYS_THERE, ROW_COLUMNS, TABLE_OF, first_uses, type_bytes
from flint.ir.program import Kind, Program, Region
from flint.ir.text.values import spelled
from flint.text import quoted, spelled_word

SCHEMA = "flint.program/1"
#: Columns that have a place of their own in a line.
PLACED = ("opcode", "kind", "dtype", "shape", "result_bytes", "scope", "location", "region")
#: All others, which are written by name.
NAMED = tuple(c for c in ROW_COLUMNS if c not in PLACED)
#: What a column holds that is not written: the rest has 0.
NO_ENTRY = ("group", "route", "channel", "alias")
#: A longer group or route has a name.
_MOST_INLINE = 40


def print_program(program: Program) -> str:
    """The text of a verified program; `parser.parse_program` makes the same program of it."""
    return "\n".join(_Printer(program).lines()) + "\n"


class _Printer:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.named = _spelled_columns(program)
        self.aliases = self._aliases()
        self.opcodes = [spelled_word(o) for o in program.opcodes]
        self.kinds = [m.name.lower() for m in Kind]
        self.types = _types(program)
        self.inner: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for number, region in enumerate(program.regions):
            self.inner[region.parent].append((region.start, region.stop, number))
        self.unusual = program.result_bytes != type_bytes(program)

    def lines(self) -> Iterator[str]:
        sizes = ",".join(f"{spelled_word(n)}={s}" for n, s in self.program.mesh.shape.items())
        yield f"{SCHEMA} {{{sizes}}}"
        yield from (f"{name} = {value}" for value, name in self.aliases.items())
        yield from self._block(-1, 0, len(self.program), "")
        yield from _tables(self.program)

    def _block(self, region: int, start: int, stop: int, indent: str) -> Iterator[str]:
        """The rows and regions of one region (-1: the program)."""
        at = start
        for first, last, number in sorted(self.inner[region]):
            yield from (indent + self._row(row) for row in range(at, first))
            yield f"{indent}{_heading(self.program.regions[number], number)} {{"
            yield from self._block(number, first, last, indent + "  ")
            yield f"{indent}}}"
            at = last
        yield from (indent + self._row(row) for row in range(at, stop))

    def _row(self, row: int) -> str:
        p = self.program
        reads = ", ".join(f"%{d}" for d in p.dependencies(row).tolist())
        kind, opcode = self.kinds[p.kind[row]], self.opcodes[p.opcode[row]]
        parts = [f"%{row} = {kind} {opcode}({reads})"]
        parts += [f": {self.types[row]}"] if self.types[row] else []
        named = [f"{c} = {self._value(c, row)}" for c in NAMED if row in self.named[c]]
        if self.unusual[row]:
            named.insert(0, f"result_bytes = {p.result_bytes[row]}")
        parts += ["{" + ", ".join(named) + "}"] if named else []
        scope, location = p.strings[p.scope[row]], p.strings[p.location[row]]
        parts += [f"@{spelled_word(scope)}"] if scope else []
        parts += [f"loc({quoted(location)})"] if location else []
        return " ".join(parts)

    def _value(self, column: str, row: int) -> str:
        value = self.named[column][row]
        return self.aliases.get(f"{column} {value}", value)

    def _aliases(self) -> dict[str, str]:
        """Names of long groups and routes, by column and value."""
        long = [
            f"{column} {value}"
            for column in ("group", "route")
            for value in self.named[column].values()
            if len(value) > _MOST_INLINE
        ]
        return {value: f"#{i}" for i, value in enumerate(dict.fromkeys(long))}


def _spelled_columns(program: Program) -> dict[str, dict[int, str]]:
    """For each column that is written by name, the rows that have another value than most."""
    found = {}
    for name in NAMED:
        column = getattr(program, name)
        usual = -1 if name in NO_ENTRY else 0
        differs = (column.reshape(len(program), -1) != usual).any(axis=1)
        table = getattr(program, TABLE_OF[name]) if name in TABLE_OF else None
        if table is not None and usual == 0:
            differs = np.array([v != ALWAYS_THERE[TABLE_OF[name]] for v in table] or [False])[
                column
            ]
        rows = np.flatnonzero(differs).tolist()
        values = column[rows].tolist()
        found[name] = dict(zip(rows, _spelled_all(name, values, table), strict=True))
    return found


def _spelled_all(name: str, values: list[Any], table: tuple[Any, ...] | None) -> Iterable[str]:
    if name == "alias":
        return (f"%{v}" for v in values)
    if table is None:
        return (spelled(name, v) for v in values)
    known = {v: spelled(name, table[v]) for v in set(values)}
    return (known[v] for v in values)


def _types(program: Program) -> list[str]:
    """For each row its type, `f32[8,16]`; empty where it has none."""
    pairs = np.stack([program.dtype.astype(np.int64), program.shape.astype(np.int64)], axis=1)
    known = {
        (d, s): _type(program.dtypes[d], program.shapes[s])
        for d, s in set(map(tuple, pairs.tolist()))
    }
    return [known[d, s] for d, s in pairs.tolist()]


def _type(dtype: str, shape: tuple[int, ...]) -> str:
    dimensions = f"[{','.join(map(str, shape))}]" if shape else ""
    return f"{spelled_word(dtype)}{dimensions}" if dtype or shape else ""


def _heading(region: Region, number: int) -> str:
    parts = [f"{region.kind.name.lower()} {number} x{region.trip_count}"]
    parts += [quoted(region.name)] if region.name else []
    parts += [f"choice {region.choice}"] if region.choice >= 0 else []
    parts += ["barrier"] if region.barrier else []
    carries = ", ".join(f"%{row} = %{produced}" for row, produced in region.carries)
    parts += [f"carries({carries})"] if carries else []
    parts += [f"loc({quoted(region.location)})"] if region.location else []
    return " ".join(parts)


def _tables(program: Program) -> Iterator[str]:
    """A line for each table that is not what a reader of the rows would make."""
    for name in dict.fromkeys(TABLE_OF.values()):
        table = getattr(program, name)
        place = {entry: i for i, entry in enumerate(first_uses(program, name))}
        lost = name in ALWAYS_THERE and ALWAYS_THERE[name] not in table
        entries = [place.get(i, -1) for i in range(len(table))]
        if lost:
            entries = [e + 1 if e >= 0 else e for e in entries]
        if lost or entries != list(range(len(table))):
            yield f"table {name} = {_entries(name, table, entries)}"


def _entries(name: str, table: tuple[Any, ...], entries: list[int]) -> str:
    """Numbers of first use, ascending ones as `4-9`; entries that no row uses as they are spelled."""
    column = next(c for c, t in TABLE_OF.items() if t == name)
    found = []
    for _, run in groupby(enumerate(entries), lambda e: (e[1] < 0, e[1] - e[0])):
        at, numbers = zip(*run, strict=True)
        if numbers[0] < 0:
            found += [_unused(name, column, table[i]) for i in at]
        else:
            found.append(f"{numbers[0]}-{numbers[-1]}" if len(at) > 1 else f"{numbers[0]}")
    return ", ".join(found)


def _unused(name: str, column: str, value: Any) -> str:
    if name == "shapes":
        return f"[{','.join(map(str, value))}]"
    return spelled(column, value)
