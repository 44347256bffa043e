"""What the file of a study says, as records that were checked: before anything of it is used."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, NotRequired

from pydantic import Field, StrictInt
from typing_extensions import TypedDict

from flint.errors import Malformed
from flint.io.inputs import ReadInput, ReadInputKind
from flint.io.records import Count, Positive, Texts, record, record_of
from flint.io.sqlite import Tables
from flint.tools.explore.point import Point, SpaceDimension
from flint.tools.explore.result import Result
from flint.tools.explore.study.study_format import POINT_COLUMNS, open_stored
from flint.tools.explore.subject import Subject

#: What is counted on from: it never comes near the end of int64.
_Number = Annotated[StrictInt, Field(ge=0, lt=1 << 62)]
#: Points of one file: more would not fit into the memory of one machine.
_MOST_POINTS = 1 << 20


class SpaceRecord(TypedDict):
    """What `Space.to_json` gives."""

    dimensions: list[SpaceDimension]
    devices: list[Positive]
    axes: list[str]
    conditions: list[str]
    limits: NotRequired[list[str]]
    fixed: NotRequired[dict[str, str]]


@dataclass(frozen=True)
class About:
    """Of what a study is. `space` is as `Space.to_json` gives it."""

    subject: Subject
    target: str
    space: Mapping[str, Any]
    versions: Mapping[str, str]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PointRow:
    """The row of a point beside its result: the generation and fingerprint that it is of.

    `finished` numbers points in the order in which they were written.
    """

    generation: _Number
    fingerprint: str
    holds: bool
    finished: _Number


@dataclass(frozen=True)
class StoredStudy:
    """All of a file. `about` is None where its first process was killed before it said that.

    `rows` and `results` go by the keys of points.
    """

    about: About | None
    rows: Mapping[str, PointRow]
    results: Mapping[str, Result]
    generations: Mapping[int, Mapping[str, str]]
    inputs: Mapping[int, tuple[ReadInput, ...]]


def read_stored(path: Path) -> StoredStudy:
    """The content of a study file. Raises FlintError FL864 for a file that is not a study."""
    with open_stored(path) as tables:
        rows, results = {}, {}
        for key, row, result in _points(tables):
            rows[key], results[key] = row, result
        return StoredStudy(
            _about(tables), rows, results, dict(_generations(tables)), _inputs(tables)
        )


def _about(tables: Tables) -> About | None:
    said = {str(name): value for name, value in tables.rows("study", "name", "value")}
    if not said:
        return None
    missing = [n for n in ("subject", "target", "space", "versions", "notes") if n not in said]
    if missing:
        raise Malformed(f"it does not contain its {missing[0]}")
    record(SpaceRecord, said["space"])
    return About(
        record(Subject, said["subject"]),
        record_of(str, said["target"]),
        record(dict[str, Any], said["space"]),
        record(dict[str, str], said["versions"]),
        record(Texts, said["notes"]),
    )


def _points(tables: Tables) -> Iterator[tuple[str, PointRow, Result]]:
    for number, cells in enumerate(tables.rows("points", *POINT_COLUMNS)):
        if number >= _MOST_POINTS:
            raise Malformed(f"it has more than {_MOST_POINTS:,} points")
        found = dict(zip(POINT_COLUMNS, cells, strict=True))
        result = record(Result, found["result"])
        row = record_of(PointRow, {f.name: found[f.name] for f in fields(PointRow)})
        wrong = contradiction(found, result)
        if wrong:
            raise Malformed(f"a point contradicts itself: {wrong}")
        yield found["key"], row, result


def contradiction(cells: Mapping[str, Any], result: Result) -> str:
    """What of a row and its result cannot both be, or cannot be at all; "" if nothing."""
    if cells["key"] != result.point.key or record(Point, cells["point"]) != result.point:
        return "its result belongs to another point"
    for name in ("status", "code", "devices", "step_time_ns", "low_ns", "high_ns", "mfu", "tokens",
                 "memory_bytes", "capacity_bytes", "is_bound"):  # fmt: skip
        if cells[name] != getattr(result, name):
            return f"its {name} is {str(cells[name])[:40]} and {str(getattr(result, name))[:40]}"
    return result.contradiction()


def _generations(tables: Tables) -> Iterator[tuple[int, dict[str, str]]]:
    for number, shared in tables.rows("generations", "id", "shared"):
        yield record_of(_Number, number), record(dict[str, str], shared)


def _inputs(tables: Tables) -> dict[int, tuple[ReadInput, ...]]:
    found: dict[int, list[ReadInput]] = defaultdict(list)
    for generation, *said in tables.rows("inputs", "generation", "kind", "path", "digest"):
        kind, path, digest = record_of(tuple[ReadInputKind, str, str], tuple(said))
        found[record_of(Count, generation)].append(ReadInput(kind, path, digest))
    return {number: tuple(inputs) for number, inputs in found.items()}
