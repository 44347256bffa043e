"""The whole file: head, style, script, and the sections of one estimate."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from flint.backends.cost.memory.over_time import MemoryOverTime, memory_over_time
from flint.text import format_bytes, format_count, format_duration
from flint.tools.report.page import facts, time_sections
from flint.tools.report.page.charts.bars import BarSegment, bar_and_table
from flint.tools.report.page.charts.memory import memory_chart
from flint.tools.report.page.colours import MEMORY
from flint.tools.report.page.facts import known_capacity
from flint.tools.report.page.markup import Markup, folded, heads, join, table, tag, void
from flint.tools.report.page.section import Section, layered, share
from flint.tools.report.views.communication import communication

if TYPE_CHECKING:
    from flint.backends.cost.estimate import Estimate

# The section on memory: the curve over time, and what is there at its highest point.


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
    headings = heads("kind | >bytes")
    return bar_and_table(segments, memory.peak_bytes, headings, "memory at the peak by kind")


def _buffers(memory: MemoryOverTime) -> Markup:
    headings = heads("kind | >bytes | >arrays | >of the peak | +what | +type | source")
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
    if len(e.classes) == 1:
        return join(())
    headings = heads("+rank class | >ranks | >peak | largest kind")
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


def report_html(estimate: Estimate, *, rank_class: int | str | None = None) -> str:
    """The report on an estimate as HTML. Time is of `rank_class` (None: the slowest).

    Raises FlintError FL503 for a class that is not there, and for "all".
    """
    title = f"{estimate.name} on {estimate.cluster.name}"
    sections = _sections(estimate, one_class(estimate, rank_class))
    head = join((facts.cards(estimate), facts.about(estimate)))
    return document(title, head, sections, _RECORDED if estimate.workload.measured_by else _FOOTER)


def one_class(estimate: Estimate, rank_class: int | str | None) -> int:
    """The index of the class that is meant; of "all", the slowest. Raises FlintError FL503."""
    return estimate.chosen_classes(None if rank_class == "all" else rank_class)[0]


def _sections(e: Estimate, number: int) -> list[Section]:
    rows = time_sections.alike(communication(e, number))
    fullest = max(range(len(e.classes)), key=lambda n: e.classes[n].memory.peak_bytes)
    memory = memory_over_time(e, fullest)
    beside = memory if fullest == number else memory_over_time(e, number)
    found = [
        facts.hints(e.hints()),
        facts.notes(e),
        facts.measured(e),
        time_sections.where_the_time_goes(e, number),
        time_sections.timeline_section(e, number, beside),
        time_sections.pipeline(e),
        time_sections.exposed(e, number, rows),
        None if e.workload.measured_by else memory_section(e, memory, e.classes[fullest].end_ns),
        time_sections.kernels(e, number),
        time_sections.collectives(rows),
        time_sections.critical_path(e),
        facts.constants(e.cluster),
    ]
    return [section for section in found if section is not None]


_FOOTER = (
    "Made by flint report from a captured program; nothing was run on hardware. Times and "
    "memory are estimates; Flint's docs/accuracy.md says how far to trust them."
)
_RECORDED = (
    "Made by flint report from a profile. The notes say what the times rest on; Flint's "
    "docs/measured.md says more."
)


def document(title: str, head: Markup, sections: Sequence[Section], footer: str = _FOOTER) -> str:
    """A page with a heading, links to its sections, and these. Nothing is loaded from elsewhere."""
    style, script = f"{asset('parts.css')}{asset('page.css')}", asset("page.js")
    links = (tag("li", tag("a", s.title, href=f"#{s.name}")) for s in sections)
    body = tag(
        "body",
        tag("a", "Skip to the report", cls="skip", href="#report"),
        tag("header", tag("h1", title), tag("nav", tag("ul", *links), aria_label="sections")),
        tag("main", head, *(s.markup() for s in sections), id="report"),
        tag("footer", tag("p", footer)),
        tag("script", Markup(script)),
        cls="flint",
    )
    head_ = tag(
        "head",
        void("meta", name="generator", content="flint"),  # by it `flint.io.outputs` knows its own
        void("meta", charset="utf-8"),
        void("meta", http_equiv="Content-Security-Policy", content=_policy(style, script)),
        void("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{title} - Flint"),
        tag("style", Markup(style)),
    )
    return f"<!DOCTYPE html>\n{tag('html', head_, body, lang='en')}\n"


def _policy(style: str, script: str) -> str:
    """A policy under which a browser runs this script and style, and loads nothing."""
    return f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}"


def _digest(content: str) -> str:
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def asset(name: str) -> str:
    """A file beside this module."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
