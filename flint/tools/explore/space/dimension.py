"""Dimension: one thing that differs among the points of a space, and the values that it takes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Field(StrEnum):
    """The part of a point that a dimension sets."""

    MESH = "mesh"
    SETTING = "setting"  #: of `--set`; of a script, one of its own options
    PIPELINE = "pipeline"  #: cut, schedule, microbatches, chunks
    CLUSTER = "cluster"
    CHANGE = "change"  #: of the cluster: its name is the path, "ib.bandwidth"
    STACK = "stack"
    POLICY = "policy"
    MAPPING = "mapping"
    ROUTING = "routing"


@dataclass(frozen=True, slots=True)
class Dimension:
    """`values` as the command line takes them, at least one, each once."""

    name: str
    field: Field
    values: tuple[str, ...]
    #: Who asked for it: "declared" (the entry), an option as it is typed ("--sweep", "-c",
    #: "--devices", "--mesh"), or "default".
    origin: str
