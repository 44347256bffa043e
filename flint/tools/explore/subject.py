"""Subject: what stays the same over all points of a study."""

from __future__ import annotations

from dataclasses import dataclass

from flint.io.records import NonNegative
from flint.tools.explore.point import Pairs


@dataclass(frozen=True, slots=True)
class Subject:
    """What is explored: a model, as `flint capture` takes it, and how its points are evaluated.

    Texts are as the command line takes them. `settings` and `pipeline` hold for all points; what a
    point says of the same name takes their place.
    """

    model: str  #: "FILE[:ENTRY]"
    args: str | None = None
    settings: Pairs = ()
    pipeline: Pairs = ()  #: cut, schedule, microbatches, chunks
    trip_counts: tuple[str, ...] = ()  #: "NAME=N"
    partitioner: str = "shardy"
    compiler: str = ""
    profile: str = "none"
    world: bool = False
    script_arguments: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()  #: "WHERE=VALUE"
    #: Tokens of a step, as an expression over options and mesh axes; "": see `tokens.py`.
    tokens: str = ""
    #: Whether points whose memory does not fit are priced, too.
    keep_infeasible: bool = False
    limit_seconds: NonNegative = 600  #: of one capture; one that takes longer is FAILED
