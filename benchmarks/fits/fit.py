"""A fit: which table of which preset it writes, from which data, and how it is written there."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from types import ModuleType
from typing import Any

import benchmarks.fits
from flint.cluster.load import PRESETS
from flint.cluster.models import SourceKind
from flint.cluster.stack import STACKS
from flint.io.files import write_atomically

#: Value, kind ("fitted", "measured", "assumed", "datasheet") and source of a constant.
Constant = tuple[float, str, str]


@dataclass(frozen=True)
class Fit:
    """Constants that are made from data in benchmarks/data.

    `preset` is the cluster whose file they stand in, `table` where there: "chip.gpu.constants",
    "chip.gpu.libraries.aten", "chip.systolic.constants" or, of the tier nvlink,
    "network.nvlink.constants"; "" is the top of the file of a stack of that name. `names` are those that it writes, and no others of the table. `run`
    makes them. They are kept to four digits, which the same data give on any machine. CI makes those that are `quick`.
    `bounds` are what each may be: one that ends at an edge is listed on the accuracy page, and so is
    one that rests on fewer than `FEW` rows.
    """

    name: str
    preset: str
    table: str
    names: tuple[str, ...]
    rows: int
    run: Callable[[], Mapping[str, Constant]]
    bounds: Mapping[str, tuple[float, float, float]]
    quick: bool = False

    @property
    def path(self) -> Path:
        """The file that it writes."""
        return (PRESETS if self.table else STACKS) / f"{self.preset}.toml"


def borrowed(name: str, preset: str, like: str, table: str, names: Sequence[str], why: str) -> Fit:
    """Constants that a preset has from the same table of another one; `why` may be empty."""

    def run() -> Mapping[str, Constant]:
        whose = f"as {like}, {why}" if why else f"as {like}"
        there = constants_in(PRESETS / f"{like}.toml", table)
        return {n: (there[n]["value"], "assumed", f"{whose}: {there[n]['source']}") for n in names}

    return Fit(name, preset, table, tuple(names), len(names), run, {}, quick=True)


#: A constant that rests on fewer rows is listed.
FEW = 4


def all_fits(of: Callable[[ModuleType], bool] = lambda module: True) -> Sequence[Fit]:
    """The fits of all modules of this package, or some, in an order in which each finds what it prices with.

    A module names in `AFTER` those whose constants it starts from.
    """
    names = sorted(m.name for m in pkgutil.iter_modules(benchmarks.fits.__path__))
    modules = {name: importlib.import_module(f"benchmarks.fits.{name}") for name in names}
    before = {name: getattr(module, "AFTER", ()) for name, module in modules.items()}
    found: list[Fit] = []
    for name in TopologicalSorter(before).static_order():
        if hasattr(modules[name], "fits") and of(modules[name]):
            found += modules[name].fits()
    return found


# Constants in a cluster file: what is there, and how they are written so that the rest of it stays.

_HEADER = re.compile(r"\s*\[\[?\s*(?P<name>[^\[\]]+?)\s*\]")
_NAME = re.compile(r'\s*name\s*=\s*"(?P<name>[^"]*)"')


def set_constants(path: Path, table: str, constants: Mapping[str, Constant]) -> None:
    """Put `constants` into the table `table` of the TOML file at `path`: others of it stay.

    `table` is "chip.gpu.constants", "chip.systolic.constants" or, of the tier called nvlink,
    "network.nvlink.constants". "" is the top of the file, such as a stack's, where constants take the place of
    those of their names, or stand at its end. Constants are written sorted, with six significant digits. Raises
    ValueError for an unknown kind, an empty source or a file without the table around it, and then
    leaves the file as it was.
    """
    there = {n: (q["value"], q["kind"], q["source"]) for n, q in constants_in(path, table).items()}
    changed = with_constants(path.read_text("utf-8"), table, {**there, **constants})
    tomllib.loads(changed)
    write_atomically(path, changed.encode())


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
    made = {key: _line(key, *constants[key]) for key in sorted(constants)}
    if not table:
        top = _end(lines, -1)
        for i, line in enumerate(lines[:top]):
            lines[i] = made.pop(line.partition("=")[0].strip(), line)
        lines[top:top] = made.values()
        return "\n".join(lines) + "\n"
    parent, _, last = table.rpartition(".")
    while f"[{parent}]" not in map(str.strip, lines) and parent.count(".") > 1:
        parent, _, above = parent.rpartition(".")  # a table of tables, which needs no header
        last = f"{above}.{last}"
    start, end, name = _parent_block(lines, parent)
    header, stop = f"[{name}.{last}]", _end(lines, start, name)
    body = [header, *made.values()]
    own = next((i for i in range(start, stop) if lines[i].strip() == header), None)
    if own is not None:
        lines[own : _block_end(lines, own)] = body
    else:
        if "." in last:  # after the constants of all libraries
            end = _trimmed(lines, stop)
        lines[end:end] = ["", *body]
    return "\n".join(lines) + "\n"


def _line(key: str, value: float, kind: str, source: str) -> str:
    if not source:
        raise ValueError(f"constant {key} has no source")
    bare = key if re.fullmatch(r"[\w-]+", key) else json.dumps(key)
    number = float(f"{value:.6g}")
    quoted = json.dumps(source, ensure_ascii=False)
    return f'{bare} = {{ value = {number!r}, kind = "{SourceKind(kind)}", source = {quoted} }}'


def _end(lines: list[str], start: int, inside: str = "") -> int:
    """The next header after line `start`, of tables inside table `inside` none; else the end of the file."""
    for i in range(start + 1, len(lines)):
        header = _HEADER.match(lines[i])
        if header and not (inside and header["name"].startswith(f"{inside}.")):
            return i
    return len(lines)


def _block_end(lines: list[str], start: int) -> int:
    """Line after the last key of the block whose header is at `start`.

    Blank lines and comments after it are about what follows.
    """
    return _trimmed(lines, _end(lines, start))


def _trimmed(lines: list[str], end: int) -> int:
    while not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#"):
        end -= 1
    return end


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
