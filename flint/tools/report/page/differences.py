"""Numbers of two sides, and how much one is more than the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from flint.text import format_bytes, format_count, format_flops
from flint.tools.report.page.markup import Heading, Markup, table, tag

if TYPE_CHECKING:
    from flint.backends.cost.estimate import Estimate
    from flint.backends.cost.estimate_numbers import ClassEstimate


class PageSide(NamedTuple):
    """One of the two: its name, and the rank class that is looked at."""

    name: str
    estimate: Estimate
    number: int

    @property
    def rank_class(self) -> ClassEstimate:
        """The class that is looked at."""
        return self.estimate.classes[self.number]


def difference(a: float, b: float, written: Callable[[float], str]) -> str:
    """`+12.3 ms (+4.5%)`; `equal`, `new` or `gone` where a share says nothing."""
    if a == b:
        return "equal"
    sign = "+" if b > a else "\N{MINUS SIGN}"
    if written is in_percent:
        return f"{sign}{100 * abs(b - a):.1f} points"
    amount = f"{sign}{written(abs(b - a))}"
    if not a or not b:
        return f"{amount} ({'new' if not a else 'gone'})"
    return f"{amount} ({sign}{abs(b / a - 1):.1%})"


class Good(Enum):
    """Which change of a number is good."""

    LESS = -1
    NEITHER = 0
    MORE = 1


def changed(a: float, b: float, written: Callable[[float], str], good: Good = Good.LESS) -> Markup:
    """A difference with the color of what it means; the sign says it too."""
    said = difference(a, b, written)
    if a == b or good is Good.NEITHER:
        return tag("span", said, cls="small" if a == b else None)
    return tag("span", said, cls="good" if (b > a) == (good is Good.MORE) else "bad")


class DifferenceRow(NamedTuple):
    """A number of both sides, and how it is written."""

    name: str
    a: float
    b: float
    written: Callable[[float], str]
    good: Good = Good.LESS


def in_bytes(count: float) -> str:
    """Bytes with a unit."""
    return format_bytes(int(count))


def in_percent(value: float) -> str:
    """A share in percent."""
    return f"{value:.1%}"


def in_count(value: float) -> str:
    """How many."""
    return format_count(int(value))


def in_flops(count: float) -> str:
    """FLOPs with a unit."""
    return format_flops(int(count))


def cells(row: DifferenceRow) -> tuple[object, ...]:
    """Name, both numbers, and the difference."""
    change = changed(row.a, row.b, row.written, row.good)
    written = [row.written(value) if value else "-" for value in (row.a, row.b)]
    return row.name, *written, change


def both(caption: str, sides: Sequence[PageSide], rows: Sequence[Sequence[object]]) -> Markup:
    """A table of numbers of both sides."""
    names = (Heading(s.name, right=True) for s in sides)
    return table(
        (Heading("what", wide=True), *names, Heading("difference", right=True)), rows, caption
    )


def joined(sides: Sequence[Mapping[str, float]]) -> list[tuple[str, float, float]]:
    """Names of both sides with their numbers, what differs most first."""
    names = dict.fromkeys(name for side in sides for name in side)
    found = [(n, sides[0].get(n, 0.0), sides[1].get(n, 0.0)) for n in names]
    return sorted(found, key=lambda row: (-abs(row[2] - row[1]), -row[1], row[0]))


def arrow(a: float, b: float, written: Callable[[float], str]) -> str:
    """`12` where both are, else `12 -> 13`."""
    return written(a) if a == b else f"{written(a)} \N{RIGHTWARDS ARROW} {written(b)}"
