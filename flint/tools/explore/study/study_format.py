"""The tables of a study file (SQLite), and how one is opened.

`application_id` and `user_version` in the file's header say that it is a study, and of which format.
While a study runs it has a write-ahead log beside it (`-wal`); afterwards it is one plain file.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from flint.errors import FlintError, Malformed
from flint.io.bounded import FileKind
from flint.io.sqlite import Tables, open_tables

APPLICATION_ID = 0x464C4E54  # "FLNT"
VERSION = 1
#: How long a reader waits for a writer, in seconds.
_BUSY_SECONDS = 20.0

_TABLES = """
CREATE TABLE study (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE generations (id INTEGER PRIMARY KEY, shared TEXT NOT NULL);
CREATE TABLE inputs (
  generation INTEGER NOT NULL, kind TEXT NOT NULL, path TEXT NOT NULL, digest TEXT NOT NULL,
  PRIMARY KEY (generation, kind, path)
) WITHOUT ROWID;
CREATE TABLE points (
  key TEXT PRIMARY KEY, generation INTEGER NOT NULL, fingerprint TEXT NOT NULL,
  holds INTEGER NOT NULL, finished INTEGER NOT NULL, point TEXT NOT NULL,
  status TEXT NOT NULL, code TEXT NOT NULL, devices INTEGER NOT NULL, step_time_ns REAL NOT NULL,
  low_ns REAL NOT NULL, high_ns REAL NOT NULL, mfu REAL NOT NULL, tokens INTEGER NOT NULL,
  memory_bytes INTEGER NOT NULL, capacity_bytes INTEGER NOT NULL, is_bound INTEGER NOT NULL,
  result TEXT NOT NULL
) WITHOUT ROWID;
"""


POINT_COLUMNS = (
    "key", "generation", "fingerprint", "holds", "finished", "point", "status", "code", "devices",
    "step_time_ns", "low_ns", "high_ns", "mfu", "tokens", "memory_bytes", "capacity_bytes",
    "is_bound", "result",
)  # fmt: skip


def connect_new() -> sqlite3.Connection:
    """A study in memory alone."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    make_tables(connection)
    return connection


def connect_to_write(path: Path) -> sqlite3.Connection:
    """A study file that nobody else writes to; made if it is not there.

    Raises FlintError FL864 for another file, which stays as it is, and sqlite3.Error.
    """
    is_new = not path.exists() or (path.is_file() and path.stat().st_size == 0)
    if not is_new:
        with open_stored(path):
            pass
    connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
    try:
        if is_new:
            make_tables(connection)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
    except BaseException:
        connection.close()
        if is_new and path.is_file() and not path.stat().st_size:
            path.unlink()  # the disk is full
        raise
    return connection


def make_tables(connection: sqlite3.Connection) -> None:
    """Make an empty database a study, or leave it as it is."""
    with transaction(connection):
        for statement in _TABLES.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version={VERSION}")


@contextlib.contextmanager
def open_stored(path: Path) -> Iterator[Tables]:
    """The tables of a study file, which is not changed.

    Raises FlintError FL864 for what is none, and for what is found to be Malformed inside.
    """
    try:
        with open_tables(path, FileKind.STUDY.most_bytes, is_still=False) as tables:
            _check(tables, path)
            yield tables
    except FileNotFoundError as error:
        raise _no_study(path, "there is no such file") from error
    except OSError as error:
        raise _no_study(path, error.strerror or str(error)) from error
    except Malformed as error:
        raise _no_study(path, str(error)) from error


def _check(tables: Tables, path: Path) -> None:
    """It is a study, of this version, and holds its four tables and nothing that acts."""
    ((application,),) = tables.each("PRAGMA application_id")
    if application != APPLICATION_ID:
        raise Malformed("another program made it")
    ((version,),) = tables.each("PRAGMA user_version")
    if version > VERSION:
        raise FlintError(
            "FL864",
            f"{path} is a study of a newer Flint: its format is {version}, but this one reads {VERSION}",
            help="install the newer Flint, or choose another file",
        )
    found = {str(sql) for (sql,) in tables.each("SELECT sql FROM sqlite_master WHERE sql NOT NULL")}
    if found != {statement.strip() for statement in _TABLES.split(";") if statement.strip()}:
        raise Malformed("its tables are not those of a study")


def _no_study(path: Path, why: str) -> FlintError:
    return FlintError(
        "FL864",
        f"{path} is not a study: {why}",
        help="--study takes a file that `flint explore` made, or a new one",
    )


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All that is executed inside, or nothing of it."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite ends some itself when a disk is full
            connection.execute("ROLLBACK")
        raise
