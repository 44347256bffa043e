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
from flint.errors import FlintError
from flint.io.documents import as_json
from flint.io.outputs import OutputKind, write_output
from flint.text import format_bytes, headings, text_table
from flint.tools.share.requests import AnonymizeRequest

if TYPE_CHECKING:
    from flint.tools.share.anonymize import Anonymized
    from flint.tools.share.documents import AnonymizeDocument
    from flint.tools.share.inputs import ShareInput
    from flint.tools.share.leaks.strings import Survivor
    from flint.tools.share.level import Level, LevelOptions


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
    is_bare = source.kind is ShareInputKind.TRACES and options.level is Level.NAMES
    make = _traces if is_bare else _workload
    document, text = make(source, output, options, force)
    if leaks is not None:
        report = document["leaks"] or {"survivors": as_json(document["survivors"])}
        _write_leaks(leaks, report, force=force)
    if json_:
        print_json(document)
    else:
        print_text(text, end="")
        print_note(f"wrote   {output}", quiet=quiet)
    if document["survivors"]:
        raise typer.Exit(FOUND)


def _workload(
    source: ShareInput, output: Path, options: LevelOptions, force: bool
) -> tuple[AnonymizeDocument, str]:
    from flint.tools.share.anonymize import anonymized

    found = anonymized(source, options)
    files, size = found.save(output, force=force), len(found.workload.to_bytes())
    rows = ", ".join(f"{len(p):,}" for p in found.workload.programs)
    head = f"level   {found.level}: {found.level.promise}\nmesh    {found.workload.mesh}\n"
    text = f"{head}rows    {rows} ({format_bytes(size)})\n{_changes(found)}\n{found.leaks.text()}"
    return _document(found.level, output, files, found.leaks.survivors, found), text


def _traces(
    source: ShareInput, output: Path, options: LevelOptions, force: bool
) -> tuple[AnonymizeDocument, str]:
    """Traces without a workload: names go node by node, and only strings can be looked for."""
    from flint.tools.share.leaks.files import surviving_in_files
    from flint.tools.share.traces import redact_traces

    ranks, level = redact_traces(source.path, output), options.level
    survivors = surviving_in_files(output)
    strings = f"{len(survivors)} strings that may identify" if survivors else "no string survives"
    text = f"level   {level}: {level.promise}\ntraces  {ranks:,} ranks, node by node: {strings}\n"
    return _document(level, output, ranks + 1, survivors), text


def _document(
    level: Level,
    output: Path,
    files: int,
    survivors: tuple[Survivor, ...],
    found: Anonymized | None = None,
) -> AnonymizeDocument:
    changes = found.changes if found else ()
    return {
        "schema": "flint.anonymize/1",
        "level": level,
        "promise": level.promise,
        "output": str(output),
        "files": files,
        "mesh": found.workload.mesh.shape if found else {},
        "rows": [len(p) for p in found.workload.programs] if found else [],
        "changes": [
            {"name": c.name, "before": c.before, "after": c.after, "share": c.share}
            for c in changes
        ],
        "moves": found.moves if found else None,
        "rewired": None,
        "survivors": survivors,
        "leaks": found.leaks.to_json() if found else None,
    }


def _changes(found: Anonymized) -> str:
    """How far sizes moved, and a table of totals before and after."""
    if found.moves is None:
        return ""
    m = found.moves
    rows = [(c.name, c.text(c.before), c.text(c.after), f"{c.share:+.2%}") for c in found.changes]
    head = f"sizes   {m.changed} of {m.variables} changed, by {m.least:.1%} or more, {m.median:.1%} in the median"
    table = text_table(headings("total | >before | >after | >change"), rows)
    return f"{head}; {m.dimensions:.0%} of all dimensions\n\n{table}\n"


def _write_leaks(path: Path, report: dict[str, Any], *, force: bool) -> None:
    import json

    document = {"schema": "flint.leaks/1", **report}
    data = (json.dumps(document, indent=1, default=str) + "\n").encode()
    write_output(path, data, OutputKind.LEAKS, force=force)


def _refuse_leaks_in(output: Path, leaks: Path | None) -> None:
    """Raise FlintError FL903 for a report beside what is shared."""
    if leaks is not None and leaks.resolve().is_relative_to(output.resolve()):
        raise FlintError(
            "FL903",
            f"the leak report {leaks} would be shared with {output}",
            help="the report names what it finds: write it elsewhere",
        )
