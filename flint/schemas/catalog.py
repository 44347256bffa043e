"""The JSON Schemas of what commands print, by kind and version: `flint.estimate/1`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flint.errors import FlintError, nearest

FOLDER = Path(__file__).parent
_PREFIX = "flint."


def file_name(name: str) -> str:
    """`flint.estimate/1` is in `estimate-1.json`."""
    return name.removeprefix(_PREFIX).replace("/", "-") + ".json"


def schema_names() -> list[str]:
    """Kinds and versions that there are, sorted."""
    stems = (path.stem.rpartition("-") for path in FOLDER.glob("*.json"))
    versions = sorted((kind, int(version)) for kind, _, version in stems)
    return [f"{_PREFIX}{kind}/{version}" for kind, version in versions]


def find_schema(name: str) -> dict[str, Any]:
    """The JSON Schema of `flint.estimate/1`, or the newest of `estimate`.

    Raises FlintError FL507 for a name that there is not.
    """
    known = schema_names()
    newest = {n.removeprefix(_PREFIX).partition("/")[0]: n for n in known}
    short = name.removeprefix(_PREFIX)
    full = newest.get(short, f"{_PREFIX}{short}")
    if full not in known:
        raise FlintError(
            "FL507",
            f"no document is called '{name}'{nearest(short, [*newest])}",
            help=f"the kinds are {', '.join(newest)}",
        )
    return read_schema(full)


def read_schema(name: str) -> dict[str, Any]:
    """The JSON Schema of a kind and version that there is."""
    found: dict[str, Any] = json.loads((FOLDER / file_name(name)).read_text("utf-8"))
    return found
