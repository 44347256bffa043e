"""Dimension: one thing that differs among the points of a space, and the values that it takes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, TypeAlias

from pydantic import AfterValidator

from flint.requests.estimate import EstimateRequest


class PointField(StrEnum):
    """The part of a point that a dimension sets, if it is no option of an estimate."""

    MESH = "mesh"
    SETTING = "setting"  #: of `--set`; of a script, one of its own options
    PIPELINE = "pipeline"  #: cut, schedule, microbatches, chunks
    CLUSTER = "cluster"
    CHANGE = "change"  #: of the cluster: its name is the path, "ib.bandwidth"


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
