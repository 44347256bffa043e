"""Point: one configuration of a program and of what it runs on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeAlias

from flint.io.inputs import digest

#: Names with values as they are written on the command line, sorted by name.
Pairs: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """What is captured (`mesh`, `settings`, `pipeline`) and what that is estimated on (the rest).

    Texts are as the command line takes them; "" is what `flint capture` and `flint estimate` take
    without the option.
    """

    mesh: str  #: "data=64,model=8"
    cluster: str  #: a preset, or the path of a file
    settings: Pairs = ()  #: of `--set`
    pipeline: Pairs = ()  #: cut, schedule, microbatches, chunks
    changes: Pairs = ()  #: of the cluster: ("ib.bandwidth", "100GB/s")
    stack: str = ""
    policy: str = ""
    mapping: str = ""
    routing: str = ""

    @property
    def program(self) -> Point:
        """The point with nothing but what is captured: equal for those that share a capture."""
        return Point(self.mesh, "", self.settings, self.pipeline)

    @property
    def key(self) -> str:
        """A digest that tells points apart."""
        return digest(json.dumps(asdict(self), sort_keys=True).encode())

    def to_json(self) -> dict[str, Any]:
        """The fields that say something, pairs as tables."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        return {
            name: dict(value) if isinstance(value, tuple) else value
            for name, value in found.items()
            if value
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Point:
        """The point that `to_json` gave."""
        values: dict[str, Any] = {
            name: tuple(sorted((str(k), str(v)) for k, v in value.items()))
            if isinstance(value, Mapping)
            else str(value)
            for name, value in found.items()
        }
        return cls(**{"cluster": "", "mesh": "", **values})  # what says nothing was left out
