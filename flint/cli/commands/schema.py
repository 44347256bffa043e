"""`flint schema`: the JSON Schemas of what commands print with `--json`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from flint.cli.console import print_json, print_text
from flint.cli.options import Json, Quiet, Verbose

if TYPE_CHECKING:
    from flint.cli.documents import SchemasDocument


def schema(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="A kind of document, estimate or flint.estimate/1 (default: list)."
        ),
    ] = "",
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Print the JSON Schema of a command's --json, or list all.

    Each field has a description. A version of a document may get fields, but loses and changes none.
    """
    from flint.schemas.catalog import find_schema, read_schema, schema_names

    if name:
        print_text(json.dumps(find_schema(name), indent=2, ensure_ascii=False))
        return
    summaries = {n: str(read_schema(n)["description"]) for n in schema_names()}
    if json_:
        listed: SchemasDocument = {
            "schema": "flint.schemas/1",
            "schemas": [{"name": n, "summary": s} for n, s in summaries.items()],
        }
        print_json(listed)
        return
    print_text(_table(summaries))


def _table(summaries: dict[str, str]) -> str:
    from flint.text import Column, text_table

    return text_table([Column("schema"), Column("says")], list(summaries.items()))
