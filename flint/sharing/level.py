"""What is given away, and what is kept back: the levels of anonymising."""

from __future__ import annotations

from enum import StrEnum

from flint.errors import FlintError, nearest


class Level(StrEnum):
    """How much of a workload is changed before it is shown."""

    NAMES = "names"  #: no names and no sources; everything else as it is


def find_level(name: str) -> Level:
    """The level of a name. Raises FlintError FL901 for another one."""
    known = [level.value for level in Level]
    if name not in known:
        raise FlintError(
            "FL901",
            f"unknown level '{name}'{nearest(name, known)}",
            help="levels are " + ", ".join(known),
        )
    return Level(name)
