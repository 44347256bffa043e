"""Cluster files: which there are, and what they hold before anything is checked."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flint.errors import FlintError, nearest
from flint.io.bounded import FileKind, read_bounded

_TEXT = "docs/clusters.md has whole files to start from; they are UTF-8, without a mark"
PRESETS = Path(__file__).resolve().parent / "presets"


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
    help_ = f"one of {', '.join(preset_names())}, or the path of a TOML file"
    if text.lower().endswith((".yml", ".yaml")):
        help_ = "flint.cluster.source.load_cluster reads ASTRA-sim's files"
    raise FlintError(
        "FL702",
        f"no cluster is called '{text}'{nearest(text, [*preset_names(), *aliases])}",
        help=help_,
    )


def preset_aliases(name: str) -> list[str]:
    """Other names of a preset."""
    return list(_preset(name).get("aliases", ()))


def chips_with_constants(table: str) -> dict[str, str]:
    """Presets whose chips have constants in [chip.`table`], by cluster, alias and chip."""
    found: dict[str, str] = {}
    for name in preset_names():
        document = _preset(name)
        if document["chip"].get(table, {}).get("constants"):
            called = (name, *document.get("aliases", ()), document["chip"]["name"])
            found.update({c: found.get(c, name) for c in called})
    return found


def _preset(name: str) -> dict[str, Any]:
    return tomllib.loads((PRESETS / f"{name}.toml").read_text("utf-8"))


def read_toml(path: Path) -> tuple[dict[str, Any], str]:
    """A TOML file as a dictionary and as its text. Raises FlintError FL701 if it is not one."""
    help_ = f"give a TOML file, or a preset: {', '.join(preset_names())}"
    data = read_bounded(path, FileKind.CLUSTER, "FL701", help_)
    try:
        text = data.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except ValueError as error:
        raise FlintError(
            "FL701", f"{path.name} is not a TOML file: {error}", place=str(path), help=_TEXT
        ) from error
    try:
        return tomllib.loads(text), text
    except (ValueError, RecursionError) as error:  # ValueError: also thousands of digits
        line = re.search(r"at line (\d+)", str(error))
        place = f"{path}:{line[1]}" if line else str(path)
        raise FlintError(
            "FL701", f"{path.name} is not a TOML file: {error}", place=place, help=_TEXT
        ) from error


def networks_of(document: Mapping[str, Any]) -> list[str]:
    """Names of a document's tiers as they stand there; "" for what has none."""
    tiers = document.get("network")
    listed = tiers if isinstance(tiers, list) else []
    return [str(t.get("name", "")) if isinstance(t, dict) else "" for t in listed]
