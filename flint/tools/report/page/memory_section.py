"""The section on memory: the curve over time, and what is there at its highest point."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flint.backends.cost.memory.over_time import MemoryOverTime
from flint.text import format_bytes, format_count, format_duration
from flint.tools.report.page.charts.bars import BarSegment, bar_and_table
from flint.tools.report.page.charts.memory import memory_chart
from flint.tools.report.page.colours import MEMORY
from flint.tools.report.page.facts import known_capacity
from flint.tools.report.page.markup import Heading, Markup, folded, join, table, tag
from flint.tools.report.page.section import Section, layered, share

if TYPE_CHECKING:
    from flint.backends.cost.estimate import Estimate


def memory_section(e: Estimate, memory: MemoryOverTime, end_ns: float) -> Section:
    """Memory of the class that needs most of it."""
    body = join(
        (
            _said(memory, "Each device" if len(e.classes) == 1 else memory.name),
            memory_chart(memory, end_ns),
            tag("h3", "At the peak, by purpose"),
            breakdown_bar(memory),
            tag("h3", "Largest arrays at the peak"),
            _buffers(memory),
            _classes(e),
        )
    )
    return Section("memory", "Memory over time", body)


def _said(memory: MemoryOverTime, who: str) -> Markup:
    capacity = known_capacity(memory.capacity_bytes)
    of = f" of {format_bytes(capacity)}" if capacity else ""
    verdict = f", it {memory.verdict}" if capacity else ""
    beside = (
        f" and {format_bytes(memory.runtime_bytes)} of the runtime" if memory.runtime_bytes else ""
    )
    return tag(
        "p",
        f"{who}: at most {format_bytes(memory.peak_bytes)}{beside}{of}{verdict}, first at "
        f"{format_duration(memory.peak_ns)}.",
    )


def breakdown_bar(memory: MemoryOverTime) -> Markup:
    """What the memory at the peak is for."""
    segments = [
        BarSegment(kind.replace("_", " "), size, MEMORY[kind], (format_bytes(size),))
        for kind, size in memory.breakdown.items()
    ]
    headings = (Heading("kind"), Heading("bytes", right=True))
    return bar_and_table(segments, memory.peak_bytes, headings, "memory at the peak by kind")


def _buffers(memory: MemoryOverTime) -> Markup:
    headings = (
        Heading("kind"),
        Heading("bytes", right=True),
        Heading("arrays", right=True),
        Heading("of the peak", right=True),
        Heading("what", wide=True),
        Heading("type", wide=True),
        Heading("source"),
    )
    rows = [
        (
            b.kind.replace("_", " "),
            format_bytes(b.num_bytes * b.count),
            format_count(b.count),
            share(b.num_bytes * b.count, memory.peak_bytes),
            b.name or f"{b.opcode} {layered(b.scope)}",
            b.type,
            b.location or "-",
        )
        for b in memory.buffers
    ]
    caption = "largest arrays"
    if memory.buffers_left_out:
        rest = format_bytes(memory.left_out_bytes)
        caption += f"; {memory.buffers_left_out:,} others hold {rest}"
    return table(headings, rows, caption)


def _classes(e: Estimate) -> Markup:
    """Peaks of all classes, if there are several."""
    if len(e.classes) == 1:
        return join(())
    headings = (
        Heading("rank class", wide=True),
        Heading("ranks", right=True),
        Heading("peak", right=True),
        Heading("largest kind"),
    )
    rows = [
        (
            c.name,
            format_count(c.ranks),
            format_bytes(c.memory.peak_bytes),
            next(iter(c.memory.breakdown), "-").replace("_", " "),
        )
        for c in e.classes
    ]
    return folded("Peaks of all rank classes", table(headings, rows, "peak by rank class"))
