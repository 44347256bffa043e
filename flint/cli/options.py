"""Options that commands share."""

from __future__ import annotations

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
