"""Whether points of a study's file are of what lies there now."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from flint.errors import FlintError
from flint.tools.explore.result import Result
from flint.tools.explore.study.fingerprint import Fingerprints, shared_by_points
from flint.tools.explore.study.generations import why_not
from flint.tools.explore.study.stored import read_stored
from flint.tools.explore.study.study import Study


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
