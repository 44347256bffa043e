"""Cluster files: which there are, where a key stands in one, and what is wrong with it."""

from __future__ import annotations

import re
import tomllib
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flint.errors import FlintError, nearest

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

PRESETS = Path(__file__).resolve().parent / "clusters"
#: Where something is in a TOML document: table names, keys and positions in arrays of tables.
Location = tuple[str | int, ...]

_TABLE = re.compile(r"\s*\[(?P<array>\[)?(?P<name>[^\[\]]+)\]")
_KEY = re.compile(r"""\s*(?P<name>[\w.\-"']+)\s*=""")


def preset_names() -> list[str]:
    """Names of the clusters that come with Flint, sorted."""
    return sorted(p.stem for p in PRESETS.glob("*.toml"))


def find_cluster_file(name_or_path: str | Path) -> Path:
    """The TOML file of a preset (by its name or one of its aliases) or of the user.

    Anything that ends in .toml or has a directory in it is a path. Raises FlintError FL702 for a
    name that no preset has.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith(".toml") or "/" in text or "\\" in text:
        return Path(name_or_path)
    if text in preset_names():
        return PRESETS / f"{text}.toml"
    aliases = {a: name for name in preset_names() for a in preset_aliases(name)}
    if text in aliases:
        return PRESETS / f"{aliases[text]}.toml"
    raise FlintError(
        "FL702",
        f"no cluster is called '{text}'{nearest(text, [*preset_names(), *aliases])}",
        help=f"one of {', '.join(preset_names())}, or the path of a TOML file",
    )


def preset_aliases(name: str) -> list[str]:
    """Other names of a preset."""
    return list(tomllib.loads((PRESETS / f"{name}.toml").read_text("utf-8")).get("aliases", ()))


def read_toml(path: Path) -> tuple[dict[str, Any], str]:
    """A TOML file as a dictionary and as its text. Raises FlintError FL701 if it is not one."""
    try:
        text = path.read_text("utf-8")
        return tomllib.loads(text), text
    except OSError as error:
        raise FlintError("FL701", f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:  # tomllib.TOMLDecodeError and UnicodeDecodeError are ValueErrors
        raise FlintError("FL701", f"{path} is not a TOML file: {error}") from error


def cluster_error(
    error: ValidationError, model: type[BaseModel], path: Path, text: str, networks: Sequence[str]
) -> FlintError:
    """The FlintError FL701 for what pydantic found in the file at `path`: its first finding.

    `networks` are the names of the cluster's tiers; with a base the file has not all of them.
    """
    lines = key_lines(text)
    own = networks_of(tomllib.loads(text))

    def line_of(found: Mapping[str, Any]) -> int:
        return _line(_own_location(found["loc"], networks, own), lines)

    errors = error.errors()
    # A list whose only entry is wrong is also called too short: that is not what is wrong.
    real = [e for e in errors if e["type"] != "too_short"] or errors
    found = min(real, key=lambda e: (e["type"] != "extra_forbidden", line_of(e)))
    line = line_of(found)
    return FlintError(
        "FL701",
        f"{path.name}: {_said(found, model)}",
        place=f"{path}:{line}" if line else str(path),
        help=_help(found, model),
    )


def key_lines(text: str) -> dict[Location, int]:
    """The line (from 1) of every table and key of a TOML document."""
    lines: dict[Location, int] = {}
    counts: dict[Location, int] = {}
    table: Location = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _TABLE.match(line):
            table = _resolve(_parts(header["name"]), counts, is_array=bool(header["array"]))
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            lines.setdefault((*table, *_parts(key["name"])), number)
    return lines


def _parts(dotted: str) -> Location:
    return tuple(p.strip().strip("\"'") for p in dotted.split("."))


def _resolve(names: Location, counts: dict[Location, int], *, is_array: bool) -> Location:
    """A table's location, with the position of each array of tables on the way to it."""
    where: Location = ()
    for i, name in enumerate(names):
        where = (*where, name)
        if is_array and i == len(names) - 1:
            counts[where] = counts.get(where, -1) + 1
        if where in counts:
            where = (*where, counts[where])
    return where


def networks_of(document: Mapping[str, Any]) -> list[str]:
    """Names of a document's tiers as they stand there; "" for what has none."""
    tiers = document.get("network")
    listed = tiers if isinstance(tiers, list) else []
    return [str(t.get("name", "")) if isinstance(t, dict) else "" for t in listed]


def _own_location(location: Location, networks: Sequence[str], own: Sequence[str]) -> Location:
    """Where something in a cluster stands in its file, which lists only the tiers `own`."""
    if len(location) < 2 or location[0] != "network" or not isinstance(location[1], int):
        return location
    name = networks[location[1]]
    return ("network", own.index(name), *location[2:]) if name in own else ()


def _line(location: Location, lines: Mapping[Location, int]) -> int:
    """The line of a location, or of the nearest table around it; 0 if there is none."""
    for length in range(len(location), 0, -1):
        if location[:length] in lines:
            return lines[location[:length]]
    return 0


def _dotted(location: Location) -> str:
    return ".".join(str(p) for p in location)


def _said(found: Mapping[str, Any], model: type[BaseModel]) -> str:
    where, kind = _dotted(found["loc"]), found["type"]
    if kind == "extra_forbidden":
        name = str(found["loc"][-1])
        return f"unknown key '{where}'{nearest(name, list(_keys(model, found['loc'])))}"
    if kind == "missing":
        return f"key '{where}' is missing"
    reason = found["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return f"key '{where}' {reason}" if where else f"the cluster {reason}"


def _help(found: Mapping[str, Any], model: type[BaseModel]) -> str | None:
    if found["type"] == "extra_forbidden":
        return f"the keys there are {', '.join(_keys(model, found['loc']))}"
    if found["type"] in ("model_type", "dict_type"):
        return 'write { value = 1e12, kind = "datasheet", source = "where it is from" }'
    return None


def _keys(model: type[BaseModel], location: Location) -> Iterator[str]:
    """The keys that are allowed beside the one at `location`."""
    for part in location[:-1]:
        if isinstance(part, str) and part in model.model_fields:
            inner = _model_in(model.model_fields[part].annotation)
            model = inner or model
    yield from model.model_fields


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model that an annotation such as `Gpu | None` or `tuple[Network, ...]` holds."""
    if hasattr(annotation, "model_fields"):
        return typing.cast("type[BaseModel]", annotation)
    found = (_model_in(a) for a in typing.get_args(annotation))
    return next((m for m in found if m is not None), None)
