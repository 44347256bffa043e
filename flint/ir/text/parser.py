"""Read the text of a Program, as `printer` writes it or as people change it.

Names of rows are any words after `%`, so that a line may be added without renumbering the others.
`//` begins a comment. Columns may come in any order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from flint.errors import FlintError
from flint.ir.builder import ProgramBuilder
from flint.ir.columns import TABLE_OF, bytes_of_type, first_uses
from flint.ir.mesh import Group, Mesh, Route
from flint.ir.program import COLUMN_TYPES, Kind, Program, RegionKind
from flint.ir.text.printer import NAMED, SCHEMA
from flint.ir.text.scanner import Scanner
from flint.ir.text.values import members, parsed, parsed_group, parsed_route
from flint.ir.verify import groups_fit_the_mesh

_COMMENT = re.compile(r"^\s*(//.*)?$")
_KINDS = members(Kind)
_HELP = "flint opt FILE --print-after prints programs in this form; see docs/program.md"


def is_program_text(data: bytes) -> bool:
    """Whether a file is meant as the text of a program: what its first line says."""
    lines = data[: 1 << 16].split(b"\n")
    first = next((line for line in lines if not _COMMENT.match(line.decode("latin-1"))), b"")
    return first.lstrip().startswith(SCHEMA.partition("/")[0].encode())


def parse_program(text: str, source: str = "text") -> Program:
    """The program that `text` says, verified. Raises FlintError FL307, with the line."""
    reader = _Reader(source)
    for number, line in enumerate(text.split("\n"), 1):
        if not _COMMENT.match(line):
            reader.line(Scanner(line, source, number), number)
    return reader.program()


class _ParsedBlock(NamedTuple):
    number: int
    carries: tuple[tuple[str, str], ...]
    scanner: Scanner


class _Reader:
    def __init__(self, source: str) -> None:
        self.source = source
        self.builder: ProgramBuilder | None = None
        self.rows: dict[str, int] = {}
        self.lines: list[int] = []
        self.named: dict[str, Group | Route] = {}
        self.open: list[_ParsedBlock] = []
        self.regions: list[int] = []  # in the order of the text, the number of each
        self.tables: dict[str, list[Any]] = {}

    def line(self, scanner: Scanner, number: int) -> None:
        if self.builder is None:
            self.builder = ProgramBuilder(_mesh(scanner))
        elif scanner.takes("#"):
            self._alias(scanner)
        elif scanner.takes("table "):
            self._table(scanner)
        elif scanner.takes("}"):
            self._close(scanner)
        elif scanner.ahead("%"):
            self.lines.append(number)
            self._row(scanner, self.builder)
        else:
            self._open(scanner, self.builder)
        scanner.end()

    def program(self) -> Program:
        if self.builder is None:
            raise FlintError("FL307", f"{self.source} is empty", help=_HELP)
        if self.open:
            self.open[-1].scanner.fail("this block is not closed", "add a line with }")
        program = _with_tables(_numbered(self.builder.build(), self.regions), self.tables)
        try:
            groups_fit_the_mesh(program)
            program.verify()
        except AssertionError as error:
            raise self._wrong(str(error)) from error
        except FlintError as error:
            raise self._wrong(error.message) from error
        return program

    def _wrong(self, message: str) -> FlintError:
        row = re.match(r"row (\d+)", message)
        line = self.lines[int(row[1])] if row else 1
        return FlintError(
            "FL307", f"the program is not sound: {message}", place=f"{self.source}:{line}"
        )

    def _alias(self, scanner: Scanner) -> None:
        name = scanner.name()
        scanner.expect("=")
        kind = scanner.one_of("kind of value", ("group", "route"))
        self.named[name] = parsed_group(scanner) if kind == "group" else parsed_route(scanner)

    def _table(self, scanner: Scanner) -> None:
        name = scanner.one_of("table", dict.fromkeys(TABLE_OF.values()))
        column = next(c for c, t in TABLE_OF.items() if t == name)
        scanner.expect("=")
        entries: list[Any] = self.tables.setdefault(name, [])
        while not scanner.at_end():
            if entries:
                scanner.expect(",")
            if scanner.ahead_number():
                first = scanner.number()
                last = scanner.number() if scanner.takes("-") else first
                if last - first > 1 << 24:
                    scanner.fail("a table with this many entries")
                entries.extend(range(first, last + 1))
            else:
                entries.append((_shape(scanner) if name == "shapes" else parsed(column, scanner),))

    def _open(self, scanner: Scanner, builder: ProgramBuilder) -> None:
        kinds = members(RegionKind)
        kind = RegionKind(kinds[scanner.one_of("kind of block, and not a row (%12 = ...)", kinds)])
        self.regions.append(scanner.number())
        scanner.expect("x")
        trips = scanner.number()
        name = scanner.string() if scanner.ahead('"') else ""
        choice = scanner.number() if scanner.takes("choice") else -1
        barrier = scanner.takes("barrier")
        carries = _carries(scanner) if scanner.takes("carries(") else ()
        location = _location(scanner)
        scanner.expect("{")
        if trips < 0:
            scanner.fail("trip counts are zero or more")
        with _here(scanner):
            builder.begin_region(
                kind, trips, name=name, location=location, choice=choice, barrier=barrier
            )
        self.open.append(_ParsedBlock(self.regions[-1], carries, scanner))

    def _close(self, scanner: Scanner) -> None:
        if not self.open:
            scanner.fail("no block is open here")
        assert self.builder is not None
        block = self.open.pop()
        pairs = [(self._at(block.scanner, a), self._at(block.scanner, b)) for a, b in block.carries]
        self.builder.end_region(pairs)

    def _row(self, scanner: Scanner, builder: ProgramBuilder) -> None:
        label = scanner.label()
        if label in self.rows:
            scanner.fail(f"%{label} is already defined, in line {self.lines[self.rows[label]]}")
        scanner.expect("=")
        kind = Kind(_KINDS[scanner.one_of("kind of row", _KINDS)])
        opcode = scanner.word()
        deps = self._reads(scanner)
        dtype, shape = _type(scanner)
        columns: dict[str, Any] = {"result_bytes": bytes_of_type(dtype, shape)}
        if scanner.takes("{"):
            columns |= self._named(scanner)
        scope = scanner.word() if scanner.takes("@") else ""
        location = _location(scanner)
        with _here(scanner):
            self.rows[label] = builder.add(
                opcode,
                kind,
                deps=deps,
                dtype=dtype,
                shape=shape,
                scope=scope,
                location=location,
                **columns,
            )

    def _reads(self, scanner: Scanner) -> list[int]:
        scanner.expect("(")
        found: list[int] = []
        while not scanner.takes(")"):
            if found:
                scanner.expect(",")
            found.append(self._at(scanner, scanner.label()))
        return found

    def _at(self, scanner: Scanner, label: str) -> int:
        if label not in self.rows:
            scanner.fail(f"no line before has defined %{label}")
        return self.rows[label]

    def _named(self, scanner: Scanner) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not scanner.takes("}"):
            if found:
                scanner.expect(",")
            name = scanner.one_of("column", ("result_bytes", *NAMED))
            scanner.expect("=")
            found[name] = self._value(name, scanner)
        return found

    def _value(self, name: str, scanner: Scanner) -> Any:
        if name == "alias":
            return self._at(scanner, scanner.label())
        if scanner.takes("#"):
            given = self.named.get(scanner.name())
            if not isinstance(given, Group if name == "group" else Route):
                scanner.fail(f"no {name} of this name is above")
            return given
        value = parsed(name, scanner)
        if name not in TABLE_OF:
            _check_range(name, value, scanner)
        return value


def _mesh(scanner: Scanner) -> Mesh:
    if not scanner.takes(SCHEMA):
        scanner.fail(f"a program as text begins with {SCHEMA}", _HELP)
    sizes: dict[str, int] = {}
    scanner.expect("{")
    while not scanner.takes("}"):
        if sizes:
            scanner.expect(",")
        name = scanner.word()
        scanner.expect("=")
        sizes[name] = scanner.number()
    with _here(scanner):
        return Mesh(tuple(sizes), tuple(sizes.values()))


@contextmanager
def _here(scanner: Scanner) -> Iterator[None]:
    """Errors of a mesh or a builder, with the line."""
    try:
        yield
    except FlintError as error:
        scanner.fail(error.message, error.help)


def _type(scanner: Scanner) -> tuple[str, tuple[int, ...]]:
    if not scanner.takes(":"):
        return "", ()
    dtype = scanner.word()
    return dtype, _shape(scanner) if scanner.ahead("[") else ()


def _shape(scanner: Scanner) -> tuple[int, ...]:
    scanner.expect("[")
    found: list[int] = []
    while not scanner.takes("]"):
        if found:
            scanner.expect(",")
        found.append(scanner.number())
        if found[-1] < 0:
            scanner.fail("dimensions are zero or more")
    return tuple(found)


def _location(scanner: Scanner) -> str:
    if not scanner.takes("loc("):
        return ""
    text = scanner.string()
    scanner.expect(")")
    return text


def _carries(scanner: Scanner) -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    while not scanner.takes(")"):
        if found:
            scanner.expect(",")
        row = scanner.label()
        scanner.expect("=")
        found.append((row, scanner.label()))
    return tuple(found)


def _check_range(name: str, value: Any, scanner: Scanner) -> None:
    """Refuse what the column has no room for."""
    limits = np.iinfo(COLUMN_TYPES[name])
    numbers = value if isinstance(value, tuple) else (value,)
    if not all(limits.min <= n <= limits.max for n in numbers):
        scanner.fail(f"{name} is from {limits.min} to {limits.max}")
    if (name == "dims") != (len(numbers) == 4):
        scanner.fail("dims are four numbers, 1x8x4x2; other columns are one")


def _numbered(program: Program, numbers: list[int]) -> Program:
    """The program in which region i of the text is region numbers[i]."""
    if numbers == list(range(len(numbers))):
        return program
    if sorted(numbers) != list(range(len(numbers))):
        raise FlintError("FL307", f"blocks are not numbered 0 to {len(numbers) - 1}, each once")
    place = np.array([*numbers, -1])
    regions = sorted(zip(numbers, program.regions, strict=True), key=lambda r: r[0])
    return program.with_rows(
        region=place[program.region].astype(np.int32),
        regions=tuple(replace(r, parent=int(place[r.parent])) for _, r in regions),
    )


def _with_tables(program: Program, tables: dict[str, list[Any]]) -> Program:
    """The program whose tables have the order that the last lines say."""
    changed: dict[str, Any] = {}
    for name, entries in tables.items():
        made = getattr(program, name)
        first = first_uses(program, name)
        known = [made[i] for i in first]
        number = np.full(len(made) + 1, -1, dtype=np.int64)
        table = []
        for at, entry in enumerate(entries):
            if isinstance(entry, tuple):
                table.append(entry[0])
                continue
            if entry >= len(known):
                raise FlintError("FL307", f"table {name} has no entry {entry}")
            number[first[entry]] = at
            table.append(known[entry])
        users = [c for c, t in TABLE_OF.items() if t == name]
        columns = [getattr(program, c).astype(np.int64) for c in users]
        if any(((column >= 0) & (number[column] < 0)).any() for column in columns):
            raise FlintError("FL307", f"table {name} lacks an entry that a row has")
        changed[name] = tuple(table)
        changed |= {c: number[getattr(program, c)].astype(COLUMN_TYPES[c]) for c in users}
    return program.with_rows(**changed)
