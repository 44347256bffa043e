"""Options that commands share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print results and errors only: no progress.")
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print more: stages, tracebacks of user code.")
]
Rank = Annotated[
    int, typer.Option("--rank", metavar="N", help="Look at the program that this rank runs.")
]


class Unpriced(StrEnum):
    """What becomes of operations without a price."""

    ZERO = "zero"


UnpricedChoice = Annotated[
    Unpriced | None,
    typer.Option(
        "--unpriced", help="Count operations without a price as nothing: times are lower bounds."
    ),
]
Mapping = Annotated[
    str | None,
    typer.Option(
        "--map",
        metavar="AXIS=TIER,...",
        help="Network tiers of mesh axes, model=nvlink,data=ib (default: the last axis in the inner "
        "tier; flint clusters show NAME has their names).",
    ),
]
