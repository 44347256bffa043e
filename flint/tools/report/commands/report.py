"""`flint report`: one page to look at, of an estimate or of two side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from typing_extensions import TypedDict

from flint.cli.console import print_json, print_note
from flint.cli.inputs import load_workload
from flint.cli.options import READS, Force, Json, Quiet, Verbose, Writes
from flint.cli.progress import stages_shown
from flint.cli.requests import takes_requests
from flint.io.outputs import OutputKind
from flint.requests.estimate import EstimateRequest


class ReportDocument(TypedDict):
    """A page that was written."""

    schema: Literal["flint.report/1"]  #: Kind and version of this document.
    file: str  #: The HTML file.
    bytes: int  #: Its size.


@takes_requests
def report(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A trace directory, or a .flint file."), READS
    ],
    other: Annotated[
        Path | None,
        typer.Argument(metavar="[OTHER]", help="A second one, for a comparison."),
        READS,
    ] = None,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="HTML file to write."),
        Writes(OutputKind.PAGE),
    ] = Path("report.html"),
    *,
    request: EstimateRequest,
    class_: Annotated[
        str | None,
        typer.Option(
            "--class",
            metavar="NAME",
            help="Rank class to show: its name or number (default: the slowest).",
        ),
    ] = None,
    force: Force = False,
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Write an estimate as one HTML page, or two side by side.

    The page is self-contained: where the time goes, a timeline to zoom, exposed communication with
    causes, memory over time, kernels under the chip's rooflines, collectives, the critical path,
    the pipeline schedule, and every constant with its source.
    """
    from flint.backends.cost.estimate import estimate

    with stages_shown(quiet=quiet or json_):
        paths = (path, *([other] if other is not None else []))
        found = [estimate(load_workload(p), request) for p in paths]
    size = found[0].report(
        output,
        against=found[1] if other is not None else None,
        names=(_name(path), _name(other)) if other is not None else None,
        rank_class=class_,
        force=force,
    )
    if json_:
        document: ReportDocument = {"schema": "flint.report/1", "file": str(output), "bytes": size}
        print_json(document)
    else:
        print_note(f"wrote   {output} ({size / 1e3:,.0f} kB)", quiet=quiet)


def _name(path: Path) -> str:
    """What a side of a comparison is called: the file or directory, without where it lies."""
    return path.resolve().name.removesuffix(".flint")
