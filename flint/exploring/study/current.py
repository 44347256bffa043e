"""Whether points of a study's file are of what lies there now."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

from flint.errors import FlintError
from flint.exploring.result import Result
from flint.exploring.study.fingerprint import Fingerprints, shared_by_points
from flint.exploring.study.generations import why_not
from flint.exploring.study.study import Study
from flint.exploring.study.study_format import connect_to_read


def require_current(path: Path, results: Iterable[Result]) -> None:
    """Raise FlintError FL872 if one of `results` is not of the model, machine and versions of now.

    `results` are of the study in the file `path`. What is captured anew would stand beside estimates
    of something else.
    """
    reason = _changed_since(path, results)
    if reason:
        raise FlintError(
            "FL872",
            f"{path} has estimates of what was before: {reason}",
            help="explore the model again with this --study: what changed is evaluated anew",
        )


def _changed_since(path: Path, results: Iterable[Result]) -> str:
    shared = shared_by_points(Study.load(path).subject)
    fingerprints, of_generation = Fingerprints(), dict[int, str]()
    connection = connect_to_read(path)
    try:
        for result in results:
            generation, fingerprint = _row(connection, result)
            if generation not in of_generation:
                of_generation[generation] = why_not(connection, generation, shared)
            if of_generation[generation]:
                return of_generation[generation]
            if fingerprints.of(result.point) != fingerprint:
                return f"{result.point.cluster} or another file that points name changed"
    finally:
        connection.close()
    return ""


def _row(connection: sqlite3.Connection, result: Result) -> tuple[int, str]:
    row = connection.execute(
        "SELECT generation, fingerprint FROM points WHERE key=?", (result.point.key,)
    ).fetchone()
    return int(row[0]), str(row[1])
