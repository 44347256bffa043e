"""A changed cluster as a file that `flint estimate -c` reads: what a point ran on, for later."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flint.cluster.load import PRESETS, find_cluster_file, lent, merged, without_replaced
from flint.cluster.models import Cluster
from flint.cluster.named import is_yaml, load_cluster
from flint.tools.explore.machine.cluster_changes import changed
from flint.tools.explore.point import Pairs

#: Keys of one cluster's own.
_OWN = ("name", "title", "aliases", "base", "notes", "price_per_hour")


def cluster_text(base: str, changes: Pairs, name: str, folder: Path | None = None) -> str:
    """The TOML file, called `name`, of a cluster with changes: a change of `base`, or whole if that cannot say it.

    `base` is a preset or the path of a file, `folder` where the text will be: here without one.
    Raises as `load_cluster` and `changed` do.
    """
    before = load_cluster(base)
    after = changed(before, changes)
    was, now = _document(before), _document(after)
    said = ", ".join(f"{path}={text}" for path, text in changes)
    head = {"name": name, "title": f"{before.title}; {said}"}
    own = _differences(was, now)
    read = merged(without_replaced(lent({**was, "name": before.name}, own), own), own)
    if is_yaml(base) or _values(read) != {"name": before.name, **_values(now)}:
        return _toml({**head, **_priced(after), **now})
    return _toml({**head, "base": _seen_from(folder, base), **_priced(after), **own})


def _seen_from(folder: Path | None, base: str) -> str:
    """A base as a file in `folder` names it: the path of a file is taken from there."""
    path = find_cluster_file(base)
    if folder is None or path.is_relative_to(PRESETS):
        return base
    found = os.path.relpath(path.resolve(), folder.resolve())
    return found if found.endswith(".toml") else os.path.join(".", found)


def _document(cluster: Cluster) -> dict[str, Any]:
    found = cluster.model_dump(mode="json", exclude_defaults=True)
    return {k: v for k, v in found.items() if k not in _OWN}


def _priced(cluster: Cluster) -> dict[str, Any]:
    price = cluster.price_per_hour
    return {"price_per_hour": price.model_dump(mode="json")} if price else {}


def _differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """What `now` says that `was` does not: numbers of another value, tiers by their names."""
    found: dict[str, Any] = {}
    for key, value in now.items():
        before = was.get(key)
        if key == "network":
            tiers = {t["name"]: t for t in was[key]}
            own = [{"name": t["name"], **_differences(tiers.get(t["name"], {}), t)} for t in value]
            value = [t for t in own if len(t) > 1]
        elif isinstance(value, dict) and "value" not in value and isinstance(before, dict):
            value = _differences(before, value)
        elif _values(value) == _values(before):
            continue
        if value not in ({}, []):
            found[key] = value
    return found


def _values(value: Any) -> Any:
    """A document without kinds and sources."""
    if isinstance(value, dict):
        if "value" in value:
            return value["value"]
        return {k: _values(v) for k, v in value.items() if k not in _OWN or k == "name"}
    return [_values(v) for v in value] if isinstance(value, list) else value


def _toml(document: Mapping[str, Any]) -> str:
    return "\n".join(_lines(document, ())) + "\n"


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """A table's own keys, then the tables in it."""
    inner = {k: v for k, v in table.items() if _is_table(v) or _is_tables(v)}
    yield from (f"{_key(k)} = {_inline(v)}" for k, v in table.items() if k not in inner)
    for key, value in inner.items():
        where = (*path, key)
        name = ".".join(map(_key, where))
        for one in value if isinstance(value, list) else [value]:
            yield from ("", f"[[{name}]]" if isinstance(value, list) else f"[{name}]")
            yield from _lines(one, where)


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) and "value" not in value


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, dict) for v in value)


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() else json.dumps(name)


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(k)} = {_inline(v)}" for k, v in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)
