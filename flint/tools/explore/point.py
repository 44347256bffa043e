"""Point: one configuration of a program and of what it runs on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, BeforeValidator, model_validator

from flint.io.inputs import digest
from flint.requests.estimate import EstimateRequest

# Dimension: one thing that differs among the points of a space, and the values that it takes.


class PointField(StrEnum):
    """The part of a point that a dimension sets, if it is no option of an estimate."""

    MESH = "mesh"
    SETTING = "setting"  #: of `--set`; of a script, one of its own options
    PIPELINE = "pipeline"  #: cut, schedule, microbatches, chunks
    CLUSTER = "cluster"
    CHANGE = "change"  #: of the cluster: its name is the path, "ib.bandwidth"
    SERVE = "serve"  #: of a replay of requests (`--serve`)


#: Options of an estimate in which points may differ, by the fields of its request.
SWEPT = {name: o for name, o in EstimateRequest.options().items() if o.swept}
#: Every part of a point. Points of one program come one after the other: what is captured is slowest.
FIELDS = (*PointField, *SWEPT)


def _known(field: str) -> str:
    if field not in FIELDS:
        raise ValueError(f"a point has no {field}")
    return field


FieldName: TypeAlias = Annotated[str, AfterValidator(_known)]


@dataclass(frozen=True, slots=True)
class SpaceDimension:
    """`values` as the command line takes them, at least one, each once."""

    name: str
    field: FieldName  #: one of FIELDS
    values: tuple[str, ...]
    #: Who asked for it: "declared" (the entry), an option as it is typed ("--sweep", "-c",
    #: "--devices", "--mesh"), or "default".
    origin: str


# What a point chose, by name: axes of its mesh, options, and what it is estimated on.


def choices(point: Point) -> dict[str, str]:
    """Names with what was chosen, as they are typed; "" is what is taken without a choice.

    An axis and an option of one name are told apart: the option is called `--set NAME`.
    """
    axes = dict(axis.split("=", 1) for axis in point.mesh.split(",") if "=" in axis)
    found = axes if axes or not point.mesh else {"mesh": point.mesh}
    for name, value in (*point.settings, *point.pipeline):
        found[f"--set {name}" if name in axes else name] = value
    found["cluster"] = point.cluster
    found |= {f"cluster.{name}": value for name, value in point.changes}
    found |= {name if name not in found else f"serve.{name}": v for name, v in point.serve}
    chosen = dict(point.estimate)
    found |= {option.typed: chosen.get(name, "") for name, option in SWEPT.items()}
    return found


def varying(points: Iterable[Point]) -> dict[str, list[str]]:
    """Choices that differ between points, with their values: numbers ascend, others stand in the
    order in which they come. A point without a choice of a name chose ""."""
    chosen = [choices(point) for point in points]
    names = list(dict.fromkeys(name for c in chosen for name in c))
    values = {name: list(dict.fromkeys(c.get(name, "") for c in chosen)) for name in names}
    return {name: _ordered(found) for name, found in values.items() if len(found) > 1}


def _ordered(values: list[str]) -> list[str]:
    try:
        return sorted(values, key=lambda value: float(value) if value else float("-inf"))
    except ValueError:
        return values


def _as_pairs(found: Any) -> Any:
    """Pairs of a table of JSON, which `to_json` makes of them; anything else as it is."""
    return tuple(sorted(found.items())) if isinstance(found, dict) else found


#: Names with values as they are written on the command line, sorted by name.
Pairs: TypeAlias = Annotated[tuple[tuple[str, str], ...], BeforeValidator(_as_pairs)]

#: Options that keys of points name even if they were not chosen: keys in files stay as they are.
_IN_KEYS = {"stack": "", "policy": "", "mapping": "", "routing": ""}


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """What is captured (`mesh`, `settings`, `pipeline`) and what that is estimated on (the rest).

    Texts are as the command line takes them; "" is what `flint capture` and `flint estimate` take
    without the option.
    """

    mesh: str = ""  #: "data=64,model=8"; "" for a program in a file that says its own
    cluster: str = ""  #: a preset, or the path of a file
    settings: Pairs = ()  #: of `--set`
    pipeline: Pairs = ()  #: cut, schedule, microbatches, chunks
    changes: Pairs = ()  #: of the cluster: ("ib.bandwidth", "100GB/s")
    #: Options of an estimate that were chosen: fields of its request, in their order there.
    estimate: tuple[tuple[str, str], ...] = ()
    serve: Pairs = ()  #: what is replayed, and on which engines: ("rate", "10/s")

    @model_validator(mode="wrap")
    @classmethod
    def _read(cls, found: Any, make: Callable[[Any], Any]) -> Any:
        """A point as `to_json` writes it has options of an estimate beside its other fields."""
        if isinstance(found, dict):
            chosen = tuple((name, found[name]) for name in SWEPT if name in found)
            rest = {name: value for name, value in found.items() if name not in SWEPT}
            found = {**rest, "estimate": chosen}
        return make(found)

    @property
    def program(self) -> Point:
        """The point with nothing but what is captured: equal for those that share a capture."""
        return Point(self.mesh, "", self.settings, self.pipeline)

    @property
    def key(self) -> str:
        """A digest that tells points apart."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "estimate"}
        if not self.serve:
            del values["serve"]  # keys in files stay as they are
        values |= {**_IN_KEYS, **dict(self.estimate)}
        return digest(json.dumps(values, sort_keys=True).encode())

    def to_json(self) -> dict[str, Any]:
        """The fields that say something, pairs as tables."""
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "estimate"}
        said = {
            name: dict(value) if isinstance(value, tuple) else value
            for name, value in found.items()
            if value
        }
        return {**said, **dict(self.estimate)}
