"""Where the keys of a TOML document stand in its text: `tomllib` does not say."""

from __future__ import annotations

import re
from collections.abc import Mapping

#: Where something is in a TOML document: table names, keys and positions in arrays of tables.
Location = tuple[str | int, ...]

_PART = r"""(?:"[^"]*"|'[^']*'|[\w-]+)"""
_DOTTED = rf"(?P<name>{_PART}(?:\s*\.\s*{_PART})*)"
_TABLE = re.compile(rf"\s*\[(?P<array>\[)?\s*{_DOTTED}\s*\]")
_KEY = re.compile(rf"\s*{_DOTTED}\s*=")


def key_lines(text: str) -> dict[Location, int]:
    """The line (from 1) of every table and key of a TOML document."""
    lines: dict[Location, int] = {}
    counts: dict[Location, int] = {}
    table: Location = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _TABLE.match(line):
            table = _resolve(_parts(header["name"]), counts, is_array=bool(header["array"]))
            if header["array"]:
                lines.setdefault(table[:-1], number)
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            lines.setdefault((*table, *_parts(key["name"])), number)
    return lines


def line_of(location: Location, lines: Mapping[Location, int]) -> int:
    """The line of a location, or of the nearest table around it; 0 if there is none."""
    for length in range(len(location), 0, -1):
        if location[:length] in lines:
            return lines[location[:length]]
    return 0


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(p.strip("\"'") for p in re.findall(_PART, dotted))


def _resolve(names: tuple[str, ...], counts: dict[Location, int], *, is_array: bool) -> Location:
    """A table's location, with the position of each array of tables on the way to it."""
    where: Location = ()
    for i, name in enumerate(names):
        where = (*where, name)
        if is_array and i == len(names) - 1:
            counts[where] = counts.get(where, -1) + 1
        if where in counts:
            where = (*where, counts[where])
    return where
