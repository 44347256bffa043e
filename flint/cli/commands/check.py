"""`flint check`: prove what simulators do not check of execution traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from flint.cli.console import print_json, print_text, progress_bar
from flint.cli.exits import FOUND
from flint.cli.options import READS, Json, Quiet, Verbose

if TYPE_CHECKING:
    from flint.backends.chakra import CheckReport
    from flint.cli.documents import CheckDocument, FindingDocument

_SHOWN = 20


def check(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="DIR|FILE",
            help="A directory of .et files, or one file, from any writer; or a collective for MSCCL (.xml).",
        ),
        READS,
    ],
    groups: Annotated[
        Path | None,
        typer.Option(
            "--groups",
            metavar="FILE",
            help="The communicator group file, if it is not comm_group.json beside the traces.",
        ),
        READS,
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Exit with 1 unless the traces finish whatever the durations are."
        ),
    ] = False,
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Check traces for what makes simulators hang.

    Proves that they are readable, acyclic, complete and matched between ranks, whoever wrote them;
    for Flint's own traces also that no file has changed. Proves that they finish whatever the
    durations of computations and messages are, or else at their own durations. Of an algorithm for
    MSCCL proves that it ends and is the collective that it says. Exits with 0 if nothing was found
    and 1 otherwise.
    """
    from flint.backends.chakra import check as check_traces
    from flint.errors import FlintError
    from flint.plugins import API, load

    if path.suffix == ".xml":
        if groups is not None:
            raise FlintError("FL218", f"--groups does not apply to {path}", help="omit --groups")
        report = load(API, "check.algorithm")(path)
    else:
        with progress_bar("checking", quiet=quiet or json_) as progress:
            report = check_traces(path, comm_groups=groups, progress=progress)
    if json_:
        print_json(_document(report))
    else:
        print_text(_text(report, verbose=verbose > 0))
    if not report.ok or (strict and report.proved != "any-times"):
        raise typer.Exit(FOUND)


def _document(report: CheckReport) -> CheckDocument:
    return {
        "schema": "flint.check/1",
        "ok": report.ok,
        "ranks": report.ranks,
        "nodes": report.nodes,
        "groups": report.groups,
        "partial": report.partial,
        "deadlock_examined": report.deadlock_examined,
        "proved": report.proved.value,
        "doubt": report.doubt,
        "compared_files": report.compared_files,
        "notes": list(report.notes),
        "counts": report.counts,
        "findings": [cast("FindingDocument", f._asdict()) for f in report.findings],
    }


def _text(report: CheckReport, *, verbose: bool) -> str:
    """The findings, one a line, then what was examined."""
    from flint.text import plural

    shown = report.findings if verbose else report.findings[:_SHOWN]
    lines = [str(f) for f in shown]
    total = sum(report.counts.values())
    if total > len(shown):
        lines.append(f"... {plural(total - len(shown), 'more finding')}")
    examined = ", ".join(
        (plural(report.ranks, "rank"), plural(report.nodes, "node"), plural(report.groups, "group"))
    )
    unproved = report.ok and report.deadlock_examined and report.proved == "nothing"
    if unproved:
        lines.append(f"no finding, but not proved that they finish: {examined}")
    elif report.ok:
        only = " at these times only" if report.proved == "these-times" else ""
        lines.append(f"ok{only}: {examined}")
    else:
        counts = ", ".join(f"{code} {n}" for code, n in report.counts.items())
        lines.append(f"{plural(total, 'finding')} in {examined}: {counts}")
    lines.extend(f"note: {note}" for note in report.notes)
    if report.partial:
        lines.append("note: some ranks are missing; the report says nothing about them")
    if not report.deadlock_examined:
        lines.append("note: deadlock was not examined")
    if report.doubt:
        when = "" if unproved else " at other times"
        lines.append(f"note: Flint cannot prove that they finish{when}: {report.doubt}")
    return "\n".join(lines)
