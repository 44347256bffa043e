"""Text for people: quantities (`1.50 GiB`, `59.3 TFLOP`), plain tables, and names of others.

Exact numbers are for `--json` and files. Tables are for pipes, files and logs, where nothing may be
cut off or colored; nothing in a name moves a cursor or hides what follows.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_DECIMAL = ("", "k", "M", "G", "T", "P", "E")
#: Control characters (C0 but tab and newline, DEL, C1), what reorders text or breaks lines, and
#: halves of surrogate pairs, which no encoding takes.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_BREAKS = re.compile("[\t\n]")
#: Longest scope that goes into a node's name; its first components are cut off.
_MOST_OF_SCOPE = 40
#: What need not be written in quotes in the text of a program.
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.+\-/]*")


def short_scope(scope: str) -> str:
    """The last components of `scope` that fit into a node's name, at least one."""
    while len(scope) > _MOST_OF_SCOPE and "/" in scope:
        scope = scope.partition("/")[2]
    return scope[-_MOST_OF_SCOPE:]


def spelled_word(text: str) -> str:
    """A word as it is, anything else as a JSON string."""
    return text if _WORD.fullmatch(text) else quoted(text)


def quoted(text: str) -> str:
    """A JSON string of printable ASCII."""
    return json.dumps(text).replace("\x7f", "\\u007f")


def format_bytes(count: int) -> str:
    """Bytes with a binary unit (1 KiB = 1024 B) and three significant digits."""
    return _scaled(count, 1024, _BINARY, "")


def format_flops(count: int) -> str:
    """Floating point operations with a decimal unit (1 TFLOP = 10^12)."""
    return _scaled(count, 1000, _DECIMAL, "FLOP")


def warning_lines(warnings: Iterable[str]) -> list[str]:
    """Warnings of a capture, as everything prints them."""
    return [f"warning: {warning}" for warning in warnings]


def format_count(count: int) -> str:
    """A number of things, with a comma at each thousand."""
    return f"{count:,}"


def format_seconds(seconds: float) -> str:
    """A duration: milliseconds below one second, minutes from 100 s."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


def format_duration(nanoseconds: float) -> str:
    """An estimated time with a decimal unit and three significant digits: `12.3 ms`."""
    value, units = float(nanoseconds), ["ns", "us", "ms", "s"]
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        units.pop(0)
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {units[0]}"


def share_in(text: str) -> float:
    """`2%`, `2 %` or `0.02` as a share; NaN of other texts."""
    text = text.strip()
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return math.nan


def plural(count: int, noun: str) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{format_count(count)} {noun}{'' if count == 1 else 's'}"


def _scaled(count: int, step: int, prefixes: tuple[str, ...], unit: str) -> str:
    value, at = float(count), 0
    while value >= step and at < len(prefixes) - 1:
        value, at = value / step, at + 1
    if at == 0:
        return f"{count:,} {prefixes[0]}{unit}".rstrip()
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f} {prefixes[at]}{unit}"


class Column(NamedTuple):
    """A heading, and whether its cells are numbers."""

    title: str
    right: bool = False


def headings(titles: str) -> tuple[Column, ...]:
    """Columns by their titles with `|` between them; `>` before a title says that its cells are numbers."""
    told = [title.strip() for title in titles.split("|")]
    return tuple(Column(title.removeprefix(">"), title.startswith(">")) for title in told)


def text_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> str:
    """Cells in columns that are as wide as they need to be, two spaces apart, each on one line."""
    cells = [[c.title for c in columns], *([one_line(str(c)) for c in r] for r in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    return "\n".join(
        "  ".join(
            text.rjust(width) if column.right else text.ljust(width)
            for text, width, column in zip(line, widths, columns, strict=True)
        ).rstrip()
        for line in cells
    )


def printable(text: str) -> str:
    r"""`text` with control characters as Python writes them (`\x1b`); lines and tabs stay."""
    return _UNSAFE.sub(_escaped, text)


def one_line(text: str) -> str:
    r"""`printable`, and newlines and tabs as `\n` and `\t`: a cell of a table, a label."""
    return _BREAKS.sub(_escaped, printable(text))


def printable_json(text: str) -> str:
    r"""A JSON document whose strings hold no control characters: `\u001b` for each."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "surrogatepass").decode("ascii")


def number_in(text: str) -> float:
    """The number that a text is, nan if it is none: Python would also read 1_000."""
    try:
        return math.nan if "_" in text else float(text)
    except ValueError:
        return math.nan
