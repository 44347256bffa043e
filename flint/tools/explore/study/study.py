"""Study: the results of a space, and what they are of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flint.errors import FlintError
from flint.tools.explore.point import SpaceDimension
from flint.tools.explore.result import Result
from flint.tools.explore.study.spaces import of_all
from flint.tools.explore.study.stored import read_stored
from flint.tools.explore.subject import Subject

_ANEW = "run the exploration again"


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
    def dimensions(self) -> tuple[SpaceDimension, ...]:
        """What differs among points, with the values that were asked for."""
        return tuple(
            SpaceDimension(d["name"], d["field"], tuple(d["values"]), d["origin"])
            for d in self.space["dimensions"]
        )

    @classmethod
    def load(cls, path: str | Path) -> Study:
        """The study of a file: what held when it was written to last.

        Its space is the last one that was explored, with what other points chose. It is read alone: whether files have changed since is not looked at. Raises FlintError FL864
        for a file that is not a study.
        """
        stored = read_stored(Path(path))
        about = stored.about
        if about is None:
            raise FlintError("FL864", f"{path} is a study without a point", help=_ANEW)
        results = in_order(r for key, r in stored.results.items() if stored.rows[key].holds)
        try:
            space, notes = of_all(about.space, results)
        except FlintError as error:  # conditions that nobody can have asked for
            said = f"{path} has impossible conditions: {error.message}"
            raise FlintError("FL864", said, help=_ANEW) from error
        return cls(about.subject, space, results, about.versions, (*about.notes, *notes))


def in_order(results: Any) -> tuple[Result, ...]:
    """Sorted by their points."""
    return tuple(sorted(results, key=lambda r: r.point))
