"""Parts of a page with headings, and tables that several of them have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from flint.text import format_count, format_duration, short_scope
from flint.tools.report.page.charts.bars import BarSegment, bar_and_table
from flint.tools.report.page.colours import TITLES, families, family, series
from flint.tools.report.page.markup import Heading, Markup, heads, tag
from flint.tools.report.views.breakdown import TimePart, of_all_layers

NAME = Heading("what")
TIMES = heads(">of the step | >busy | >count")


class Section(NamedTuple):
    """A part of a page: the name that links have, its heading, and what is in it."""

    name: str
    title: str
    body: Markup

    def markup(self) -> Markup:
        """The section as HTML."""
        heading = tag("h2", self.title, id=self.name)
        return tag("section", heading, self.body, aria_labelledby=self.name)


def layered(scope: str) -> str:
    """A scope that is short, and the same for layers that differ in their number only."""
    return of_all_layers(short_scope(scope))


def share(value: float, whole: float) -> str:
    """`12.3%`, or `-` of nothing."""
    return f"{value / whole:.1%}" if whole else "-"


def time_cells(part: TimePart) -> tuple[str, ...]:
    """Exposed and busy time of a part, and its count."""
    return (
        format_duration(part.exposed_ns) if part.exposed_ns else "-",
        format_duration(part.busy_ns) if part.busy_ns else "-",
        format_count(part.count) if part.count else "-",
    )


def parts_bar(
    parts: Sequence[TimePart], whole: float, caption: str, colours: Sequence[str] | None = None
) -> Markup:
    """Parts of a time as a bar and a table; without `colours` each has one of its own."""
    chosen = colours or [series(n) for n in range(len(parts))]
    segments = [
        BarSegment(p.name.replace("_", " "), p.exposed_ns, colour, time_cells(p))
        for p, colour in zip(parts, chosen, strict=True)
    ]
    return bar_and_table(segments, whole, (NAME, *TIMES), caption)


def kind_colours(parts: Sequence[TimePart]) -> list[str]:
    """The color of the family of each part, which is named by its kind and axes."""
    return [family(p.name.partition(" over ")[0]) for p in parts]


def kind_legend(kinds: Iterable[str]) -> list[tuple[str, str]]:
    """The families of kinds, with their titles."""
    return [(TITLES[f], f) for f in families(kinds)]
