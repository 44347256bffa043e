"""`flint serve`: TTFT, TPOT, latency and throughput of a model behind an inference engine."""

from __future__ import annotations

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

Html = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Write a page: times and caches over time."),
    Writes(OutputKind.PAGE),
]
Perfetto = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write passes and requests for ui.perfetto.dev."),
    Writes(OutputKind.TIMELINE),
]

_SAID = Said({"mesh": "Devices of one engine: 8, or model=8."})
#: Options of captures that a pass of an engine has no use for.
_NO_PASS = (
    "world",
    "chunks",
    "cut",
    "microbatches",
    "schedule",
    "steps",
    "step",
    "chip",
    "clusters",
    "hints",
    "cross_check",
    "profile",
    "script_arguments",
    "compiler",
)


@takes_requests
def serve(
    captured: Annotated[CaptureRequest, Without(_NO_PASS), _SAID],
    asked: ServeRequest,
    estimated: EstimateRequest,
    output: Output = None,
    html: Html = None,
    perfetto: Perfetto = None,
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

    files = {OutputKind.REQUESTS: output, OutputKind.PAGE: html, OutputKind.TIMELINE: perfetto}
    asked_for = [(kind, path) for kind, path in files.items() if path is not None]
    for kind, path in asked_for:
        refuse_to_replace(path, kind, force=force)
    exports = exports_of(asked, force=force)
    with stages_shown(quiet=quiet or json_):
        found = served_by(captured, estimated, asked)
    if json_:
        from flint.tools.serve.document import serve_document

        print_json(serve_document(found))
    else:
        from flint.tools.serve.show import served_text

        print_text(served_text(found), end="")
    for kind, path in asked_for:
        write_output(path, _file(found, kind), kind, force=force)
        print_note(f"wrote   {path}", quiet=quiet or json_)
    for name, directory in exports:
        export_served(found, asked, name, directory, force=force)
        print_note(f"wrote   {directory}", quiet=quiet or json_)
    if found.summary.overload or found.summary.not_ended:
        raise typer.Exit(FOUND)


def _file(found: Served, kind: OutputKind) -> bytes:
    if kind is OutputKind.PAGE:
        from flint.tools.serve.page import served_html

        return served_html(found).encode()
    if kind is OutputKind.TIMELINE:
        from flint.tools.serve.timeline import timeline_of

        return timeline_of(found.replay)
    from flint.tools.serve.export.table import csv_of
    from flint.tools.serve.serve import REQUEST_COLUMNS, requests_rows

    return csv_of(REQUEST_COLUMNS, requests_rows(found))
