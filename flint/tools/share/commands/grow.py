"""`flint grow`: a captured workload with more layers, other sizes or another mesh, without its source."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from flint.cli.console import print_json, print_note, print_text
from flint.cli.options import READS, Force, Json, Quiet, Verbose, Writes
from flint.cli.progress import stages_shown
from flint.cli.requests import takes_requests
from flint.errors import FlintError
from flint.io.outputs import OutputKind
from flint.text import format_count, headings, text_table
from flint.tools.share.requests import GrowRequest

if TYPE_CHECKING:
    from flint.ir.workload import Workload
    from flint.tools.share.documents import GrowDocument
    from flint.tools.share.growing.grow import Grown
    from flint.tools.share.growing.known import SizeEntry
    from flint.tools.share.totals import Change


SCHEMA: Final = "flint.grow/1"


@takes_requests
def grow(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="IN",
            help="A .flint file, or a directory that flint capture or flint anonymize wrote.",
        ),
        READS,
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE.flint|DIR", help="Where to write the result."),
        Writes(OutputKind.WORKLOAD, or_traces=True),
    ] = None,
    *,
    request: GrowRequest,
    list_: Annotated[
        bool, typer.Option("--list", help="List variables and roles, as without changes.")
    ] = False,
    force: Force = False,
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Write a workload as it would be with more layers, other sizes or another mesh.

    Needs no source: everything follows from the rows. Sizes are global, over all devices. Without
    changes, lists what can be changed.
    """
    from flint.tools.share.growing.grow import grown, refuse_source
    from flint.tools.share.inputs import read_source
    from flint.tools.share.output import refuse_place

    if list_:
        request = GrowRequest(split=request.split, keep_global_batch=request.keep_global_batch)
    changes = request.changes
    _require_change(changes, output)
    if output is not None:
        refuse_place(output, path, force=force)
    with stages_shown(quiet=quiet or json_):
        source = read_source(path)
        found = grown(refuse_source(source), request, source)
    files = found.save(output, force=force) if output is not None else 0
    if json_:
        print_json(_document(found, output, files, changes=changes))
    else:
        _print(found, output, changes=changes, quiet=quiet)


def _require_change(changes: bool, output: Path | None) -> None:
    """Raise FlintError FL920 for a place to write to, and nothing to write."""
    if output is not None and not changes:
        raise FlintError(
            "FL920",
            "nothing to change",
            help="give --layers, --mesh, --width or another size; flint grow IN lists them",
        )


def _print(found: Grown, output: Path | None, *, changes: bool, quiet: bool) -> None:
    print_text(grown_text(found) if changes else listing_text(found), end="")
    if output is not None:
        print_note(f"wrote   {output}", quiet=quiet)
    elif changes:
        print_note("nothing was written: give -o", quiet=quiet)


def _document(found: Grown, output: Path | None, files: int, *, changes: bool) -> GrowDocument:
    return {
        "schema": SCHEMA,
        "output": None if output is None else str(output),
        "files": files,
        "mesh": found.workload.mesh.shape,
        "old_mesh": found.original.mesh.shape,
        "rows": [len(p) for p in found.workload.programs],
        "variables": found.variables,
        "changes": found.changes if changes else (),
        "assumed": list(found.assumed),
    }


# What `flint grow` prints: variables, or what changed, and what was taken for granted.


def listing_text(grown: Grown) -> str:
    """The variables of a workload."""
    columns = headings("variable | >whole | >one device | role | split over | >rows | >FLOPs")
    rows = [
        (
            v.name,
            format_count(v.whole),
            format_count(v.value),
            _role(v),
            "+".join(v.axes),
            format_count(v.rows) if v.rows else "",
            f"{v.flops_share:.0%}",
        )
        for v in grown.variables
    ]
    return _head(grown.original) + "\n" + text_table(columns, rows) + "\n"


def grown_text(grown: Grown) -> str:
    """Variables that changed, totals before and after, and what was taken for granted."""
    moved = [v for v in grown.variables if (v.value, v.whole) != (v.new_value, v.new_whole)]
    sizes = [
        (v.name, _role(v), _arrow(v.whole, v.new_whole), _arrow(v.value, v.new_value))
        for v in moved
    ]
    before, after = grown.original.mesh, grown.workload.mesh
    columns = headings("variable | role | whole | one device")
    mesh = f"mesh    {before}" + (f" -> {after}" if before != after else "")
    tables = [text_table(columns, sizes)] if sizes else []
    assumed = [f"assumed {text}" for text in grown.assumed]
    parts = [mesh, *tables, _changes(grown.changes), "\n".join(assumed)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(workload: Workload) -> str:
    rows = ", ".join(f"{len(p):,}" for p in workload.programs)
    return f"mesh    {workload.mesh}\nrows    {rows}\n"


def _role(entry: SizeEntry) -> str:
    return entry.role if entry.certain else f"{entry.role} (not certain)"


def _arrow(before: int, after: int) -> str:
    return format_count(before) if before == after else f"{before:,} -> {after:,}"


def _changes(changes: tuple[Change, ...]) -> str:
    rows = [
        (
            c.name.removesuffix("bytes").rstrip(", "),
            c.text(c.before),
            c.text(c.after),
            _share(c),
        )
        for c in changes
    ]
    return text_table(headings("on one device | >before | >after | >change"), rows)


def _share(change: Change) -> str:
    if change.before == change.after:
        return ""
    return "new" if not change.before else f"x {change.after / change.before:.3g}"
