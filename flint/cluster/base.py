"""`base`: a cluster file that says only what differs from another cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flint.cluster.errors import key_lines, line_of
from flint.cluster.load import find_cluster_file, read_toml
from flint.errors import FlintError
from flint.io.bounded import is_file

#: Files in one chain of bases.
MOST_BASES = 16
#: Keys that belong to one cluster and are not taken over.
_OWN = ("name", "title", "aliases", "base", "notes")


def document_of(path: Path, check: Callable[[dict[str, Any], Path, str], object]) -> dict[str, Any]:
    """The cluster file at `path` as a dictionary, on top of its base and of that one's.

    Tables are merged key by key, networks by name; those that the base lacks follow its own. `check`
    is called with each merged document, its file and that file's text, innermost base first, and
    raises what it finds. Raises FlintError FL701 for files that cannot be read or that are their own
    base, and FL702 for a base that no preset is called.
    """
    return _document(path, check, ())


def _document(
    path: Path, check: Callable[[dict[str, Any], Path, str], object], inside: tuple[Path, ...]
) -> dict[str, Any]:
    document, text = read_toml(path)
    if "base" in document:
        place = f"{path}:{line_of(('base',), key_lines(text))}"
        lower = _base_file(document["base"], path, place, (*inside, path))
        inherited = _document(lower, check, (*inside, path))
        document = merged({k: v for k, v in inherited.items() if k not in _OWN}, document)
    check(document, path, text)
    return document


def _base_file(base: object, path: Path, place: str, inside: tuple[Path, ...]) -> Path:
    """The file that `base` in the file at `path` names: a preset, or a path from there."""
    if not isinstance(base, str) or not base:
        raise FlintError(
            "FL701",
            f"{path.name}: key 'base' should be the name of a cluster or a TOML file",
            place=place,
            help='write base = "h100-dgx"',
        )
    found = _found(base, place)
    found = found if found.is_absolute() else path.parent / found
    if not is_file(found):
        raise FlintError(
            "FL701",
            f"{path.name}: its base is no file: {found}",
            place=place,
            help="the path of a base is taken from the directory of the file that names it",
        )
    if len(inside) > MOST_BASES:
        raise FlintError(
            "FL701",
            f"{path.name}: its chain of bases has more than {MOST_BASES} files",
            place=place,
            help="end the chain with a preset, or with a file without a base",
        )
    if found.resolve() in [p.resolve() for p in inside]:
        raise FlintError(
            "FL701",
            f"{path.name}: its base is itself: {' -> '.join(p.name for p in (*inside, found))}",
            place=place,
            help="end the chain with a preset, or with a file without a base",
        )
    return found


def _found(base: str, place: str) -> Path:
    try:
        return find_cluster_file(base)
    except FlintError as error:
        raise FlintError(error.code, error.message, place=place, help=error.help) from error


def merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """`own` on top of `base`: tables key by key, a number with its source as a whole."""
    found = dict(base)
    for key, value in own.items():
        before = found.get(key)
        if key == "network" and before and _are_tables(value):
            found[key] = _networks(before, value)
        elif isinstance(before, dict) and isinstance(value, dict) and "value" not in value:
            found[key] = merged(before, value)
        else:
            found[key] = value
    return found


def _are_tables(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, dict) for v in value)


def _networks(base: list[dict[str, Any]], own: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Networks of the base, each with the first of its name in `own`, and the rest of `own`."""
    rest = list(own)
    kept = []
    for network in base:
        change = next((n for n in rest if n.get("name") == network.get("name")), None)
        if change is not None:
            rest.remove(change)
        kept.append(merged(network, change or {}))
    return kept + rest
