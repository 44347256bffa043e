"""`--sweep NAME=VALUES`: what is explored beside what the entry declares.

remat=none,full   microbatches=4..64   seq=2048..8192:2048   cluster.ib.bandwidth=50..400GB/s
cut="layers:20,60",layers   optimizer="",sharded
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal

from flint.errors import FlintError

#: More values of one name than this are a typing error.
MOST_VALUES = 10_000
_NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,2})?"
_UNIT = r"[A-Za-z]*(?:/[A-Za-z]+)?"
_RANGE = re.compile(
    rf"(?P<first>{_NUMBER})(?P<first_unit>{_UNIT})\.\.(?P<last>{_NUMBER})(?P<last_unit>{_UNIT})"
    rf"(?::(?P<step>{_NUMBER})(?P<step_unit>{_UNIT}))?"
)
_HELP = "write a,b,c, or a range: 4..64 doubles, 4..64:4 goes in steps of 4"


def parse_sweeps(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Values by name. One text holds one or several `NAME=VALUES`, separated by blanks.

    Raises FlintError FL860 for what is not `NAME=VALUES`, values that cannot be read, and a name
    that is there twice.
    """
    found: dict[str, tuple[str, ...]] = {}
    for part in (part for text in texts for part in _parts(text)):
        name, equals, values = part.partition("=")
        name = name.strip()
        if not equals or not name:
            raise FlintError(
                "FL860",
                f"--sweep {part} is not NAME=VALUES",
                help='write --sweep remat=none,full; spaces only in quotes: name="a b"',
            )
        if name in found:
            raise FlintError("FL860", f"--sweep {name} is given twice")
        found[name] = parse_values(values, f"--sweep {name}")
    return found


def parse_values(text: str, name: str) -> tuple[str, ...]:
    """The values that a text lists: what is between commas, ranges written out, quotes taken off.

    `4..64` doubles from its first number and has its last one, `4..64:4` goes in steps. A unit
    stands at the end of a range or at all of its numbers; each value gets it. What is in quotes is
    text, whatever is in it. `name` is what messages call it.

    Raises FlintError FL860 for no values, one that is there twice, and a range that cannot be.
    """
    found: list[str] = []
    for item in _split(text, ",", name):
        if (value := _unquoted(item)) is not None:
            found.append(value)
        elif not item.strip():
            said = "there is no value" if not text.strip() else f"'{text}' has an empty value"
            raise FlintError("FL860", f"{name}: {said}", help=f'{_HELP}; an empty text is ""')
        else:
            found += _range(item.strip(), name)
    again = next((v for v in found if found.count(v) > 1), None) if len(found) < 1000 else None
    if again is not None or len(set(found)) < len(found):
        raise FlintError("FL860", f"{name}: the value '{again or text}' appears twice")
    return tuple(found)


def _range(text: str, name: str) -> list[str]:
    """The numbers of a range with their unit, or `text` itself, which is none."""
    found = _RANGE.fullmatch(text)
    if found is None:
        return [text]
    units = {u for u in (found["first_unit"], found["last_unit"], found["step_unit"]) if u}
    first, last = Decimal(found["first"]), Decimal(found["last"])
    step = None if found["step"] is None else Decimal(found["step"])
    if len(units) > 1:
        raise _bad(text, name, f"has the units {' and '.join(sorted(units))}", "use one unit")
    if last < first:
        raise _bad(text, name, "begins above its end", f"write {found['last']}..{found['first']}")
    if step is not None and step <= 0:
        raise _bad(text, name, "has a step that is not above 0", _HELP)
    if step is None and first <= 0:
        raise _bad(text, name, f"cannot double from {found['first']}", f"give a step: {text}:1")
    values: list[Decimal] = []
    for value in _stepped(first, last, step) if step is not None else _doubled(first, last):
        values.append(value)
        if len(values) > MOST_VALUES:
            raise _bad(text, name, f"has more than {MOST_VALUES:,} values", "give a larger step")
    unit = next(iter(units), "")
    return [f"{_plain(v)}{unit}" for v in values]


def _doubled(first: Decimal, last: Decimal) -> Iterator[Decimal]:
    value = first
    while value < last:
        yield value
        value *= 2
    yield last


def _stepped(first: Decimal, last: Decimal, step: Decimal) -> Iterator[Decimal]:
    value = first
    while value <= last:
        yield value
        value += step


def _plain(value: Decimal) -> str:
    """`400`, `0.5`: no exponent, no zeros at the end."""
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _bad(text: str, name: str, said: str, help_: str) -> FlintError:
    return FlintError("FL860", f"{name}: the range {text} {said}", help=help_)


def _parts(text: str) -> Iterator[str]:
    """What is between blanks; those beside a comma or an equals sign separate nothing."""
    joined = "".join(_tightened(text))
    return (part for part in _split(joined, " ", f"--sweep {text}") if part)


def _tightened(text: str) -> Iterator[str]:
    """`text` with blanks as spaces, none beside commas and equals signs, quoted parts as they are."""
    for i, piece in enumerate(re.split(r"""("[^"]*"|'[^']*')""", text)):
        yield piece if i % 2 else re.sub(r"\s*([,=])\s*", r"\1", re.sub(r"\s+", " ", piece))


def _split(text: str, separator: str, name: str) -> list[str]:
    """`text` between separators that are not in quotes."""
    found, start, quote = [], 0, ""
    for i, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter == separator:
            found.append(text[start:i])
            start = i + 1
    if quote:
        raise FlintError("FL860", f"{name}: a quote {quote} is not closed")
    return [*found, text[start:]]


def _unquoted(text: str) -> str | None:
    text = text.strip()
    if len(text) >= 2 and text[0] in "\"'" and text[-1] == text[0]:
        return text[1:-1]
    return None
