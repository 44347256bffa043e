"""The database of an export: whatever tables and columns it has.

Tables are created when something is written to them, and columns come and go with the version of
Nsight Systems, so that each query asks for what is there and takes NULL for the rest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flint.errors import FlintError, Malformed
from flint.io.sqlite import Tables, open_tables
from flint.tools.measure.profiles.source import GIB

#: Events of one table: a Profile's columns of more would not fit into the memory of one machine.
MOST_ROWS = 100_000_000
#: Bytes of an export.
_MOST_BYTES = 256 * GIB
#: Strings are few (names of kernels and ranges); each is kept.
_MOST_STRINGS = 10_000_000
_MOST_TEXT = 1 << 14
#: Characters of all strings together.
_MOST_CHARACTERS = 1 << 29


class Database:
    """Tables of an export. Raises Malformed for what SQLite cannot read."""

    def __init__(self, tables: Tables, path: Path) -> None:
        self._tables = tables
        self.path = path
        self._strings: dict[int, str] | None = None

    @property
    def tables(self) -> frozenset[str]:
        """Names of all tables."""
        return self._tables.names

    def has(self, table: str) -> bool:
        """Whether something was written to the table."""
        return table in self.tables

    def rows(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Rows of a table, None for columns that it lacks; none if it is not there."""
        for count, row in enumerate(self._tables.rows(table, *columns)):
            if count >= MOST_ROWS:
                raise Malformed(f"{table} has more than {MOST_ROWS:,} rows")
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
            self._strings = dict(self._each_string())
        return self._strings

    def _each_string(self) -> Iterator[tuple[int, str]]:
        left, characters = _MOST_STRINGS, _MOST_CHARACTERS
        for number, value in self.rows("StringIds", "id", "value"):
            text = str(value)[:_MOST_TEXT]
            left, characters = left - 1, characters - len(text)
            if left < 0 or characters < 0:
                raise Malformed("it has too many strings")
            if isinstance(number, int):
                yield number, text


@contextlib.contextmanager
def open_export(path: Path) -> Iterator[Database]:
    """The export at a path; no file is made beside it, and nothing in it changes.

    Raises FlintError FL801 for what cannot be opened, FL826 for what SQLite cannot read, and for
    what is found to be Malformed inside.
    """
    try:
        # still: no locks, and a journal that a crash left behind is not played back into the file
        with open_tables(path, _MOST_BYTES, is_still=True) as tables:
            yield Database(tables, path)
    except OSError as error:
        raise FlintError("FL801", f"cannot read {path}: {error.strerror or error}") from error
    except Malformed as error:
        raise FlintError(
            "FL826",
            f"{path} is not a whole Nsight Systems export: {error}",
            help="nsys export --type sqlite REPORT.nsys-rep",
        ) from error
