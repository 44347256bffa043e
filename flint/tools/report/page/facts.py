"""What an estimate is of and rests on: its numbers in short, notes, and constants with sources."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from flint.backends.cost.replay.facts import COLUMNS, attribution_cells
from flint.cluster.constants import numbers
from flint.cluster.models import UNKNOWN_MEMORY_BYTES
from flint.text import format_bytes, format_count, format_duration
from flint.tools.report.page.markup import Heading, Markup, heads, join, table, tag
from flint.tools.report.page.section import Section, share

if TYPE_CHECKING:
    from flint.backends.cost.estimate import Estimate
    from flint.cluster.models import Cluster
    from flint.tools.hints.hint import StepHints


def cards(e: Estimate) -> Markup:
    """The numbers that are looked at first."""
    slowest = max(e.classes, key=lambda c: c.end_ns)
    fullest = max(e.classes, key=lambda c: c.memory.total_bytes)
    memory, ranks = fullest.memory, sum(c.ranks for c in e.classes)
    bound = "a lower bound: some operations have no price" if e.is_lower_bound else ""
    capacity = known_capacity(memory.capacity_bytes)
    held = f"of {format_bytes(capacity)}, {memory.verdict}" if capacity else ""
    unknown = memory.recorded and not memory.peak_bytes
    axes = e.workload.mesh.shape.items()
    does_not = (
        "memory",
        tag("span", memory.verdict, cls="bad"),
        f"{fullest.name}: {format_bytes(memory.total_bytes)} of {format_bytes(memory.capacity_bytes)}",
    )
    shown = (
        *(() if all(c.memory.fits for c in e.classes) else (does_not,)),
        ("step time", format_duration(e.step_time_ns), bound or _sure(e)),
        ("MFU", f"{e.mfu:.1%}", f"of {e.peak_flops_per_s / 1e12:,.0f} TFLOP/s {e.dtype}"),
        ("HFU", f"{e.hfu:.1%}", "all executed products"),
        (
            "exposed communication",
            share(slowest.exposed_ns, slowest.end_ns),
            format_duration(slowest.exposed_ns) if slowest.exposed_ns else "none",
        ),
        (
            "peak memory",
            "not recorded" if unknown else format_bytes(memory.peak_bytes),
            "" if unknown else "as recorded" if memory.recorded else held,
        ),
        ("devices", format_count(ranks), " x ".join(f"{n}={s}" for n, s in axes)),
    )
    return tag("dl", *(summary_card(*card) for card in shown), cls="cards")


def _sure(e: Estimate) -> str:
    interval = e.interval
    if interval is None:
        return ""
    return f"80 %: {format_duration(interval.low_ns)} to {format_duration(interval.high_ns)}"


def known_capacity(capacity_bytes: int) -> int:
    """A chip's memory; 0 where a simulator's file does not say it."""
    return capacity_bytes if capacity_bytes < UNKNOWN_MEMORY_BYTES else 0


def summary_card(name: str, value: str | Markup, small: str) -> Markup:
    """A number of the step with its name, and what is said below it."""
    below = tag("span", small, cls="small") if small else ""
    return tag("div", tag("dt", name), tag("dd", value, below), cls="card")


def measured(e: Estimate) -> Section | None:
    """Spans of recorded ranks, and to what their time belongs; None of what was not recorded."""
    if e.measured is None or not e.measured.classes:
        return None
    headings = [Heading(c.title or "off by", c.right) for c in COLUMNS]
    rows = [attribution_cells(c) for c in e.measured.classes]
    said = tag(
        "p",
        "Where every nanosecond of a recorded rank belongs; docs/measured.md says how this is determined.",
    )
    return Section(
        "measured", "What was measured", join((said, table(headings, rows, "recorded ranks")))
    )


def about(e: Estimate) -> Markup:
    """What was estimated, and how the mesh lies on the networks."""
    count = len(e.classes)
    alike = "All ranks run the same program" if count == 1 else f"{count:,} classes of ranks"
    said = (
        f"Kernels as {e.profile} launches them, communication: {e.policy.name} ({e.policy.summary}). "
        f"{alike}."
    )
    return tag(
        "p", said, *(f" {axis}={size} lies on {network}." for axis, size, network in e.mapping)
    )


def notes(e: Estimate) -> Section:
    """Everything that the estimate and the capture say of themselves."""
    said = [
        *e.workload.warnings,
        *(f"{name} has no price: {n:,} executions count as zero" for name, n in e.unpriced.items()),
        *e.notes,
    ]
    if not said:
        return Section("notes", "Notes", tag("p", "The estimate has no notes."))
    return Section("notes", "Notes", tag("ul", *(tag("li", s) for s in said), cls="notes"))


def hints(found: StepHints | None) -> Section | None:
    """What to change next, with its gain; None where nothing was found."""
    if found is None or not found.hints:
        return None
    said = (
        tag(
            "li",
            tag("b", h.gain_text()),
            f": {h.change}{f' ({h.place})' if h.place else ''}. ",
            tag("code", h.attempt),
            tag("span", f" {h.checked_by}", cls="small"),
        )
        for h in found.hints
    )
    return Section("hints", "What now", tag("ol", *said, cls="notes"))


def constants(cluster: Cluster) -> Section:
    """Every number of the cluster, its kind and where it is from."""
    headings = heads("constant | >value | kind | +source")
    rows = numbers(cluster.model_dump(mode="json", exclude_defaults=True))
    counted = Counter(kind for _, _, kind, _ in rows if kind)
    said = ", ".join(f"{n} {kind}" for kind, n in sorted(counted.items()))
    body = (
        tag("p", f"{cluster.name}: {cluster.title}. {cluster.notes}"),
        table(headings, rows, f"constants of the cluster ({said})"),
    )
    return Section("constants", "Constants and their sources", join(body))
