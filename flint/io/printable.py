"""Names of others as they may be printed: nothing in them moves a cursor or hides what follows."""

from __future__ import annotations

import re

#: Control characters (C0 but tab and newline, DEL, C1), what reorders text or breaks lines, and
#: halves of surrogate pairs, which no encoding takes.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_BREAKS = re.compile("[\t\n]")


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
