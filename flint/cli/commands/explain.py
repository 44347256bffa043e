"""`flint explain`: why a collective is there, or what a source scope does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from flint.cli.console import print_json, print_text
from flint.cli.options import READS, Json, Quiet, Rank, Verbose

if TYPE_CHECKING:
    from flint.backends.summary.explain import ExplainDocument, Explanation

SCHEMA: Final = "flint.explain/1"


def explain(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A trace directory or a .flint file."), READS
    ],
    collective: Annotated[
        int | None, typer.Option(metavar="N", help="Explain collective N of --list.")
    ] = None,
    scope: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN", help="Explain the scopes that match a pattern, such as layers/*/dot."
        ),
    ] = None,
    list_all: Annotated[bool, typer.Option("--list", help="List all collectives (default).")] = (
        False
    ),
    rank: Rank = 0,
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Explain why collectives are there.

    Says which operands, shardings and source line cause a collective, and what reads it.
    """
    from flint.backends.summary.explain import explain_collective, explain_scope, list_collectives
    from flint.cli.inputs import load_workload, program_of_rank
    from flint.errors import FlintError

    if (collective is not None) + (scope is not None) + list_all > 1:
        raise FlintError("FL218", "--collective, --scope and --list exclude each other")
    program = program_of_rank(load_workload(path), rank)
    if collective is not None:
        one = explain_collective(program, collective)
        _print({"schema": SCHEMA, "collective": one}, one.to_text(), as_json=json_)
    elif scope is not None:
        found = explain_scope(program, scope)
        _print({"schema": SCHEMA, "scope": found}, found.to_text(), as_json=json_)
    else:
        rows = list_collectives(program)
        _print({"schema": SCHEMA, "collectives": rows}, _listing(rows), as_json=json_)


def _print(document: ExplainDocument, text: str, *, as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        print_text(text)


def _listing(rows: list[Explanation]) -> str:
    from flint.text import format_bytes, headings, plural, text_table

    if not rows:
        return "no collectives"
    table = [
        (
            f"#{r.number}",
            r.collective,
            r.over,
            str(r.executions),
            format_bytes(r.payload_bytes),
            r.scope,
            r.location,
        )
        for r in rows
    ]
    columns = headings("> | collective | over | >count | >payload | scope | source")
    return f"{text_table(columns, table)}\n{plural(len(rows), 'communication op')}"
