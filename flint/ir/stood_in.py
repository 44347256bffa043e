"""What stood in, when a program was recorded, for software and data that were not there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StoodIn:
    """`packages` are those whose stand-ins worked in the step ("transformer_engine"), `stack` the stack
    of software that they are part of ("megatron", "" if none). `shares` are lines (`train.py:80`) at
    which no data said how many rows each expert has: all have as many, or what a hint says.
    """

    packages: tuple[str, ...] = ()
    stack: str = ""
    shares: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> StoodIn:
        """What `to_json` gave."""
        return cls(
            tuple(map(str, found.get("packages", ()))),
            str(found.get("stack", "")),
            tuple(map(str, found.get("shares", ()))),
        )

    def to_json(self) -> dict[str, Any]:
        """For a workload's metadata, key "stood_in"."""
        return asdict(self)
