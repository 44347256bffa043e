"""What is wrong with a cluster file, said with the line and what would be right."""

from __future__ import annotations

import re
import tomllib
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flint.cluster.load import Location, key_lines, line_of
from flint.errors import FlintError, nearest

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError


_NUMBER = 'write { value = 1e12, kind = "datasheet", source = "where it is from" }'
#: Characters of a value that a message shows.
_SHOWN = 40
_UNKNOWN = ("extra_forbidden", "unknown_name")
#: What pydantic says in the words of Python, by its types of errors.
_IN_TOML = {
    "dict_type": "should be a table",
    "model_type": "should be a table",
    "tuple_type": "should be an array",
    "list_type": "should be an array",
    "string_type": "should be a text",
    "int_type": "should be a whole number",
    "float_type": "should be a number",
    "bool_type": "should be true or false",
    "string_too_short": "should not be empty",
    "too_short": "should not be empty",
}
#: Its types of errors after which a reader wants to see what is there now.
_SHOWS_INPUT = (
    *("string_type", "int_type", "float_type", "bool_type", "enum", "literal_error"),
    *("greater_than_equal", "less_than_equal", "finite_number"),
)


def cluster_error(
    error: ValidationError,
    model: type[BaseModel],
    path: Path,
    text: str,
    document: Mapping[str, Any],
) -> FlintError:
    """The FlintError FL701 for what pydantic found in the file at `path`: its first finding.

    `document` is the cluster with all that it has from its base; `text` is that of the file alone.
    """
    lines, networks = key_lines(text), networks_of(document)
    own = networks_of(tomllib.loads(text))

    def line(found: Mapping[str, Any]) -> int:
        return line_of(_own_location(where_of(found), networks, own), lines)

    errors = error.errors()
    # A list whose only entry is wrong is also called too short: that is not what is wrong.
    real = [e for e in errors if e["type"] != "too_short"] or errors
    found = min(real, key=lambda e: (e["type"] not in _UNKNOWN, line(e)))
    said, help_ = _misnamed(found, document) or (said_of(found, model), help_of(found, model))
    at = line(found)
    return FlintError(
        "FL701", f"{path.name}: {said}", place=f"{path}:{at}" if at else str(path), help=help_
    )


def changed_error(error: ValidationError, model: type[BaseModel], name: str) -> FlintError:
    """The FlintError FL701 for what is wrong with a cluster that a program changed: no file."""
    found = error.errors()[0]
    return FlintError(
        "FL701",
        f"cluster '{name}', as it was changed: {said_of(found, model)}",
        help=help_of(found, model),
    )


def where_of(found: Mapping[str, Any]) -> Location:
    """Where in the document something was found."""
    return (*found["loc"], *found.get("ctx", {}).get("at", ()))


def _own_location(location: Location, networks: Sequence[str], own: Sequence[str]) -> Location:
    """Where something in a cluster stands in its file, which lists only the tiers `own`."""
    if len(location) < 2 or location[0] != "network" or not isinstance(location[1], int):
        return location
    at, name = location[1], networks[location[1]]
    if name not in own:
        return ()
    same = networks[:at].count(name) if own.count(name) > 1 else 0
    places = [i for i, n in enumerate(own) if n == name]
    return ("network", places[min(same, len(places) - 1)], *location[2:])


def _misnamed(found: Mapping[str, Any], document: Mapping[str, Any]) -> tuple[str, str] | None:
    """What to say of a network that lacks a key because its base has none of its name."""
    location, base = found["loc"], document.get("base")
    if found["type"] != "missing" or base is None or location[0] != "network":
        return None
    name, before = document["network"][location[1]].get("name"), networks_of(document)
    before = before[: location[1]]
    others = (
        f"its networks are {', '.join(before)}; an additional one needs its own '{location[-1]}'"
    )
    if name is None:
        return f"a network on top of base '{base}' has no name", others
    if not isinstance(name, str):
        return f"the name of a network should be a text, it is {name!r}", others
    return f"no network of base '{base}' is called '{name}'{nearest(name, before)}", others


def said_of(found: Mapping[str, Any], model: type[BaseModel]) -> str:
    """What pydantic found, with the key and what would be right."""
    where, kind = ".".join(map(str, where_of(found))), found["type"]
    if kind == "extra_forbidden":
        name = str(found["loc"][-1])
        return f"unknown key '{where}'{nearest(name, list(_keys(model, found['loc'])))}"
    if kind == "unknown_name":
        return f"unknown key '{where}'{found['msg']}"
    if kind == "missing":
        return f"key '{where}' is missing"
    reason = found["msg"].removeprefix("Value error, ").removeprefix("Input ")
    reason = _IN_TOML.get(kind, reason)
    if kind in _SHOWS_INPUT and isinstance(found["input"], str | int | float):
        reason += f", it is {_in_toml(found['input'])}"
    if kind in ("enum", "literal_error"):
        reason += nearest(str(found["input"]), re.findall("'(.*?)'", found["ctx"]["expected"]))
    return f"key '{where}' {reason}" if where else f"the cluster {reason}"


def _in_toml(value: str | float) -> str:
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def help_of(found: Mapping[str, Any], model: type[BaseModel]) -> str | None:
    """What to do about what pydantic found."""
    kind, location = found["type"], found["loc"]
    if kind == "extra_forbidden":
        return f"the keys there are {', '.join(_keys(model, location))}"
    if kind == "missing":
        needed = list(_keys(model, location, required=True))
        return _NUMBER if "value" in needed else f"the required keys are: {', '.join(needed)}"
    if kind in ("model_type", "dict_type"):
        keys = list(_keys(model, (*location, "")))
        return _NUMBER if "value" in keys and location[-1] != "constants" else None
    if kind == "tuple_type" and location == ("network",):
        return "write [[network]] above each of them"
    return found.get("ctx", {}).get("help") or None


def _keys(model: type[BaseModel], location: Location, *, required: bool = False) -> Iterator[str]:
    """The keys that are allowed, or required, beside the one at `location`."""
    for part in location[:-1]:
        if isinstance(part, str) and part in model.model_fields:
            inner = _model_in(model.model_fields[part].annotation)
            model = inner or model
    fields = model.model_fields.items()
    yield from (name for name, field in fields if field.is_required() or not required)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model that an annotation such as `Gpu | None` or `tuple[Network, ...]` holds."""
    if hasattr(annotation, "model_fields"):
        return typing.cast("type[BaseModel]", annotation)
    found = (_model_in(a) for a in typing.get_args(annotation))
    return next((m for m in found if m is not None), None)


def networks_of(document: Mapping[str, Any]) -> list[str]:
    """Names of a document's tiers as they stand there; "" for what has none."""
    tiers = document.get("network")
    listed = tiers if isinstance(tiers, list) else []
    return [str(t.get("name", "")) if isinstance(t, dict) else "" for t in listed]
