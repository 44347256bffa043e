"""Point: one configuration of a program and of what it runs on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator, model_validator

from flint.io.inputs import digest
from flint.tools.explore.space.dimension import SWEPT


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
