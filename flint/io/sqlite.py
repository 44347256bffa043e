"""SQLite databases of others, opened to be read: stored tables alone, and no more work than they hold.

A database is a program as well: views, virtual tables, generated columns and triggers run what they
are made of when they are asked. Nothing of that is asked here, and a file that has it where a table
is read is refused. What is read of a table are its stored columns, within a number of steps that follows from the size of the file.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flint.errors import Malformed
from flint.io.files import open_regular

#: How a SQLite database begins.
MAGIC = b"SQLite format 3\x00"
#: Longest text or blob of a cell, and text of a statement or schema.
_MOST_CELL, _MOST_SQL = 1 << 26, 1 << 20
#: Steps of SQLite's machine for each byte of the file: a row of one byte takes fewer.
_STEPS_PER_BYTE = 64
_LEAST_STEPS = 10_000_000
_STEPS_AT_ONCE = 100_000


class Tables:
    """The stored tables of an open database. Raises Malformed for what SQLite cannot read."""

    def __init__(self, connection: sqlite3.Connection, file_bytes: int) -> None:
        self._connection = connection
        self._left = _LEAST_STEPS + _STEPS_PER_BYTE * file_bytes
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_CELL)
        connection.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, _MOST_SQL)
        connection.set_progress_handler(self._step, _STEPS_AT_ONCE)
        for pragma in ("trusted_schema=OFF", "query_only=ON", "cell_size_check=ON"):
            list(self.each(f"PRAGMA {pragma}"))
        query = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND rootpage {} 0"
        self.names = frozenset(str(name) for (name,) in self.each(query.format(">")))
        self._programs = frozenset(str(name) for (name,) in self.each(query.format("=")))

    def rows(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Rows of a table, None for columns that it lacks; none if the table is not there.

        Raises Malformed for a view, and for columns that are calculated.
        """
        if table in self._programs:
            raise Malformed(f"{table} is not a stored table")
        if table not in self.names:
            return
        found = {row[1]: row[-1] for row in self.each(f"PRAGMA table_xinfo({_quoted(table)})")}
        there = {name for name, hidden in found.items() if not hidden}
        if not there.issuperset(set(columns) & set(found)):
            raise Malformed(f"{table} has calculated columns")
        asked = ", ".join(_quoted(c) if c in there else "NULL" for c in columns)
        yield from self.each(f"SELECT {asked} FROM {_quoted(table)}")

    def each(self, query: str, *values: object) -> Iterator[tuple[Any, ...]]:
        """Rows of a query. Raises Malformed."""
        try:
            yield from self._connection.execute(query, values)
        except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
            if self._left < 0:
                raise Malformed("reading it takes more steps than its size allows") from error
            raise Malformed(str(error)) from error

    def _step(self) -> bool:
        self._left -= _STEPS_AT_ONCE
        return self._left < 0


@contextlib.contextmanager
def open_tables(path: Path, most_bytes: int, *, is_still: bool) -> Iterator[Tables]:
    """The tables of a file, in which nothing changes; with `is_still` nothing beside it either.

    A file that is still being written (`is_still` False) is read with its write-ahead log. Raises
    OSError for what is not a regular file, and Malformed for what is no database of at most
    `most_bytes`.
    """
    with open_regular(path) as file:
        head, size = file.read(len(MAGIC)), path.stat().st_size
    if head.startswith(b"\x1f\x8b"):
        raise Malformed("SQLite cannot read a compressed file, unpack it first: gunzip --keep FILE")
    if head != MAGIC:
        raise Malformed("it is not an SQLite database")
    if size > most_bytes:
        raise Malformed(f"it has {size:,} bytes, but at most {most_bytes:,} are read")
    uri = f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if is_still else ''}"
    try:
        connection = sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None)
    except sqlite3.Error as error:
        raise Malformed(str(error)) from error
    try:
        connection.text_factory = lambda data: data.decode("utf-8", "replace")
        yield Tables(connection, size)
    finally:
        connection.close()


#: How long a reader waits for a writer, in seconds.
_BUSY_SECONDS = 20.0


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
