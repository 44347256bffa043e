"""Options that commands share, and those of `flint capture`."""

from __future__ import annotations

import os
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from flint.io.outputs import OutputKind, refuse_same_place, refuse_to_replace

# What commands read and write, said beside their options, and looked at before any of them works.
#
# Every option and argument that names a path has `READS` or a `Writes` in its annotation: a test asks
# each command for its own.


@dataclass(frozen=True)
class Reads:
    """A file or a directory that is only read, or a text in which one may be named."""


@dataclass(frozen=True)
class Writes:
    """A file of a kind; with None a directory.

    `or_traces`: a name without .flint is a directory of traces, which is replaced as a whole; where
    graphs are written, the name of a directory.
    `or_workload`: a name with .flint is a workload. `adds`: what is there is added to, not replaced.
    `unless`: a parameter with which the command itself looks at what is there.
    """

    kind: OutputKind | None = None
    or_traces: bool = False
    or_workload: bool = False
    adds: bool = False
    unless: str = ""

    def kind_of(self, path: Path) -> OutputKind | None:
        """The kind of the file at `path`; None for a directory."""
        if path.suffix == ".flint" and (self.or_traces or self.or_workload):
            return self.kind and OutputKind.WORKLOAD
        in_folder = self.kind in (None, OutputKind.WORKLOAD) or os.path.isdir(path)
        return None if self.or_traces and in_folder else self.kind


READS = Reads()
Force = Annotated[
    bool,
    typer.Option(
        "--force", help="Replace a file even if Flint did not write it. Inputs are never replaced."
    ),
]


def roles_of(command: Callable[..., None]) -> dict[str, Reads | Writes]:
    """The parameters of a command that name paths, and what becomes of these."""
    found = {}
    for name, hint in typing.get_type_hints(command, include_extras=True).items():
        for part in getattr(hint, "__metadata__", ()):
            if isinstance(part, (Reads, Writes)):
                found[name] = part
    return found


def refuse_outputs(command: Callable[..., None], given: Mapping[str, Any]) -> None:
    """Raise FlintError for what a command may not, or cannot, write, before it does anything.

    FL508: a file that Flint did not write as what it would become, without --force. FL509: an output
    that is an input, or two that are one. FL501, FL502, FL505, FL506 as for directories and files.
    """
    roles = roles_of(command)
    outputs = [
        (name, path, role)
        for name, role in roles.items()
        if isinstance(role, Writes) and isinstance(path := given.get(name), Path)
    ]
    if not outputs:
        return
    inputs = [
        path
        for name, role in roles.items()
        if isinstance(role, Reads) or role.adds
        for path in _paths(given.get(name))
    ]
    replaced = [(name, path, role) for name, path, role in outputs if not role.adds]
    refuse_same_place([(f"--{name}", path) for name, path, _ in replaced], inputs)
    for _, path, role in replaced:
        kind = role.kind_of(path)
        if given.get(role.unless) is not None:
            continue
        if kind is not None:
            refuse_to_replace(path, kind, force=bool(given.get("force")))
        else:
            from flint.backends.chakra.writing.output import refuse_output

            refuse_output(path, inputs)


def _paths(value: Any) -> Iterator[Path]:
    """Paths that there are among the words of an option: MODEL.py:NAME, KIND=FILE, A,B."""
    if isinstance(value, Path):
        yield value
    elif isinstance(value, str):
        words = dict.fromkeys((value, *re.split("[:=,]", value)))
        yield from (Path(word) for word in words if word and os.path.lexists(word))
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _paths(each)


HintsChoice = Annotated[
    bool | None,
    typer.Option("--hints/--no-hints", help="Try all changes that may help, or none."),
]
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
    """How a node says who takes part in its collective; p2p: collectives are messages."""

    NAMES = "names"
    DIMS = "dims"
    P2P = "p2p"


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
    str, typer.Option("--ranks", metavar="RANKS", help="Ranks to write: all, classes or 0,8-15.")
]
TensorSizeChoice = Annotated[
    TensorSize, typer.Option("--tensor-size", help="Bytes of operands and results, or of results.")
]
GroupsChoice = Annotated[
    GroupForm,
    typer.Option(
        "--groups",
        help="Name communicator groups, flag mesh dimensions, or write collectives as sends and receives (p2p).",
    ),
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
