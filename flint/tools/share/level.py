"""What is given away, and what is kept back: the levels of anonymizing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from flint.errors import FlintError, nearest
from flint.text import share_in

# How far totals may move: `--keep 2%`.

#: What is kept where nobody says.
DEFAULT_KEEP = 0.02
#: Wider bounds say little of the step that was shared.
MOST_KEEP = 0.25


def keep_of(value: float | str) -> float:
    """A bound as a share: of `2%`, `2 %`, `0.02` or a number. Raises FlintError FL907 for others."""
    given = math.nan if isinstance(value, bool) else value
    share = share_in(given) if isinstance(given, str) else float(given)
    if not 0 < share <= MOST_KEEP:
        shown = value if isinstance(value, str) else repr(value)
        raise FlintError(
            "FL907",
            f"totals cannot be kept within '{str(shown)[:40]}'",
            help=f"give a share above 0 and up to {MOST_KEEP:.0%}: 2% or 0.02",
        )
    return share


class Level(StrEnum):
    """How much of a workload is changed before it is shown."""

    NAMES = "names"  #: no names and no sources; everything else as it is
    SHAPES = "shapes"  #: and other dimensions, with totals and step times within a bound

    @property
    def promise(self) -> str:
        """What it promises, and what not, in one line."""
        if self is Level.NAMES:
            return "only names and sources are removed: structure and sizes identify as before"
        return (
            "names and sources are removed, sizes changed with totals within a bound: "
            "structure identifies as before"
        )


@dataclass(frozen=True, slots=True)
class LevelOptions:
    """A level, and what it is asked for: totals stay within the share `keep`, draws begin with `seed`."""

    level: Level
    keep: float = DEFAULT_KEEP
    seed: int | None = None


def options_of(
    level: str, keep: float | str | None = None, seed: int | None = None
) -> LevelOptions:
    """Options as users give them. Raises FlintError FL901 (level) or FL907 (`keep`, and what `names` has not)."""
    known = [one.value for one in Level]
    if level not in known:
        raise FlintError(
            "FL901",
            f"unknown level '{level}'{nearest(level, known)}",
            help="levels are " + ", ".join(known),
        )
    chosen = Level(level)
    if chosen is Level.NAMES and (keep is not None or seed is not None):
        raise FlintError(
            "FL907",
            "the level names changes no total and draws nothing",
            help="--keep and --seed are for the level shapes: add --level shapes",
        )
    if seed is not None and seed < 0:
        raise FlintError("FL907", f"a seed is a whole number from 0, not {seed}")
    return LevelOptions(chosen, DEFAULT_KEEP if keep is None else keep_of(keep), seed)
