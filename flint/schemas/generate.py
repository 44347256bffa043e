"""From documents as types to JSON Schemas (draft 2020-12): `python -m flint.schemas.generate`.

Structure comes from pydantic, descriptions from docstrings of classes and from the strings below
their fields. Objects are left open: readers have to bear fields that they do not know.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import json
import pkgutil
import textwrap
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import is_typeddict

from flint.cluster import models, stack, tables
from flint.schemas import documents
from flint.schemas.catalog import FOLDER, file_name

#: Classes of other places that documents hold as they are.
_ELSEWHERE = (models, stack, tables)


def main() -> None:
    """Write all files."""
    for name, text in generated().items():
        (FOLDER / name).write_text(text)


def generated() -> dict[str, str]:
    """Each file's name and text."""
    classes = _classes()
    return {
        file_name(name): json.dumps(_schema(name, cls, classes), indent=2) + "\n"
        for cls in classes.values()
        if (name := _schema_name(cls))
    }


def _classes() -> dict[str, type]:
    """Every class that a document may hold, by name."""
    modules = [
        importlib.import_module(f"{documents.__name__}.{m.name}")
        for m in pkgutil.iter_modules(documents.__path__)
    ]
    found = [c for m in modules for c in vars(m).values() if is_typeddict(c)]
    shared = [c for m in _ELSEWHERE for _, c in inspect.getmembers(m, inspect.isclass)]
    return {
        c.__name__: c for c in (*found, *shared, *(f.table for f in tables.families().values()))
    }


def _schema_name(cls: type) -> str:
    """What the field `schema` of a document says; "" for classes that are parts of documents."""
    if not is_typeddict(cls) or "schema" not in cls.__annotations__:
        return ""
    hint = get_type_hints(cls)["schema"]
    assert get_origin(hint) is Literal, f"{cls.__name__}.schema is no Literal"
    (name,) = get_args(hint)
    return str(name)


class _Untitled(GenerateJsonSchema):
    """Without titles: they repeat the names of fields."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def get_title_from_name(self, name: str) -> str:
        return ""


def _schema(name: str, cls: type, classes: dict[str, type]) -> dict[str, Any]:
    found = TypeAdapter(cls).json_schema(mode="serialization", schema_generator=_Untitled)
    parts = found.pop("$defs", {})
    for part_name, part in {cls.__name__: found, **parts}.items():
        _describe(part, classes[part_name])
    for part in (found, *parts.values()):
        _describe_by_class(part, parts)
    head = {"$schema": _Untitled.schema_dialect, "title": name}
    return {**head, **found, **({"$defs": parts} if parts else {})}


def _describe(part: dict[str, Any], cls: type) -> None:
    """Put in what the source of a class says of it and of its fields."""
    for key in ("title", "additionalProperties"):
        part.pop(key, None)
    if cls.__doc__:
        part["description"] = " ".join(cls.__doc__.split())
    told = dict(_told(cls))
    for field, value in part.get("properties", {}).items():
        if field in told:
            value["description"] = told[field]


def _describe_by_class(part: dict[str, Any], parts: dict[str, Any]) -> None:
    """A field of which nothing is said is what its class says: tables of families of chips."""
    for value in part.get("properties", {}).values():
        refers = value.get("$ref") or value.get("anyOf", [{}])[0].get("$ref")
        if refers and "description" not in value:
            value["description"] = parts[refers.rpartition("/")[2]]["description"]


def _told(cls: type) -> Iterator[tuple[str, str]]:
    """Fields of a class and of those that it is derived from, with the strings below them."""
    bases = getattr(cls, "__orig_bases__", cls.__bases__)
    for base in (*bases, cls):
        if inspect.isclass(base) and base.__module__.startswith("flint"):
            yield from _told_in(base) if base is cls else _told(base)


def _told_in(cls: type) -> Iterator[tuple[str, str]]:
    try:
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except OSError:  # it was made by a call
        return
    body = node.body if isinstance(node, ast.ClassDef) else []
    for field, below in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
            yield ast.unparse(field.target), " ".join(ast.literal_eval(below.value).split())


if __name__ == "__main__":
    main()
