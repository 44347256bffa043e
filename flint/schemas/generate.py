"""From documents as types to JSON Schemas (draft 2020-12): `python -m flint.schemas.generate`.

Structure comes from pydantic, descriptions from docstrings of classes (their first paragraph) and from
what stands behind or below their fields. Objects are left open: readers have to bear fields that they
do not know.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import json
import textwrap
from collections.abc import Hashable, Iterator, Mapping
from pkgutil import resolve_name
from typing import Any, cast, get_args, get_type_hints

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema as core
from typing_extensions import Doc

from flint.io.documents import Presence, published
from flint.plugins import DOCUMENTS, blamed, load, of_others, registered
from flint.schemas.catalog import FOLDER, file_name

#: Documents of the core, and the types that declare them. Those of tools are registered as
#: `flint.documents`; one of the same name has more fields.
CORE = {
    "flint.capture/1": "flint.cli.documents:CaptureDocument",
    "flint.check/1": "flint.cli.documents:CheckDocument",
    "flint.clusters/1": "flint.cli.documents:ClustersDocument",
    "flint.estimate/1": "flint.backends.cost.estimate_json:EstimateDocument",
    "flint.explain/1": "flint.backends.summary.explain:ExplainDocument",
    "flint.export/1": "flint.cli.documents:ExportDocument",
    "flint.graph/1": "flint.cli.documents:GraphDocument",
    "flint.opt/1": "flint.cli.documents:OptDocument",
    "flint.schedules/1": "flint.cli.documents:SchedulesDocument",
    "flint.schemas/1": "flint.cli.documents:SchemasDocument",
    "flint.simulated/1": "flint.backends.cost.astrasim.step:SimulatedDocument",
}


def main() -> None:
    """Write all files."""
    for name, text in generated().items():
        (FOLDER / name).write_text(text)


def generated() -> dict[str, str]:
    """Each file's name and text."""
    others = of_others(DOCUMENTS)
    ours = {n: e.value for n, e in registered(DOCUMENTS).items() if n not in others}
    return {file_name(n): _schema(n, resolve_name(kind)) for n, kind in (CORE | ours).items()}


def schema_of(name: str) -> str:
    """The schema of a document that another package registers.

    Raises FlintError FL880 and FL882 for what is registered wrongly.
    """
    kind = load(DOCUMENTS, name, type)
    with blamed(DOCUMENTS, name, "be a document"):
        return _schema(name, kind)


def _schema(name: str, kind: type) -> str:
    if (said := get_args(get_type_hints(kind).get("schema"))) != (name,):
        raise ValueError(f'its field "schema" is {said}, and should be Literal["{name}"]')
    found = TypeAdapter(kind).json_schema(mode="serialization", schema_generator=_Described)
    parts = found.pop("$defs", {})
    for part in (found, *parts.values()):
        part.pop("title", None)
        _describe_by_class(part, parts)
        for said in part.get("properties", {}).values():
            if "description" in said:  # move it to where it was added, which moves no line
                said["description"] = said.pop("description")
    head = {"$schema": _Described.schema_dialect, "title": name}
    document = {**head, **found, **({"$defs": parts} if parts else {})}
    return json.dumps(document, indent=2) + "\n"


#: Fields of dataclasses take any number and any member: ranges are for readers of files, and new
#: members may come.
_ANY = {"int": "integer", "float": "number", "enum": "string"}


#: Classes of these modules say nothing of fields.
_OF_LIBRARIES = ("builtins", "enum", "pydantic.main", "typing", "typing_extensions")


class _Described(GenerateJsonSchema):
    """Open objects with descriptions, and without titles, which repeat the names of fields."""

    is_in_dataclass = False

    def field_title_should_be_set(self, schema: object) -> bool:
        return False

    def get_title_from_name(self, name: str) -> str:
        return ""

    def generate_inner(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        if self.is_in_dataclass and schema["type"] in _ANY:
            return {"type": _ANY[schema["type"]]}
        found = super().generate_inner(schema)
        is_number = found.get("anyOf") == [{"type": "integer"}, {"type": "number"}]
        return {"type": "number"} if is_number else found

    def enum_schema(self, schema: core.EnumSchema) -> dict[str, Any]:
        return _described(super().enum_schema(schema), schema["cls"])

    def typed_dict_schema(self, schema: core.TypedDictSchema) -> dict[str, Any]:
        return _described(super().typed_dict_schema(schema), schema["cls"])

    def model_schema(self, schema: core.ModelSchema) -> dict[str, Any]:
        return _described(super().model_schema(schema), schema["cls"])

    def dataclass_schema(self, schema: core.DataclassSchema) -> dict[str, Any]:
        cls = schema["cls"]
        outer, self.is_in_dataclass = self.is_in_dataclass, True
        found = _described(super().dataclass_schema(schema), cls)
        self.is_in_dataclass = outer
        about = {f.name: f.presence for f in published(cast("Hashable", cls))}
        found["properties"] = {n: p for n, p in found["properties"].items() if n in about}
        for value in found["properties"].values():
            value.pop("default", None)
        found["required"] = [n for n, presence in about.items() if presence is None]
        for name in (n for n, presence in about.items() if presence is Presence.IF_ANY):
            here = found["properties"][name]
            (kind,) = (k for k in here.pop("anyOf") if k != {"type": "null"})
            found["properties"][name] = {**kind, **here}
        return found


def _described(part: dict[str, Any], cls: type) -> dict[str, Any]:
    """With what the source of a class says of it and of its fields."""
    part.pop("additionalProperties", None)
    told = inspect.cleandoc(cls.__doc__ or "")
    if dataclasses.is_dataclass(cls):  # what follows is for those who read the source
        told = told.partition("\n\n")[0]
    if told:
        part["description"] = " ".join(told.split())
    fields = dict(_told(cls))
    for field, value in part.get("properties", {}).items():
        if field in fields:
            value["description"] = fields[field]
    return part


def _describe_by_class(part: dict[str, Any], parts: dict[str, Any]) -> None:
    """A field of which nothing is said is what its class says: tables of families of chips."""
    for value in part.get("properties", {}).values():
        refers = value.get("$ref") or value.get("anyOf", [{}])[0].get("$ref")
        if refers and "description" not in value:
            value["description"] = parts[refers.rpartition("/")[2]]["description"]


def _told(cls: type) -> Iterator[tuple[str, str]]:
    """Fields of a class and of those that it is derived from, with what is said of them."""
    bases = getattr(cls, "__orig_bases__", cls.__bases__)
    for base in (*bases, cls):
        if inspect.isclass(base) and base.__module__ not in _OF_LIBRARIES:
            yield from _told_in(base) if base is cls else _told(base)


def _told_in(cls: type) -> Iterator[tuple[str, str]]:
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except OSError:  # it was made by a call
        for name, hint in get_type_hints(cls, include_extras=True).items():
            yield from ((name, m.documentation) for m in hint.__metadata__ if isinstance(m, Doc))
        return
    (node,) = ast.parse(source).body
    lines, body = source.splitlines(), node.body if isinstance(node, ast.ClassDef) else []
    for field, below in itertools.zip_longest(body, body[1:]):
        if not isinstance(field, ast.AnnAssign):
            continue
        _, _, behind = lines[(field.end_lineno or 0) - 1].partition("  #: ")
        if behind:
            yield ast.unparse(field.target), behind
        elif isinstance(below, ast.Expr):
            yield ast.unparse(field.target), " ".join(ast.literal_eval(below.value).split())


if __name__ == "__main__":
    main()
