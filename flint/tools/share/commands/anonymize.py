"""`flint anonymize`: a workload, traces or a profile without what identifies them, and what still does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flint.cli.console import print_json, print_note, print_text
from flint.cli.exits import FOUND
from flint.cli.options import READS, Force, Json, Quiet, Verbose, Writes
from flint.cli.progress import stages_shown
from flint.cli.requests import takes_requests
from flint.io.documents import as_json
from flint.io.outputs import OutputKind, write_output
from flint.text import format_bytes
from flint.tools.share.requests import AnonymizeRequest

if TYPE_CHECKING:
    from flint.tools.share.anonymize import Anonymized
    from flint.tools.share.documents import AnonymizeDocument
    from flint.tools.share.inputs import ShareInput
    from flint.tools.share.level import LevelOptions

#: What each level promises, in one line.
_PROMISES = {
    "names": "only names and sources are removed: structure and sizes identify as before",
    "shapes": "names and sources are removed, sizes changed with totals within a bound: "
    "structure identifies as before",
}


@takes_requests
def anonymize(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="IN", help="A .flint file, a directory of traces, or a profile of a real step."
        ),
        READS,
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE.flint|DIR", help="Where to write the result."),
        Writes(OutputKind.WORKLOAD, or_traces=True),
    ],
    *,
    request: AnonymizeRequest,
    leaks: Annotated[
        Path | None,
        typer.Option(
            "--leaks",
            metavar="FILE.json",
            help="Write the leak report, which names what it finds: keep it to yourself.",
        ),
        Writes(OutputKind.LEAKS),
    ] = None,
    force: Force = False,
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Write a workload without what identifies it.

    Says what still identifies it: surviving strings, which public models it resembles, and what an
    attacker finds. Exits with 1 if a string of the original survives.
    """
    from flint.tools.share.inputs import ShareInputKind, read_source
    from flint.tools.share.level import Level, options_of
    from flint.tools.share.output import refuse_place

    options = options_of(request.level, request.keep, request.seed)
    refuse_place(output, path, force=force)
    _refuse_leaks_in(output, leaks)
    with stages_shown(quiet=quiet or json_):
        source = read_source(path)
    if source.kind is ShareInputKind.TRACES and options.level is Level.NAMES:
        document, text, survived, report = _traces(source, output)
    else:
        document, text, survived, report = _workload(source, output, options, force=force)
    if leaks is not None:
        _write_leaks(leaks, report, force=force)
    if json_:
        print_json(document)
    else:
        print_text(text, end="")
        print_note(f"wrote   {output}", quiet=quiet)
    if survived:
        raise typer.Exit(FOUND)


#: The document of --json, the text without it, whether a string survives, and the leak report.
_Told = tuple["AnonymizeDocument", str, bool, dict[str, Any]]


def _workload(source: ShareInput, output: Path, options: LevelOptions, *, force: bool) -> _Told:
    from flint.tools.share.anonymize import anonymized

    found = anonymized(source, options)
    files = found.save(output, force=force)
    document: AnonymizeDocument = {
        "schema": "flint.anonymize/1",
        "level": found.level,
        "promise": _PROMISES[found.level],
        "output": str(output),
        "files": files,
        "mesh": found.workload.mesh.shape,
        "rows": [len(p) for p in found.workload.programs],
        "changes": [
            {"name": c.name, "before": c.before, "after": c.after, "share": c.share}
            for c in found.changes
        ],
        "moves": found.moves,
        "rewired": None,
        "survivors": found.leaks.survivors,
        "leaks": found.leaks.to_json(),
    }
    return document, _text(found), found.leaks.has_survivors, found.leaks.to_json()


def _text(found: Anonymized) -> str:
    size = format_bytes(len(found.workload.to_bytes()))
    rows = ", ".join(f"{len(p):,}" for p in found.workload.programs)
    head = f"level   {found.level}: {_PROMISES[found.level]}\nmesh    {found.workload.mesh}\n"
    return f"{head}rows    {rows} ({size})\n{_changes(found)}\n{found.leaks.text()}"


def _changes(found: Anonymized) -> str:
    """How far sizes moved, and a table of totals before and after."""
    from flint.text import Column, text_table

    if found.moves is None:
        return ""
    m = found.moves
    rows = [
        (c.name, _amount(c.name, c.before), _amount(c.name, c.after), f"{c.share:+.2%}")
        for c in found.changes
    ]
    columns = [
        Column("total"),
        Column("before", True),
        Column("after", True),
        Column("change", True),
    ]
    head = f"sizes   {m.changed} of {m.variables} changed, by {m.least:.1%} or more, {m.median:.1%} in the median"
    table = text_table(columns, rows)
    return f"{head}; {m.dimensions:.0%} of all dimensions\n\n{table}\n"


def _amount(name: str, value: float) -> str:
    from flint.text import format_duration, format_flops

    if name.startswith("step time"):
        return format_duration(value)
    return format_flops(int(value)) if name == "FLOPs" else format_bytes(int(value))


def _traces(source: ShareInput, output: Path) -> _Told:
    """Traces without a workload: names go node by node, and only strings can be looked for."""
    from flint.tools.share.leaks.files import surviving_in_files
    from flint.tools.share.traces import redact_traces

    ranks = redact_traces(source.path, output)
    survivors = surviving_in_files(output)
    document: AnonymizeDocument = {
        "schema": "flint.anonymize/1",
        "level": "names",
        "promise": _PROMISES["names"],
        "output": str(output),
        "files": ranks + 1,
        "mesh": {},
        "rows": [],
        "changes": [],
        "moves": None,
        "rewired": None,
        "survivors": survivors,
        "leaks": None,
    }
    strings = f"{len(survivors)} strings that may identify" if survivors else "no string survives"
    text = (
        f"level   names: {_PROMISES['names']}\ntraces  {ranks:,} ranks, node by node: {strings}\n"
    )
    return document, text, bool(survivors), {"survivors": as_json(survivors)}


def _write_leaks(path: Path, report: dict[str, Any], *, force: bool) -> None:
    import json

    document = {"schema": "flint.leaks/1", **report}
    data = (json.dumps(document, indent=1, default=str) + "\n").encode()
    write_output(path, data, OutputKind.LEAKS, force=force)


def _refuse_leaks_in(output: Path, leaks: Path | None) -> None:
    """Raise FlintError FL903 for a report beside what is shared."""
    from flint.errors import FlintError

    if leaks is not None and leaks.resolve().is_relative_to(output.resolve()):
        raise FlintError(
            "FL903",
            f"the leak report {leaks} would be shared with {output}",
            help="the report names what it finds: write it elsewhere",
        )
