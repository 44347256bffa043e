"""`flint schema`: the JSON Schemas of what commands print with `--json`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flint.cli.console import print_json, print_text
from flint.cli.options import Json, Quiet, Verbose
from flint.plugins import DOCUMENTS, left_out, of_others

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

    Each field has a description. A document's version may gain fields, but never loses or changes
    one.
    """
    from flint.schemas.catalog import find_schema, read_schema, schema_names

    others = of_others(DOCUMENTS)
    if name:
        found = _of_other(name) if name in others else find_schema(name)
        print_text(json.dumps(found, indent=2, ensure_ascii=False))
        return
    summaries = {n: str(read_schema(n)["description"]) for n in schema_names()}
    for other in others:
        with left_out(DOCUMENTS, other, "be listed"):
            summaries[other] = str(_of_other(other).get("description", ""))
    if json_:
        listed: SchemasDocument = {
            "schema": "flint.schemas/1",
            "schemas": [{"name": n, "summary": s} for n, s in summaries.items()],
        }
        print_json(listed)
        return
    print_text(_table(summaries))


def _of_other(name: str) -> dict[str, Any]:
    """The schema of a document of another package, which has no file."""
    from flint.schemas.generate import schema_of

    found: dict[str, Any] = json.loads(schema_of(name))
    return found


def _table(summaries: dict[str, str]) -> str:
    from flint.text import headings, text_table

    return text_table(headings("schema | says"), list(summaries.items()))
