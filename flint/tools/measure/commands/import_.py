"""`flint import`: profiles of steps that ran become a workload with measured times."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flint.cli.console import print_json, print_note, print_result, progress_bar
from flint.cli.options import READS, Force, Json, Quiet, Verbose, Writes
from flint.cli.progress import stages_shown
from flint.io.outputs import OutputKind
from flint.text import format_seconds, plural

if TYPE_CHECKING:
    from rich.console import RenderableType

    from flint.backends.summary.summary import Summary
    from flint.cli.documents import FilesDocument
    from flint.tools.measure.documents import ImportDocument
    from flint.tools.measure.imported import Imported
    from flint.tracing import Trace


def import_(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Profiles of one job, one file per rank, .gz or not: PyTorch profiler JSON and others.",
        ),
        READS,
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE.flint|DIR",
            help="Write the workload to a .flint file, or traces to a directory (else: summary only).",
        ),
        Writes(OutputKind.WORKLOAD, or_traces=True),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option("--step", metavar="N", help="Number of the step (default: the typical one)."),
    ] = None,
    force: Force = False,
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Import profiles of real steps.

    Prints what was measured and a summary of the step; with several ranks, of the slowest (-v: of
    all). The result can be checked, estimated (replayed), compared and exported like a capture.
    """
    from flint.tools.measure.imported import Imported, import_profiles

    started = time.perf_counter()
    with stages_shown(quiet=quiet or json_):
        trace = import_profiles(*files, step=step)
    workload, written = _write(trace, output, quiet=quiet or json_, force=force)
    for warning in trace.warnings:
        print_note(f"warning: {warning}", quiet=quiet)
    imported = Imported.of(trace.workload)
    seconds = {**trace.timings, "total_seconds": time.perf_counter() - started}
    if json_:
        document: ImportDocument = {
            "schema": "flint.import/1",
            "imported": imported,
            "summary": trace.summary(),
            "workload": workload,
            "files": written,
            "warnings": list(trace.warnings),
            "timings": {stage: round(s, 6) for stage, s in seconds.items()},
        }
        print_json(document)
        return
    summary = trace.summary() if verbose else _of_slowest(trace.summary(), imported)
    _print(imported, summary, _tail(workload, written, seconds["total_seconds"]))


def _of_slowest(summary: Summary, imported: Imported) -> Summary:
    if len(summary.classes) < 2:
        return summary
    slowest = summary.classes[imported.slowest]
    name = f"{summary.name}, {slowest.name}: the slowest"
    return replace(summary, name=name, classes=(slowest,))


def _write(
    trace: Trace, output: Path | None, *, quiet: bool, force: bool
) -> tuple[str | None, FilesDocument | None]:
    """The `.flint` file or the traces that were written, if any."""
    if output is None:
        return None, None
    if output.suffix == ".flint":
        trace.workload.save(output, force=force)
        return str(output), None
    from flint.cli.commands.capture import files_document

    with progress_bar("writing", quiet=quiet) as progress:
        report = trace.save(output, progress=progress)
    return None, files_document(report, output)


def _tail(workload: str | None, written: FilesDocument | None, total_seconds: float) -> str:
    lines = [f"{'time':<11} {format_seconds(total_seconds)}"]
    if workload is not None:
        lines.append(f"{'wrote':<11} {workload}")
    if written is not None:
        lines.append(f"{'wrote':<11} {plural(written['ranks'], 'rank')}: {written['directory']}")
    return "\n".join(lines)


def _print(imported: Imported, summary: Summary, tail: str) -> None:
    summary = replace(summary, source="")

    def rich_form() -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        return Group(Text(f"{imported.to_text()}\n"), summary.to_rich(), Text(f"\n{tail}"))

    print_result(f"{imported.to_text()}\n\n{summary.to_text()}\n\n{tail}", rich_form)
