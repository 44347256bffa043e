"""The parts of a report that a notebook shows by itself, with a style of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from flint.backends.summary.summary import COLLECTIVE_COLUMNS, collective_cells
from flint.text import Column, format_bytes, format_duration, warning_lines
from flint.tools.report.page import facts
from flint.tools.report.page.charts.bars import BarSegment, bar, legend
from flint.tools.report.page.colours import MEMORY
from flint.tools.report.page.document import asset
from flint.tools.report.page.markup import Heading, Markup, folded, join, table, tag
from flint.tools.report.page.section import kind_colours, kind_legend, parts_bar
from flint.tools.report.views.breakdown import by_kind

if TYPE_CHECKING:
    from flint.backends.cost.estimate import Estimate
    from flint.backends.cost.estimate_numbers import ClassEstimate
    from flint.backends.summary.summary import Summary


def fragment(*parts: object) -> str:
    """Parts for a notebook: styled, and without a script."""
    return str(tag("div", tag("style", Markup(asset("parts.css"))), *parts, cls="flint"))


def estimate_fragment(e: Estimate) -> str:
    """Numbers, a bar of the slowest class's time, one of the memory at the peak, and notes."""
    slowest = e.classes[e.slowest_class]
    fullest = max(e.classes, key=lambda c: c.memory.peak_bytes)
    return fragment(
        tag("h3", f"{e.name} on {e.cluster.name}"),
        facts.cards(e),
        _time(slowest),
        _memory(fullest),
        facts.notes(e).body,
    )


def summary_fragment(summary: Summary) -> str:
    """Facts of a summary and of its rank classes, with the communication of each."""
    shared, several = summary.facts(), len(summary.classes) > 1
    parts: list[object] = [list_of_facts(shared)] if several else []
    for c in summary.classes:
        if several:
            parts.append(tag("h4", f"class {c.name}"))
        own = summary.class_facts(c)
        parts.append(list_of_facts(own if several else [*shared, *own]))
        if c.collectives:
            rows = collective_cells(c)
            parts.append(table_of(COLLECTIVE_COLUMNS, rows, "communication of one rank"))
    return fragment(*parts, *(tag("p", w) for w in warning_lines(summary.warnings)))


def _time(c: ClassEstimate) -> Markup:
    """The bar with a legend, and the table for whoever asks."""
    kinds = by_kind(c)
    colours = kind_colours(kinds)
    label = f"time of the step, {format_duration(c.end_ns)}"
    segments = [
        BarSegment(p.name.replace("_", " "), p.exposed_ns, colour)
        for p, colour in zip(kinds, colours, strict=True)
    ]
    numbers = folded("time by kind of work", parts_bar(kinds, c.end_ns, label, colours))
    return join(
        (bar(segments, c.end_ns, label), legend(kind_legend(s.kind for s in c.shares)), numbers)
    )


def _memory(c: ClassEstimate) -> Markup:
    named = [(k.replace("_", " "), MEMORY[k], size) for k, size in c.memory.breakdown.items()]
    label = f"memory at the peak, {format_bytes(c.memory.peak_bytes)}"
    segments = [BarSegment(name, size, colour) for name, colour, size in named]
    shown = [(f"{name} {format_bytes(size)}", colour) for name, colour, size in named]
    return join((bar(segments, c.memory.peak_bytes, label), legend(shown)))


def table_of(columns: Sequence[Column], rows: Iterable[Sequence[object]], caption: str) -> Markup:
    """A table with the columns that text has."""
    return table([Heading(c.title, c.right) for c in columns], rows, caption)


def list_of_facts(facts: Iterable[tuple[str, str]]) -> Markup:
    """Names and what they are."""
    rows = (tag("tr", tag("th", n, scope="row"), tag("td", v, cls="wide")) for n, v in facts)
    return tag("table", tag("tbody", *rows))
