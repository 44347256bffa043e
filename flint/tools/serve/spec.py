"""Options in one word of a command line, `vllm:max_num_seqs=128`, as the fields of a dataclass.

A field says how its text is read (`read`), which values it takes (`least`), and what it is (`help`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from typing import Any, TypeVar

from flint.errors import FlintError, nearest

T = TypeVar("T")
#: More of anything is a typing error.
_MOST = 1e15


@dataclass(frozen=True)
class Spec:
    """`name:first,key=value,...`, read once for everything that is written so."""

    text: str
    name: str
    first: str | None
    options: dict[str, str]


def parse_spec(text: str, code: str) -> Spec:
    """The parts of `name:first,key=value,...`. Raises FlintError `code` for a part without a key."""
    name, _, rest = text.partition(":")
    options: dict[str, str] = {}
    first = None
    for at, part in enumerate(_parts(rest)):
        key, equals, value = part.partition("=")
        key = key.strip()
        if not equals and at == 0:
            first = key
        elif not equals or key in options:
            what = f"'{key}' stands twice" if equals else f"'{part}' is not written key=value"
            raise FlintError(code, f"{what} in '{text}'")
        else:
            options[key] = value.strip()
    return Spec(text, name.strip(), first, options)


def _parts(text: str) -> Iterator[str]:
    """What commas separate, outside of parentheses."""
    depth, start = 0, 0
    for at, mark in enumerate(text):
        depth += (mark == "(") - (mark == ")")
        if mark == "," and not depth:
            yield text[start:at]
            start = at + 1
    if text[start:].strip():
        yield text[start:]


def fill(kind: type[T], spec: Spec, code: str, **given: object) -> T:
    """A dataclass from the options of `spec`; `given` are fields that are known already.

    Raises FlintError `code` for a key that `kind` lacks (with the nearest), for a value that its
    field does not take, and for a field without a value and a default.
    """
    known = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    values = dict(given)
    for key, text in spec.options.items():
        if key not in known or key in given:
            raise FlintError(
                code,
                f"'{spec.name}' has no option '{key}'{nearest(key, [*known])}",
                help=f"it takes {', '.join(known)}",
            )
        try:
            values[key] = known[key].metadata["read"](text)
        except ValueError as error:
            raise FlintError(code, f"{key} of '{spec.name}' is '{text}', not {error}") from None
    for name, one in known.items():
        if name not in values and one.default is MISSING:
            raise FlintError(code, f"'{spec.text}' does not say {name}: {one.metadata['help']}")
    return kind(**values)


def option(
    read: Callable[[str], T], help: str, default: T | None = None, *, needed: bool = False
) -> Any:
    """A field that `fill` reads; `needed` fields have no default."""
    metadata = {"read": read, "help": help}
    return field(metadata=metadata) if needed else field(default=default, metadata=metadata)


def whole(least: int) -> Callable[[str], int]:
    """Reads a whole number of at least `least`."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value < _MOST:
            raise ValueError(f"a whole number of at least {least}")
        return value

    return read


def number(
    least: float = 0.0, most: float = _MOST, *, above: bool = False
) -> Callable[[str], float]:
    """Reads a number from `least` (above it, if `above`) to `most`."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (least < value or (value == least and not above)) or not value <= most:
            end = f" and at most {most:g}" if most < _MOST else ""
            raise ValueError(f"a number {'above' if above else 'of at least'} {least:g}{end}")
        return value

    return read


def rate(text: str) -> float:
    """Reads `10/s`, `600/min`, `inf` or a bare number as events a second."""
    count, slash, unit = text.partition("/")
    if text.removesuffix("/s") == "inf":
        return math.inf
    per = {"s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0}.get(unit.strip() or "s")
    if per is None or (slash and not unit.strip()):
        raise ValueError("a rate such as 10/s or 600/min")
    return number(above=True)(count) / per


def switch(text: str) -> bool:
    """Reads on and off."""
    words = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}
    if text.lower() not in words:
        raise ValueError("on or off")
    return words[text.lower()]


def member(kind: type[StrEnum]) -> Callable[[str], StrEnum]:
    """Reads a member of an enumeration by its value, in any case."""

    def read(text: str) -> StrEnum:
        found = {m.value.lower(): m for m in kind}.get(text.lower())
        if found is None:
            raise ValueError(f"one of {', '.join(kind)}")
        return found

    return read
