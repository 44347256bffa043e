"""Write fitted constants into a cluster file and leave the rest of it as it is."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from flint.cluster.models import SourceKind
from flint.io.files import write_atomically

#: Value, kind and source of a constant.
Constant = tuple[float, str, str]

_HEADER = re.compile(r"\s*\[\[?\s*(?P<name>[^\[\]]+?)\s*\]")
_NAME = re.compile(r'\s*name\s*=\s*"(?P<name>[^"]*)"')


def set_constants(path: Path, table: str, constants: Mapping[str, Constant]) -> None:
    """Replace the table `table` of the TOML file at `path` by `constants`, or create it.

    `table` is "chip.gpu.constants", "chip.systolic.constants" or, of the tier called nvlink,
    "network.nvlink.constants". Constants are written sorted, with six significant digits. Raises
    ValueError for an unknown kind, an empty source or a file without the table around it, and then
    leaves the file as it was.
    """
    text = path.read_text("utf-8")
    changed = with_constants(text, table, constants)
    tomllib.loads(changed)
    write_atomically(path, changed.encode())


def with_constants(text: str, table: str, constants: Mapping[str, Constant]) -> str:
    """The text of `set_constants`, see there."""
    lines = text.splitlines()
    parent, _, last = table.rpartition(".")
    start, end, name = _parent_block(lines, parent)
    header = f"[{name}.{last}]"
    body = [header, *(_line(key, *constants[key]) for key in sorted(constants))]
    found = _own_block(lines, header, start, _children_end(lines, start, name))
    if found is not None:
        lines[found[0] : found[1]] = body
    else:
        lines[end:end] = ["", *body]
    return "\n".join(lines) + "\n"


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
