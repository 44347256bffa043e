"""Point: one configuration of a program and of what it runs on."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator

from flint.io.inputs import digest


def _as_pairs(found: Any) -> Any:
    """Pairs of a table of JSON, which `to_json` makes of them; anything else as it is."""
    return tuple(sorted(found.items())) if isinstance(found, dict) else found


#: Names with values as they are written on the command line, sorted by name.
Pairs: TypeAlias = Annotated[tuple[tuple[str, str], ...], BeforeValidator(_as_pairs)]


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
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return digest(json.dumps(values, sort_keys=True).encode())

    def to_json(self) -> dict[str, Any]:
        """The fields that say something, pairs as tables."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        return {
            name: dict(value) if isinstance(value, tuple) else value
            for name, value in found.items()
            if value
        }
