"""Generations of a study: points that were evaluated with the same model, versions and environment."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path

from flint.errors import FlintError
from flint.io.inputs import CHANGED, ReadInput, ReadInputKind
from flint.tools.explore.result import Result
from flint.tools.explore.study.fingerprint import Fingerprints, shared_by_points
from flint.tools.explore.study.stored import read_stored
from flint.tools.explore.study.study import Study

# Whether points of a study's file are of what lies there now.


def require_current(path: Path, results: Iterable[Result]) -> None:
    """Raise FlintError FL872 if one of `results` is not of the model, machine and versions of now.

    `results` are of the study in the file `path`. What is captured anew would stand beside estimates
    of something else.
    """
    reason = _changed_since(path, results)
    if reason:
        raise FlintError(
            "FL872",
            f"{path} has outdated estimates: {reason}",
            help="explore the model again with this --study: changed points are evaluated anew",
        )


def _changed_since(path: Path, results: Iterable[Result]) -> str:
    shared = shared_by_points(Study.load(path).subject)
    stored, fingerprints, of_generation = read_stored(path), Fingerprints(), dict[int, str]()
    for result in results:
        row = stored.rows.get(result.point.key)
        if row is None:
            return "a point is gone"
        number = row.generation
        if number not in of_generation:
            then, inputs = stored.generations.get(number, {}), stored.inputs.get(number, ())
            of_generation[number] = why_not(then, inputs, shared)
        if of_generation[number]:
            return of_generation[number]
        if fingerprints.of(result.point) != row.fingerprint:
            return f"{result.point.cluster} or another file that points name changed"
    return ""


_WORDS = {"packages": "installed packages", "python": "Python", "flint": "Flint"}


def generation_of(
    connection: sqlite3.Connection, shared: Mapping[str, str]
) -> tuple[int, dict[int, str]]:
    """The generation that still holds, a new one if none does; and why each of the others does not."""
    reasons: dict[int, str] = {}
    current = 0
    rows = connection.execute("SELECT id, shared FROM generations ORDER BY id DESC").fetchall()
    for number, text in rows:
        reason = why_not(json.loads(text), inputs_of(connection, number), shared)
        if reason:
            reasons[number] = reason
        elif not current:
            current = number
        else:
            reasons[number] = "the model changed in between"
    if not current:
        current = 1 + max((number for number, _ in rows), default=0)
        said = json.dumps(dict(shared), sort_keys=True)
        connection.execute("INSERT INTO generations VALUES (?, ?)", (current, said))
    return current, reasons


def why_not(then: Mapping[str, str], inputs: Iterable[ReadInput], now: Mapping[str, str]) -> str:
    """What is not as it was for a generation: "model.py changed"; "" if it still holds."""
    names = sorted(n for n in {*then, *now} if then.get(n, "") != now.get(n, ""))
    if names:
        return f"{_WORDS.get(names[0], names[0])} changed"
    changed = [i.path for i in inputs if not i.is_current()]
    return f"{os.path.basename(changed[0])} changed" if changed else ""


def inputs_of(connection: sqlite3.Connection, number: int) -> list[ReadInput]:
    """What the captures of a generation have read: files first."""
    rows = connection.execute(
        "SELECT kind, path, digest FROM inputs WHERE generation=? ORDER BY kind, path", (number,)
    )
    return [ReadInput(ReadInputKind(kind), path, digest) for kind, path, digest in rows]


def add_inputs(connection: sqlite3.Connection, number: int, found: Iterable[ReadInput]) -> None:
    """Write down what captures of a generation have read.

    Raises FlintError FL872 for a file that had another content when another process read it.
    """
    known = {(i.kind, i.path): i.digest for i in inputs_of(connection, number)}
    for one in found:
        before = known.get((one.kind, one.path), one.digest)
        if before == one.digest:
            value = one.digest
        elif one.kind is ReadInputKind.FILE and CHANGED not in (before, one.digest):
            raise _changed(one.path)
        else:
            value = CHANGED  # what it was cannot be said: it is never current
        connection.execute(
            "INSERT OR REPLACE INTO inputs VALUES (?, ?, ?, ?)",
            (number, one.kind.value, one.path, value),
        )


def _changed(path: str) -> FlintError:
    return FlintError(
        "FL872",
        f"{os.path.basename(path)} changed during the exploration: some points belong to the earlier version",
        place=path,
        help="run the same command again: invalid points are evaluated anew",
    )
