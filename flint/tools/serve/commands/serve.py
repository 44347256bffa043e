"""`flint serve`: TTFT, TPOT, latency and throughput of a model behind an inference engine."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flint.cli.console import print_json, print_note, print_text
from flint.cli.exits import FOUND
from flint.cli.options import Force, Json, Quiet, Verbose, Writes
from flint.cli.progress import stages_shown
from flint.cli.requests import Said, Without, takes_requests
from flint.io.outputs import OutputKind, refuse_to_replace, write_output
from flint.requests.capture import CaptureRequest
from flint.requests.estimate import EstimateRequest
from flint.tools.serve.request import ServeRequest

if TYPE_CHECKING:
    from flint.tools.serve.serve import Served

Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE.csv", help="Also write a row for each request."),
    Writes(OutputKind.REQUESTS),
]

_SAID = Said({"mesh": "Devices of one engine: 8, or model=8."})
#: Options of captures that a pass of an engine has no use for.
_NO_PASS = (
    "world", "chunks", "cut", "microbatches", "schedule", "steps", "step", "chip", "clusters",
    "hints", "cross_check", "profile", "script_arguments", "compiler",
)  # fmt: skip


@takes_requests
def serve(
    captured: Annotated[CaptureRequest, Without(_NO_PASS), _SAID],
    asked: ServeRequest,
    estimated: EstimateRequest,
    output: Output = None,
    force: Force = False,
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Replay requests on an inference engine that serves a model.

    MODEL has an entry with the options batch, new and context: one pass of the engine, which computes
    some new tokens of each sequence behind those that its cache holds (docs/serve.md). It is captured at
    fourteen sizes; what any other pass takes follows from these. Exits with 1 if requests come faster
    than they are served, or never end.
    """
    from flint.tools.serve.export.export import export_served, exports_of
    from flint.tools.serve.serve import serve as served_by

    if output is not None:
        refuse_to_replace(output, OutputKind.REQUESTS, force=force)
    exports = exports_of(asked)
    with stages_shown(quiet=quiet or json_):
        found = served_by(captured, estimated, asked)
    if json_:
        from flint.tools.serve.document import serve_document

        print_json(serve_document(found))
    else:
        from flint.tools.serve.show import served_text

        print_text(served_text(found), end="")
    if output is not None:
        write_output(output, _table(found), OutputKind.REQUESTS, force=force)
        print_note(f"wrote   {output}", quiet=quiet or json_)
    for kind, directory in exports:
        export_served(found, asked, kind, directory, force=force)
        print_note(f"wrote   {directory}", quiet=quiet or json_)
    if found.summary.overload or found.summary.not_ended:
        raise typer.Exit(FOUND)


def _table(found: Served) -> bytes:
    from flint.tools.serve.serve import REQUEST_COLUMNS, requests_rows

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(REQUEST_COLUMNS)
    writer.writerows(requests_rows(found))
    return text.getvalue().encode()
