"""The database of an export: opened for reading alone, whatever tables and columns it has.

Tables are created when something is written to them, and columns come and go with the version of
Nsight Systems, so that each query asks for what is there and takes NULL for the rest.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flint.errors import FlintError
from flint.io.files import open_regular

#: How a SQLite database begins.
MAGIC = b"SQLite format 3\x00"
#: Events of one table: a Profile's columns of more would not fit into the memory of one machine.
MOST_ROWS = 100_000_000
#: Strings are few (names of kernels and ranges); each is kept.
_MOST_STRINGS = 10_000_000
_MOST_TEXT = 1 << 14


class Database:
    """Tables of an export. Raises FlintError FL826 for what SQLite cannot read."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self.path = path
        self._tables = {row[0] for row in self._all("SELECT name FROM sqlite_master")}
        self._strings: dict[int, str] | None = None

    @property
    def tables(self) -> set[str]:
        """Names of all tables."""
        return self._tables

    def has(self, table: str) -> bool:
        """Whether something was written to the table."""
        return table in self._tables

    def rows(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Rows of a table, None for columns that it lacks; none if it is not there."""
        if not self.has(table):
            return
        there = {row[1] for row in self._all(f'PRAGMA table_info("{table}")')}
        asked = ", ".join(f'"{c}"' if c in there else "NULL" for c in columns)
        for count, row in enumerate(self._each(f'SELECT {asked} FROM "{table}"')):
            if count >= MOST_ROWS:
                raise self.broken(f"{table} has more than {MOST_ROWS:,} rows")
            yield row

    def string(self, value: object) -> str:
        """A name: a number of StringIds, or the name itself (older exports). Long ones are cut."""
        if isinstance(value, str):
            return value[:_MOST_TEXT]
        return self.strings.get(value, "") if isinstance(value, int) else ""

    @property
    def strings(self) -> dict[int, str]:
        """StringIds."""
        if self._strings is None:
            self._strings = {}
            for number, value in self.rows("StringIds", "id", "value"):
                if isinstance(number, int) and len(self._strings) < _MOST_STRINGS:
                    self._strings[number] = str(value)[:_MOST_TEXT]
        return self._strings

    def _all(self, query: str) -> list[Any]:
        return list(self._each(query))

    def _each(self, query: str) -> Iterator[Any]:
        try:
            yield from self._connection.execute(query)
        except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
            raise self.broken(str(error)) from error

    def broken(self, why: str) -> FlintError:
        """The FlintError FL826 for a database that is no whole export."""
        return FlintError(
            "FL826",
            f"{self.path} is not a whole Nsight Systems export: {why}",
            help="nsys export --type sqlite REPORT.nsys-rep",
        )


@contextlib.contextmanager
def open_export(path: Path) -> Iterator[Database]:
    """The export at a path; no file is made beside it, and nothing in it changes.

    Raises FlintError FL801 for what cannot be opened, FL826 for what SQLite cannot read.
    """
    try:
        with open_regular(path) as file:
            packed = file.read(len(MAGIC)) != MAGIC
            uri = path.absolute().as_uri()
    except OSError as error:
        raise FlintError("FL801", f"cannot read {path}: {error.strerror or error}") from error
    if packed:
        raise FlintError(
            "FL826",
            f"{path} is packed, which SQLite does not read",
            help="unpack it first: gunzip --keep FILE",
        )
    # immutable: no locks, and a journal that a crash left behind is not played back into the file
    connection = sqlite3.connect(f"{uri}?mode=ro&immutable=1", uri=True)
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    try:
        yield Database(connection, path)
    finally:
        connection.close()
