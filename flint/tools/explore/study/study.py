"""Study: the results of a space, and what they are of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from flint.errors import FlintError
from flint.text import plural
from flint.tools.explore.point import SWEPT, Point, PointField, SpaceDimension
from flint.tools.explore.result import Result
from flint.tools.explore.space.conditions import Condition, parse_conditions
from flint.tools.explore.space.expression import Value
from flint.tools.explore.space.names import Scope, as_name
from flint.tools.explore.study.stored import read_stored
from flint.tools.explore.subject import Subject

# What is said of the space of a study whose file has points of several explorations.

_OPTIONS = (PointField.SETTING, PointField.PIPELINE)
#: A dimension: the part of a point that it sets, and its name.
_Key: TypeAlias = tuple[str, str]


def of_all(
    space: Mapping[str, Any], results: Sequence[Result]
) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """The last exploration's space as it holds for all results, and notes on those of others.

    Values that only other points have are among its own; conditions that do not hold everywhere are
    omitted.
    """
    asked = {(d["field"], d["name"]): d for d in space["dimensions"]}
    chosen = [dict(_chosen(r.point, asked)) for r in results]
    met = _met(space, results)
    own = [_within(c, asked) and all(holds) for c, holds in zip(chosen, met, strict=True)]
    if all(own):
        return space, ()
    keys = dict.fromkeys((*asked, *(key for c in chosen for key in c)))
    dimensions = [_wider(key, asked.get(key), [c.get(key, "") for c in chosen]) for key in keys]
    texts = space.get("conditions", ())
    kept = [text for at, text in enumerate(texts) if all(holds[at] for holds in met)]
    count = plural(own.count(False), "point")
    note = f"{count} are from earlier explorations, which had other values or conditions"
    return {**space, "dimensions": dimensions, "conditions": kept}, (note,)


def words_of(space: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    """Values by option, which conditions may have without quotes."""
    words = {as_name(name): (value,) for name, value in space.get("fixed", {}).items()}
    return {**words, **{as_name(d["name"]): d["values"] for d in space["dimensions"]}}


def scope_of(space: Mapping[str, Any]) -> Scope:
    """The names that conditions on points of a space may have."""
    options = [d["name"] for d in space["dimensions"] if d["field"] in _OPTIONS]
    fixed = [name for name in space.get("fixed", {}) if name not in options]
    served = tuple(d["name"] for d in space["dimensions"] if d["field"] == PointField.SERVE)
    return Scope(tuple(space.get("axes", ())), (*fixed, *options), served)


def _chosen(point: Point, asked: Mapping[_Key, Any]) -> Iterator[tuple[_Key, str]]:
    """What a point chose; of what it is estimated on, what it names or an exploration asked for."""
    for field, pairs in (
        (PointField.SETTING, point.settings),
        (PointField.PIPELINE, point.pipeline),
        (PointField.CHANGE, point.changes),
        (PointField.SERVE, point.serve),
    ):
        yield from (((field.value, name), value) for name, value in pairs)
    estimate = dict(point.estimate)
    for part, name, text in (
        (PointField.MESH.value, "mesh", point.mesh),
        (PointField.CLUSTER.value, "cluster", point.cluster),
        *((n, option.typed, estimate.get(n, "")) for n, option in SWEPT.items()),
    ):
        if text or (part, name) in asked:
            yield (part, name), text


def _within(chosen: Mapping[_Key, str], asked: Mapping[_Key, Any]) -> bool:
    return chosen.keys() == asked.keys() and all(
        value in asked[key]["values"] for key, value in chosen.items()
    )


def _wider(key: _Key, asked: Mapping[str, Any] | None, values: Sequence[str]) -> dict[str, Any]:
    found = dict(asked or {"name": key[1], "field": key[0], "values": (), "origin": "before"})
    return {**found, "values": list(dict.fromkeys((*found["values"], *values)))}


def _met(space: Mapping[str, Any], results: Sequence[Result]) -> list[list[bool]]:
    """For each result, whether each of the conditions holds; one that cannot be told does not."""
    scope, fixed = scope_of(space), tuple(dict(space.get("fixed", {})).items())
    conditions = parse_conditions(space.get("conditions", ()), scope, words_of(space))
    if not conditions:
        return [[] for _ in results]
    return [
        [_holds(condition, names) for condition in conditions]
        for names in (scope.at(r.point, fixed) for r in results)
    ]


def _holds(condition: Condition, names: Mapping[str, Value]) -> bool:
    try:
        return condition.holds(names)
    except FlintError:
        return False


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
