"""Cluster files: which there are, and what they hold before anything is checked, on top of their bases."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from flint.cluster.kernel_times import read_table
from flint.errors import FlintError, nearest
from flint.io.bounded import FileKind, is_file, read_bounded

_TEXT = "docs/clusters.md has whole files to start from; they are UTF-8"
PRESETS = Path(__file__).resolve().parent / "presets"
#: Files in one chain of bases.
MOST_BASES = 16
#: Keys that belong to one cluster and are not taken over.
_OWN = ("name", "title", "aliases", "base", "notes", "price_per_hour")


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
    close = nearest(text, [*preset_names(), *aliases])
    listed = "`flint clusters` lists them" if close else f"one of {', '.join(preset_names())}"
    help_ = f"{listed}, or give the path of a TOML file"
    if text.lower().endswith((".yml", ".yaml")):
        help_ = "flint.cluster.models.load_cluster reads ASTRA-sim's files"
    raise FlintError(
        "FL702",
        f"no cluster is called '{text}'{close}",
        help=help_,
    )


@cache
def preset_aliases(name: str) -> list[str]:
    """Other names of a preset; its tables, which take longer, are not read."""
    head = (PRESETS / f"{name}.toml").read_text("utf-8").partition("\n[")[0]
    return list(tomllib.loads(head).get("aliases", ()))


@cache
def chips_with_constants(table: str) -> Mapping[str, str]:
    """Presets whose chips have constants in [chip.`table`], by cluster, alias and chip."""
    found: dict[str, str] = {}
    for name in preset_names():
        document, lender = _preset(name), _lender(name, table)
        if lender:
            chip = document.get("chip", {}).get("name", name)
            called = (name, *document.get("aliases", ()), chip)
            found.update({c: found.get(c, lender) for c in called})
    return found


def _lender(name: str, table: str) -> str:
    """The preset that has the constants of a preset's chip: itself, or the nearest of its bases."""
    document = _preset(name)
    if document.get("chip", {}).get(table, {}).get("constants"):
        return name
    base = document.get("base", "")
    return _lender(base, table) if base in preset_names() else ""


@cache
def _preset(name: str) -> Mapping[str, Any]:
    return tomllib.loads((PRESETS / f"{name}.toml").read_text("utf-8"))


def read_toml(path: Path) -> tuple[dict[str, Any], str]:
    """A TOML file as a dictionary and as its text. Raises FlintError FL701 if it is not one."""
    help_ = f"give a TOML file, or a preset: {', '.join(preset_names())}"
    data = read_bounded(path, FileKind.CLUSTER, "FL701", help_)
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
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
    _read_measured(document, path, text)
    if "base" in document:
        place = f"{path}:{line_of(('base',), key_lines(text))}"
        lower = _base_file(document["base"], path, place, (*inside, path))
        inherited = lent(_document(lower, check, (*inside, path)), document)
        inherited = _without_networks(without_replaced(inherited, document), document)
        document = merged({k: v for k, v in inherited.items() if k not in _OWN}, document)
    check(document, path, text)
    return document


def without_replaced(inherited: dict[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """A base without constants of libraries that a file's own constants take the place of.

    Those stand before `[chip.NAME.constants]` of the base. What a file says itself of products (`gemm.`)
    is of the user's own: no library's products, nor their sustained rates, stand before it.
    """
    chip = inherited.get("chip", {})
    ours = own["chip"] if isinstance(own.get("chip"), dict) else {}
    for name, family in chip.items():
        if not isinstance(family, dict) or "libraries" not in family:
            continue
        mine = ours.get(name, {})
        said = mine.get("constants", {}) if isinstance(mine, dict) else {}
        classes = tuple({f"{constant.partition('.')[0]}." for constant in said})
        kept = {
            library: {k: v for k, v in table.items() if not k.startswith(classes)}
            for library, table in family["libraries"].items()
        }
        chip = {**chip, name: {**family, "libraries": {n: t for n, t in kept.items() if t}}}
    return {**inherited, "chip": chip} if chip else inherited


def _without_networks(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """The base without the networks that a network of `own` `replaces`, whose key that is."""
    tiers = own.get("network")
    named = [t for t in tiers if isinstance(t, dict)] if isinstance(tiers, list) else []
    there = [tier["name"] for tier in base["network"]]
    gone = {t["replaces"] for t in named if isinstance(t.get("replaces"), str)} & set(there)
    for tier in named:
        if tier.get("replaces") in gone:  # what nobody has stays, and is an unknown key
            del tier["replaces"]
    return {**base, "network": [t for t in base["network"] if t["name"] not in gone]}


def _read_measured(document: dict[str, Any], path: Path, text: str) -> None:
    """Replace the name of the table of measured kernels by the table: a base's is beside the base."""
    chip = document.get("chip")
    if isinstance(chip, dict) and "measured_kernels" in chip:
        place = f"{path}:{line_of(('chip', 'measured_kernels'), key_lines(text))}"
        chip["measured_kernels"] = read_table(chip["measured_kernels"], path.parent, place)


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
            f"{path.name}: its base is not a file: {found}",
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


# What a cluster file has from its base although its chip or fabric is another one, said as such.
#
# A fitted constant is of the chip and of the fabric that it was fitted on. A file that changes either
# and keeps the base's constants only assumes them: their kind becomes `assumed`, and their source
# begins with whose they are, "as H100-SXM5-80GB: ...".

#: Keys of a chip that do not make it another one.
SAME_CHIP = ("memory_bytes", "host_link_bytes_per_s", "variation", "measured_kernels")
#: Tables of a family of chips that hold constants.
_CONSTANTS = ("constants", "libraries", "uses", "like")
#: Keys of a tier that make it another fabric.
FABRIC = ("kind", "bandwidth_bytes_per_s")
#: How the source of a constant begins that is another chip's or fabric's.
LENT = re.compile("as (?:on |of |fitted for )?([^:,]+?)[,:] ")


def lent(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The document `base` as the file `own`, which is on top of it, may have it.

    `base` has been checked, `own` may hold anything.
    """
    found, name = dict(base), str(base.get("name", ""))
    if _is_another_chip(base["chip"], own.get("chip")):
        found["chip"] = _lent_chip(base["chip"])
    tiers = own.get("network")
    if isinstance(tiers, list):
        changed = {
            t["name"]: t for t in tiers if isinstance(t, dict) and isinstance(t.get("name"), str)
        }
        found["network"] = [
            _lent_tier(tier, name) if _is_another_fabric(tier, changed.get(tier["name"])) else tier
            for tier in base["network"]
        ]
    return found


def lenders(constants: Mapping[str, Any]) -> dict[str, int]:
    """Whose constants some are that are not a chip's or fabric's own, and how many of them.

    `constants` are quantities by name.
    """
    found: dict[str, int] = {}
    for quantity in constants.values():
        if match := LENT.match(quantity.source):
            found[match[1]] = found.get(match[1], 0) + 1
    return found


def _is_another_chip(base: Mapping[str, Any], own: Any) -> bool:
    if not isinstance(own, dict):
        return False
    for key, value in own.items():
        before = base.get(key)
        if key in SAME_CHIP:
            continue
        if isinstance(value, dict) and "value" not in value and isinstance(before, dict):
            said = [k for k in value if k not in _CONSTANTS]
            if any(_plain(value[k]) != _plain(before.get(k)) for k in said):
                return True
        elif _plain(value) != _plain(before):
            return True
    return False


def _is_another_fabric(base: Mapping[str, Any], own: Any) -> bool:
    return own is not None and any(
        key in own and _plain(own[key]) != _plain(base.get(key)) for key in FABRIC
    )


def _plain(value: Any) -> Any:
    """A number without its kind and source."""
    return value.get("value") if isinstance(value, dict) and "value" in value else value


def _lent_chip(chip: Mapping[str, Any]) -> dict[str, Any]:
    found, name = dict(chip), str(chip["name"])
    found.pop("measured_kernels", None)  # times of exact shapes are no other chip's
    for key, table in chip.items():
        if not isinstance(table, dict):
            continue
        changed = dict(table)
        if "constants" in table:
            changed["constants"] = _assumed(table["constants"], name)
        if "libraries" in table:
            changed["libraries"] = {n: _assumed(t, name) for n, t in table["libraries"].items()}
        found[key] = changed
    return found


def _lent_tier(tier: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Nothing of it was measured on this fabric."""
    found = dict(tier)
    whose = f"{tier['name']} of {name}"
    if "constants" in tier:
        found["constants"] = _assumed(tier["constants"], whose)
    if "libraries" in tier:
        found["libraries"] = {n: _assumed(t, whose) for n, t in tier["libraries"].items()}
    if "measured_members" in tier:
        found["measured_members"] = 1
    return found


def lent_source(source: str, name: str) -> str:
    """The source of a constant that is taken from `name`; whoever lent it first stays."""
    return source if LENT.match(source) else f"as {name}: {source}"


def _assumed(constants: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {
        key: {
            "value": number["value"],
            "kind": "assumed",
            "source": lent_source(number["source"], name),
        }
        for key, number in constants.items()
    }


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
