"""What `flint schema` says without a name."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict


class NamedSchemaDocument(TypedDict):
    """One kind of document."""

    name: str
    """Kind and version: what stands in the field `schema` of the document."""
    summary: str
    """What it says."""


class SchemasDocument(TypedDict):
    """The kinds of documents that commands print with --json."""

    schema: Literal["flint.schemas/1"]
    """Kind and version of this document."""
    schemas: list[NamedSchemaDocument]
    """All of them, by name."""
