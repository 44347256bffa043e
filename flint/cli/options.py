"""Options that commands share, and those of `flint capture`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from flint.cli.paths import Writes

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print only results and errors: no progress.")
]
Verbose = Annotated[
    int,
    typer.Option(
        "--verbose",
        "-v",
        count=True,
        show_default=False,
        help="Print more: stages, tracebacks of user code, the log on stderr (-vv: all of it).",
    ),
]
Rank = Annotated[int, typer.Option("--rank", metavar="N", help="Look at the program of this rank.")]


class Granularity(StrEnum):
    """What one node of a trace is."""

    OP = "op"
    KERNEL = "kernel"


class TensorSize(StrEnum):
    """What `tensor_size` of a node counts."""

    TOTAL = "total"
    OUTPUT = "output"


class GroupForm(StrEnum):
    """How a node says who takes part in its collective."""

    NAMES = "names"
    DIMS = "dims"


MeshText = Annotated[
    str | None,
    typer.Option(
        "--mesh",
        "-m",
        metavar="MESH",
        help="64x8, or data=64,model=8 (a dump may contain its own).",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="DIR", help="Write traces here (else: summary only)."),
    Writes(or_traces=True),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Option of the entry (repeatable)."),
]
GranularityChoice = Annotated[
    Granularity, typer.Option("--granularity", help="One node per operation or per kernel.")
]
Ranks = Annotated[
    str,
    typer.Option("--ranks", metavar="RANKS", help="Ranks to write: all, classes or 0,8-15."),
]
TensorSizeChoice = Annotated[
    TensorSize,
    typer.Option("--tensor-size", help="Bytes of operands and results, or of results."),
]
GroupsChoice = Annotated[
    GroupForm, typer.Option("--groups", help="Name communicator groups, or flag mesh dimensions.")
]
Link = Annotated[bool, typer.Option("--link", help="Hard-link ranks with equal bytes.")]


CaptureNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME...]", help="Captures of flint.toml (default: all)."),
]
Jobs = Annotated[
    int,
    typer.Option("--jobs", "-j", metavar="N", min=0, help="Captures at a time (0: processors)."),
]
