"""How values of columns are spelled: words, numbers, members of enumerations, groups and routes."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum, IntFlag
from functools import cache
from typing import Any

from flint.ir.columns import COLUMN_MEMBERS, TABLE_OF
from flint.ir.mesh import AxisRef, Group, Route
from flint.ir.text.scanner import Scanner
from flint.text import quoted, spelled_word


def spelled(column: str, value: Any) -> str:
    """The value of a column: an entry of its table, a member, a number, or four of them."""
    if TABLE_OF.get(column) == "groups":
        return spelled_group(value)
    if TABLE_OF.get(column) == "routes":
        return spelled_route(value)
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, list):
        return "x".join(map(str, value))
    if column in COLUMN_MEMBERS:
        return _spelled_member(COLUMN_MEMBERS[column], value)
    return str(value)


def parsed(column: str, scanner: Scanner) -> Any:
    """The value that `spelled` wrote; the scanner raises FlintError FL307 for another."""
    if TABLE_OF.get(column) == "groups":
        return parsed_group(scanner)
    if TABLE_OF.get(column) == "routes":
        return parsed_route(scanner)
    if column in TABLE_OF:
        return scanner.string()
    if column in COLUMN_MEMBERS:
        return _parsed_member(COLUMN_MEMBERS[column], scanner)
    numbers = [scanner.number()]
    while scanner.takes("x"):
        numbers.append(scanner.number())
    return numbers[0] if len(numbers) == 1 else tuple(numbers)


def _spelled_member(kind: type[IntEnum | IntFlag], value: int) -> str:
    if issubclass(kind, IntFlag):
        return "|".join(str(m.name).lower() for m in kind if value & m) or "0"
    return kind(value).name.lower()


def _parsed_member(kind: type[IntEnum | IntFlag], scanner: Scanner) -> int:
    if issubclass(kind, IntFlag):
        value = 0 if scanner.takes("0") else _member(kind, scanner)
        while scanner.takes("|"):
            value |= _member(kind, scanner)
        return value
    return _member(kind, scanner)


def _member(kind: type[IntEnum | IntFlag], scanner: Scanner) -> int:
    names = members(kind)
    return names[scanner.one_of(kind.__name__.lower(), names)]


@cache
def members(kind: type[IntEnum | IntFlag]) -> dict[str, int]:
    """Members of an enumeration by the names that are written."""
    return {str(m.name).lower(): int(m) for m in kind}


def spelled_group(group: Group) -> str:
    """`{data,model:(2)4}`, with `[0,3]` for positions, `ranks{{0,1},{2,3}}` for lists, `#1` for a copy."""
    some = f"[{','.join(map(str, group.positions))}]" if group.positions else ""
    lists = ",".join("{" + ",".join(map(str, r)) + "}" for r in group.ranks)
    copy = f"#{group.copy}" if group.copy else ""
    return _spelled_axes(group.axes) + some + (f"ranks{{{lists}}}" if group.ranks else "") + copy


def parsed_group(scanner: Scanner) -> Group:
    """What `spelled_group` wrote."""
    axes = _parsed_axes(scanner)
    positions = _many(scanner, "]", scanner.number) if scanner.takes("[") else []
    ranks = _many(scanner, "}", lambda: _ranks(scanner)) if scanner.takes("ranks{") else []
    copy = scanner.number() if scanner.takes("#") else 0
    return Group(axes, tuple(ranks), tuple(positions), copy)


def spelled_route(route: Route) -> str:
    """`{pipe}+1`, ` nowrap` if it does not go around, and `pairs{0>1,1>0}` for pairs."""
    pairs = ",".join(f"{a}>{b}" for a, b in route.pairs)
    end = "" if route.wrap else "nowrap"
    shift = f"{_spelled_axes(route.axes)}{route.offset:+d}{end}"
    return shift + (f"pairs{{{pairs}}}" if route.pairs else "")


def parsed_route(scanner: Scanner) -> Route:
    """What `spelled_route` wrote."""
    axes = _parsed_axes(scanner)
    offset = scanner.number()
    wrap = not scanner.takes("nowrap")
    pairs = _many(scanner, "}", lambda: _pair(scanner)) if scanner.takes("pairs{") else []
    return Route(axes, offset, wrap, tuple(pairs))


def _spelled_axes(axes: tuple[AxisRef, ...]) -> str:
    return "{" + ",".join(map(_spelled_axis, axes)) + "}"


def _spelled_axis(axis: AxisRef) -> str:
    part = "" if axis.size is None else f":({axis.pre_size}){axis.size}"
    return spelled_word(axis.name) + part


def _parsed_axes(scanner: Scanner) -> tuple[AxisRef, ...]:
    scanner.expect("{")
    return tuple(_many(scanner, "}", lambda: _parsed_axis(scanner)))


def _parsed_axis(scanner: Scanner) -> AxisRef:
    name = scanner.word()
    if not scanner.takes(":("):
        return AxisRef(name)
    before = scanner.number()
    scanner.expect(")")
    size = scanner.number()
    if before < 1 or size < 1:
        scanner.fail("parts of axes are one or more")
    return AxisRef(name, before, size)


def _ranks(scanner: Scanner) -> tuple[int, ...]:
    scanner.expect("{")
    return tuple(_many(scanner, "}", scanner.number))


def _pair(scanner: Scanner) -> tuple[int, int]:
    first = scanner.number()
    scanner.expect(">")
    return first, scanner.number()


def _many(scanner: Scanner, end: str, one: Callable[[], Any]) -> list[Any]:
    """What stands between commas, up to `end`."""
    found: list[Any] = []
    while not scanner.takes(end):
        if found:
            scanner.expect(",")
        found.append(one())
    return found
