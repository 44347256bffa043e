"""Write fitted constants into a cluster file and leave the rest of it as it is."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flint.cluster.models import SourceKind
from flint.io.files import write_atomically

#: Value, kind and source of a constant.
Constant = tuple[float, str, str]

_HEADER = re.compile(r"\s*\[\[?\s*(?P<name>[^\[\]]+?)\s*\]")
_NAME = re.compile(r'\s*name\s*=\s*"(?P<name>[^"]*)"')


def set_constants(path: Path, table: str, constants: Mapping[str, Constant]) -> None:
    """Replace the table `table` of the TOML file at `path` by `constants`, or create it.

    `table` is "chip.gpu.constants", "chip.systolic.constants" or, of the tier called nvlink,
    "network.nvlink.constants". "" is the top of the file, such as a stack's, where constants take the place of
    those of their names, or stand at its end. Constants are written sorted, with six significant digits. Raises
    ValueError for an unknown kind, an empty source or a file without the table around it, and then
    leaves the file as it was.
    """
    text = path.read_text("utf-8")
    changed = with_constants(text, table, constants)
    tomllib.loads(changed)
    write_atomically(path, changed.encode())


def update_constants(path: Path, table: str, constants: Mapping[str, Constant]) -> None:
    """As `set_constants`, but constants of the table that have other names stay."""
    there = constants_in(path, table)
    kept = {n: (q["value"], q["kind"], q["source"]) for n, q in there.items()}
    set_constants(path, table, {**kept, **constants})


def constants_in(path: Path, table: str) -> dict[str, Any]:
    """The table of constants of a cluster file, as it stands there; {} if it has none."""
    document = tomllib.loads(path.read_text("utf-8"))
    if not table:
        return {n: v for n, v in document.items() if isinstance(v, dict) and "value" in v}
    first, *names = table.split(".")
    found: Any = document.get(first, {})
    if isinstance(found, list):  # tiers of the network, by name
        found = next((n for n in found if n.get("name") == names[0]), {})
        names = names[1:]
    for name in names:
        found = found.get(name, {})
    return dict(found)


def with_constants(text: str, table: str, constants: Mapping[str, Constant]) -> str:
    """The text of `set_constants`, see there."""
    lines = text.splitlines()
    if not table:
        return "\n".join(_with_top(lines, constants)) + "\n"
    parent, _, last = table.rpartition(".")
    while f"[{parent}]" not in map(str.strip, lines) and parent.count(".") > 1:
        parent, _, above = parent.rpartition(".")  # a table of tables, which needs no header
        last = f"{above}.{last}"
    start, end, name = _parent_block(lines, parent)
    header = f"[{name}.{last}]"
    body = [header, *(_line(key, *constants[key]) for key in sorted(constants))]
    found = _own_block(lines, header, start, _children_end(lines, start, name))
    if found is not None:
        lines[found[0] : found[1]] = body
    else:
        if "." in last:  # after the constants of all libraries
            end = _trimmed(lines, _children_end(lines, start, name))
        lines[end:end] = ["", *body]
    return "\n".join(lines) + "\n"


def _with_top(lines: list[str], constants: Mapping[str, Constant]) -> list[str]:
    """The lines of a file with constants before its first table."""
    end = next((i for i, line in enumerate(lines) if _header_name(line)), len(lines))
    top, made = lines[:end], {key: _line(key, *constants[key]) for key in sorted(constants)}
    for i, line in enumerate(top):
        top[i] = made.pop(line.partition("=")[0].strip(), line)
    return [*top, *made.values(), *lines[end:]]


def _line(key: str, value: float, kind: str, source: str) -> str:
    if not source:
        raise ValueError(f"constant {key} has no source")
    bare = key if re.fullmatch(r"[\w-]+", key) else json.dumps(key)
    number = float(f"{value:.6g}")
    quoted = json.dumps(source, ensure_ascii=False)
    return f'{bare} = {{ value = {number!r}, kind = "{SourceKind(kind)}", source = {quoted} }}'


def _header_name(line: str) -> str:
    match = _HEADER.match(line)
    return match["name"] if match else ""


def _block_end(lines: list[str], start: int) -> int:
    """Line after the last key of the block whose header is at `start`.

    Blank lines and comments after it are about what follows.
    """
    end = next((i for i in range(start + 1, len(lines)) if _header_name(lines[i])), len(lines))
    return _trimmed(lines, end)


def _trimmed(lines: list[str], end: int) -> int:
    while not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#"):
        end -= 1
    return end


def _children_end(lines: list[str], start: int, name: str) -> int:
    """First line after `start` whose header is not of a table inside table `name`."""
    for i in range(start + 1, len(lines)):
        other = _header_name(lines[i])
        if other and not other.startswith(f"{name}."):
            return i
    return len(lines)


def _parent_block(lines: list[str], parent: str) -> tuple[int, int, str]:
    """Header line, line after the last key and TOML name of the table around the constants."""
    array, _, element = parent.partition(".")
    for i, line in enumerate(lines):
        if line.strip() == f"[{parent}]":
            return i, _block_end(lines, i), parent
        if line.strip() == f"[[{array}]]":
            end = _block_end(lines, i)
            names = [m["name"] for x in lines[i:end] if (m := _NAME.match(x))]
            if names == [element]:
                return i, end, array
    raise ValueError(f"there is no table [{parent}] to write constants into")


def _own_block(lines: list[str], header: str, start: int, stop: int) -> tuple[int, int] | None:
    """First line and line after the last of the table that is replaced; None if it is new."""
    for i in range(start, stop):
        if lines[i].strip() == header:
            return i, _block_end(lines, i)
    return None
