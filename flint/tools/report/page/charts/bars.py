"""A bar in parts, and a table of the parts with a sample of each color."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flint.tools.report.page.charts.picture import picture
from flint.tools.report.page.markup import Heading, Markup, join, table, tag

#: Width in pixels that labels are cut for: that of a page on a large screen.
WIDTH = 1080.0
#: Width of a letter, and of the room around a label.
_LETTER, _ROOM = 6.6, 10.0
#: Height of a bar in pixels.
_HEIGHT = 34


class BarSegment(NamedTuple):
    """A part: its name, its size, the name of its color, and cells of its row of the table."""

    name: str
    value: float
    colour: str
    cells: tuple[object, ...] = ()


def bar(segments: Sequence[BarSegment], whole: float, label: str) -> Markup:
    """A horizontal bar of parts in their order, as wide as the page. `whole` is its full length."""
    drawn: list[Markup] = []
    at = 0.0
    for s in segments:
        share = s.value / whole if whole else 0.0
        if share > 0:
            drawn.append(_part(s, at, share))
        at += share
    return picture(label, _HEIGHT, *drawn, cls="bar")


def _part(segment: BarSegment, at: float, share: float) -> Markup:
    hover = tag("title", f"{segment.name}: {share:.1%}")
    box = tag("rect", width="100%", height="100%", cls=f"fill-{segment.colour} edge")
    name = fitting(segment.name, share * WIDTH)
    label = tag("text", name, x="6", y="21", cls="in-bar") if name else ""
    return tag("svg", hover, box, label, x=percent(at), width=percent(share), height=_HEIGHT)


def fitting(name: str, width: float) -> str:
    """As much of a name as fits into a box, "" if that would say nothing."""
    letters = int((width - _ROOM) / _LETTER)
    if len(name) <= letters:
        return name
    return f"{name[: letters - 1]}\N{HORIZONTAL ELLIPSIS}" if letters >= 5 else ""


def percent(share: float) -> str:
    """A share as SVG takes it: `12.34%`."""
    return f"{100 * share:.2f}".rstrip("0").rstrip(".") + "%"


def sample(colour: str) -> Markup:
    """A square of a color, for legends. Names stand beside it."""
    box = tag("rect", width="12", height="12", rx="2", cls=f"fill-{colour} edge")
    return tag("svg", box, cls="sample", width="12", height="12", aria_hidden="true")


def named(segment: BarSegment) -> Markup:
    """The name of a part after its color."""
    return join((sample(segment.colour), " ", segment.name))


def bar_and_table(
    segments: Sequence[BarSegment], whole: float, headings: Sequence[Heading], caption: str
) -> Markup:
    """The bar, and under it a table of its parts, which says all that the bar shows."""
    rows = [(named(s), f"{s.value / whole:.1%}" if whole else "-", *s.cells) for s in segments]
    columns = (headings[0], Heading("share", right=True), *headings[1:])
    return join((bar(segments, whole, caption), table(columns, rows, caption)))


def legend(entries: Sequence[tuple[str, str]]) -> Markup:
    """Names with the colors that they have in a chart: (name, color)."""
    items = (tag("li", sample(colour), " ", name) for name, colour in entries)
    return tag("ul", *items, cls="legend")
