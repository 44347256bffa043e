"""Spoilt SQLite databases: cells, tables in another form, views that never end, triggers."""

from __future__ import annotations

import json
import random
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.bad.case import Special
from benchmarks.bad.spoil import WORDS, spoil_bytes, spoil_json

_CELLS = (
    *(-1, 0, 1, 2**31, 2**62, -(2**62), 1.5, -1.5, 1e308, -1e308, float("inf"), None, b"\xff\x00"),
    *(9_999_999, "9" * 400, "x" * 100_000, "[" * 5000, "{}", "[]", *WORDS[:20]),
)
_ENDLESS = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r)"


def spoil_database(rng: random.Random, data: bytes) -> tuple[str, bytes | Special]:
    """One to three changes of a database."""
    if rng.random() < 0.25:
        return spoil_bytes(rng, data)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spoilt.db"
        path.write_bytes(data)
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            count = rng.choice((1, 1, 2, 3))
            done = [rng.choice(_CHANGES)(rng, connection) for _ in range(count)]
        finally:
            connection.close()
        return ", ".join(done), path.read_bytes()


def _table(rng: random.Random, connection: sqlite3.Connection) -> tuple[str, list[str]]:
    tables = [n for (n,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")]
    name = rng.choice([n for n in tables if '"' not in n] or ["sqlite_master"])
    return name, [row[1] for row in connection.execute(f'PRAGMA table_info("{name}")')]


def _cell(rng: random.Random, connection: sqlite3.Connection) -> str:
    table, columns = _table(rng, connection)
    column, value = rng.choice(columns), rng.choice(_CELLS)
    try:
        connection.execute(
            f'UPDATE "{table}" SET "{column}"=? WHERE "{column}" = '
            f'(SELECT "{column}" FROM "{table}" ORDER BY random() LIMIT 1)', (value,)
        )  # fmt: skip
    except (sqlite3.Error, OverflowError):
        return "nothing"
    return f"{table}.{column}={str(value)[:20]!r}"


def _document(rng: random.Random, connection: sqlite3.Connection) -> str:
    """Another value inside of a cell that holds JSON."""
    table, columns = _table(rng, connection)
    column = rng.choice(columns)
    rows = connection.execute(f'SELECT DISTINCT "{column}" FROM "{table}"').fetchall()
    texts = [v for (v,) in rows if isinstance(v, str) and v[:1] in ("{", "[")]
    if not texts:
        return _cell(rng, connection)
    old = rng.choice(texts)
    change, new = spoil_json(rng, json.loads(old))
    text = new.decode("utf-8", "replace")
    connection.execute(f'UPDATE "{table}" SET "{column}"=? WHERE "{column}"=?', (text, old))
    return f"{table}.{column} {change}"


def _view(rng: random.Random, connection: sqlite3.Connection) -> str:
    """A view in the place of a table."""
    table, columns = _table(rng, connection)
    query = rng.choice((f'{_ENDLESS} SELECT t.* FROM "t" AS t, r', 'SELECT * FROM "t"'))
    values = ", ".join("n" for _ in columns)
    query = rng.choice((query, f"{_ENDLESS} SELECT {values} FROM r"))
    try:
        connection.execute(f'ALTER TABLE "{table}" RENAME TO "t"')
        named = ", ".join(f'"{c}"' for c in columns)
        connection.execute(f'CREATE VIEW "{table}" ({named}) AS {query}')
    except sqlite3.Error:
        return "nothing"
    return f"{table} is a view"


def _generated(rng: random.Random, connection: sqlite3.Connection) -> str:
    """Columns that are calculated."""
    table, columns = _table(rng, connection)
    column = rng.choice(columns)
    heavy = rng.choice(("zeroblob(1e9)", "printf('%.100000000c', 'x')", "hex(zeroblob(1e8))"))
    try:
        connection.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "was"')
        connection.execute(f'ALTER TABLE "{table}" ADD COLUMN "{column}" AS ({heavy}) VIRTUAL')
    except sqlite3.Error:
        return "nothing"
    return f"{table}.{column} is calculated"


def _trigger(rng: random.Random, connection: sqlite3.Connection) -> str:
    table, _ = _table(rng, connection)
    event = rng.choice(("INSERT", "UPDATE"))
    try:
        connection.execute(
            f'CREATE TRIGGER "x" AFTER {event} ON "{table}" BEGIN {rng.choice(_ACTS)}; END'
        )
    except sqlite3.Error:
        return "nothing"
    return f"a trigger on {table}"


_ACTS = (
    f"SELECT count(*) FROM ({_ENDLESS} SELECT n FROM r)",
    "SELECT 1",
    "DELETE FROM sqlite_master",
)


def _structure(rng: random.Random, connection: sqlite3.Connection) -> str:
    table, columns = _table(rng, connection)
    statement = rng.choice((
        f'DROP TABLE "{table}"', f'ALTER TABLE "{table}" RENAME TO "x\'\"\"y"',
        f'ALTER TABLE "{table}" RENAME COLUMN "{columns[0]}" TO "x"', f'DELETE FROM "{table}"',
        f'INSERT INTO "{table}" SELECT * FROM "{table}"', "CREATE VIRTUAL TABLE v USING fts5(x)",
        "PRAGMA user_version=99", "PRAGMA application_id=1", "PRAGMA journal_mode=WAL",
        "PRAGMA encoding='UTF-16'",
    ))  # fmt: skip
    try:
        connection.execute(statement)
    except sqlite3.Error:
        return "nothing"
    return statement[:60]


_CHANGES: tuple[Callable[[random.Random, sqlite3.Connection], str], ...] = (
    *(_cell, _cell, _document, _document, _view, _view, _generated, _trigger, _structure),
)
