"""Every number of a cluster, with its kind and source."""

from __future__ import annotations

from typing import Any


def numbers(value: Any, key: str = "") -> list[tuple[str, str, str, str]]:
    """Key, value, kind and source of every number in a dumped cluster, in its order."""
    if isinstance(value, dict) and set(value) == {"value", "kind", "source"}:
        return [(key, f"{value['value']:g}", value["kind"], value["source"])]
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list) and any(isinstance(v, dict) for v in value):
        items = {v["name"]: v for v in value}.items()
    else:
        return [(key, _plain(value), "", "")] if value and "." in key else []
    return [row for k, v in items for row in numbers(v, f"{key}.{k}" if key else k)]


def _plain(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, list) else str(value)
