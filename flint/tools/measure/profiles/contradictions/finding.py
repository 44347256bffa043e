"""What rules look at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from flint.tools.measure.profiles.profile import Profile


@dataclass(frozen=True)
class Checked:
    """The profile of one rank of a job of `world` ranks; `rows` are activities of the step taken."""

    rank: int
    world: int
    profile: Profile
    rows: NDArray[np.int64]


#: A rule gives a sentence for each thing that cannot be.
Rule: TypeAlias = Callable[[Checked], Iterator[str]]


def some(what: list[str], most: int = 3) -> str:
    """A few of many, in their order."""
    rest = f" and {len(what) - most} more" if len(what) > most else ""
    return ", ".join(what[:most]) + rest


def ms(ns: float) -> str:
    """Milliseconds."""
    return f"{ns / 1e6:,.3f} ms"
