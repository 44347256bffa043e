"""Whether a document is what its schema says, and says nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from flint.schemas.catalog import read_schema


def valid(text: str | bytes, schema: str) -> Any:
    """The document in `text`, held against `schema` and its own field of that name.

    Without jsonschema, which the extra `test` does not install, the test that asks is skipped.
    """
    pytest.importorskip("jsonschema")
    document = json.loads(text, parse_constant=_refuse)
    assert document["schema"] == schema
    assert next(iter(document)) == "schema"
    _closed(schema).validate(document)
    return document


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


@cache
def _closed(name: str) -> Any:
    """The schema without the room that it leaves for fields that come later."""
    from jsonschema import Draft202012Validator

    schema = read_schema(name)
    Draft202012Validator.check_schema(schema)
    for part in parts(schema):
        part["additionalProperties"] = False
    return Draft202012Validator(schema)


def parts(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every object with fields that a schema describes."""
    yield from (p for p in (schema, *schema.get("$defs", {}).values()) if "properties" in p)


def assert_readable(text: str | bytes) -> None:
    """That each field of a document is one that its schema has, of the same type.

    Fields that came later, without a new version, may be missing.
    """
    from jsonschema import Draft202012Validator

    document = json.loads(text)
    schema = read_schema(document["schema"])
    for part in parts(schema):
        part["additionalProperties"] = False
        part.pop("required", None)
    Draft202012Validator(schema).validate(document)
