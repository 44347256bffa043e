"""`flint export`: the program of a rank as a graph file."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flint.cli.console import print_json, print_note, print_text
from flint.cli.options import READS, Force, Json, Quiet, Rank, Verbose, Writes
from flint.io.outputs import OutputKind, write_output

if TYPE_CHECKING:
    from flint.cli.documents import ExportDocument


class Format(StrEnum):
    """Graph formats (the keys of `flint.backends.summary.graph.FORMATS`)."""

    JSON = "json"
    GRAPHML = "graphml"
    DOT = "dot"


def export(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A trace directory or a .flint file."), READS
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="File to write (default: stdout)."),
        Writes(OutputKind.GRAPH),
    ] = None,
    format_: Annotated[Format, typer.Option("--format", "-f", help="Graph format.")] = Format.JSON,
    rank: Rank = 0,
    force: Force = False,
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Export the program of a rank as a graph.

    Formats are json, graphml (networkx, Gephi, yEd) and dot (Graphviz).
    """
    from flint.backends.summary.graph import FORMATS
    from flint.cli.inputs import load_workload, program_of_rank
    from flint.errors import FlintError

    if json_ and output is None:
        raise FlintError(
            "FL218",
            "--json prints a report on stdout, so the graph needs a file",
            help="add -o FILE",
        )
    program = program_of_rank(load_workload(path), rank)
    text = FORMATS[format_.value](program)
    if output is None:
        print_text(text, end="")
        return
    write_output(output, text.encode(), OutputKind.GRAPH, force=force)
    edges = len(program.deps)
    if json_:
        document: ExportDocument = {
            "schema": "flint.export/1",
            "file": str(output),
            "format": format_.value,
            "nodes": len(program),
            "dependencies": edges,
        }
        print_json(document)
    else:
        note = f"{output}: {len(program):,} nodes, {edges:,} dependencies"
        print_note(note, quiet=quiet)
