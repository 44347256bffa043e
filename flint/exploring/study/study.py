"""Study: the results of a space, and what they are of."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from flint.errors import FlintError
from flint.exploring.result import Result
from flint.exploring.space.dimension import Dimension, Field
from flint.exploring.study.spaces import of_all
from flint.exploring.study.study_format import connect_to_read
from flint.exploring.subject import Subject


@dataclass(frozen=True)
class Study:
    """Results in the order of their points, so that it does not depend on which finished first.

    `space` is what `Space.to_json` gives. `left_out` counts points that conditions forbid by the
    condition; it is empty for a study that was loaded. `notes` say what of before does not hold.
    """

    subject: Subject
    space: Mapping[str, Any]
    results: tuple[Result, ...]
    versions: Mapping[str, str]
    notes: tuple[str, ...] = ()
    #: Points that were taken from the file, not evaluated now.
    reused: int = 0
    #: Points of the space that a search did not look at; 0 of an exhaustive study.
    not_explored: int = 0

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """What differs among points, with the values that were asked for."""
        return tuple(
            Dimension(d["name"], Field(d["field"]), tuple(d["values"]), d["origin"])
            for d in self.space["dimensions"]
        )

    @classmethod
    def load(cls, path: str | Path) -> Study:
        """The study of a file: what held when it was written to last.

        Its space is the last one that was explored, with what other points chose. It is read alone: whether files have changed since is not looked at. Raises FlintError FL864
        for a file that is no study.
        """
        connection = connect_to_read(Path(path))
        try:
            about = dict(connection.execute("SELECT name, value FROM study").fetchall())
            rows = connection.execute("SELECT result FROM points WHERE holds=1").fetchall()
        except sqlite3.Error as error:
            raise _unreadable(path, str(error)) from error
        finally:
            connection.close()
        if not about:
            raise _unreadable(path, "it is empty")
        results = in_order(Result.from_json(json.loads(text)) for (text,) in rows)
        space, notes = of_all(json.loads(about["space"]), results)
        return cls(
            subject_from(json.loads(about["subject"])),
            space,
            results,
            json.loads(about["versions"]),
            (*json.loads(about["notes"]), *notes),
        )


def in_order(results: Any) -> tuple[Result, ...]:
    """Sorted by their points."""
    return tuple(sorted(results, key=lambda r: r.point))


def subject_from(found: Mapping[str, Any]) -> Subject:
    """The subject whose fields, as JSON has them, these are."""
    return Subject(
        **{f.name: _as_tuples(found[f.name]) for f in fields(Subject) if f.name in found}
    )


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def _unreadable(path: str | Path, why: str) -> FlintError:
    return FlintError(
        "FL864", f"{path} is no study that can be read: {why}", help="run the exploration again"
    )
