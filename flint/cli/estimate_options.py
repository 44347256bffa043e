"""The options of `flint estimate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

TracePath = Annotated[
    Path, typer.Argument(metavar="PATH", help="A trace directory, or a .flint file.")
]
ClusterName = Annotated[
    str,
    typer.Option(
        "--cluster",
        "-c",
        metavar="NAME|FILE",
        help="A preset ({clusters}), a TOML file, or ASTRA-sim's network.yml.",
    ),
]
ProfileName = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="NAME",
        help="Whose kernels: {profiles} (default: that of capture, else by chip and program).",
    ),
]
PolicyName = Annotated[
    str, typer.Option("--overlap", metavar="NAME", help="When communication begins: {policies}.")
]
Perfetto = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write the timeline of a rank class for ui.perfetto.dev."),
]
RankClass = Annotated[
    str | None,
    typer.Option(
        "--class",
        metavar="NAME",
        help="Rank class of --perfetto: its name or number, or all (default: the slowest).",
    ),
]
Window = Annotated[
    str | None,
    typer.Option(
        metavar="MS:MS",
        help="Times that --perfetto writes, in ms of the step (default: the first 100,000 nodes).",
    ),
]
