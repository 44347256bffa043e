"""Two estimates side by side: totals, shares, memory and collectives, with what differs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from flint.backends.cost.memory.over_time import MemoryOverTime, memory_over_time
from flint.text import format_bytes, format_count, format_duration, format_flops
from flint.tools.change.diff import difference as diff
from flint.tools.change.diff.show import cause_text, delta_text, source, verdict
from flint.tools.report.page import facts
from flint.tools.report.page.charts.bars import BarSegment, bar, sample
from flint.tools.report.page.charts.memory import memory_chart
from flint.tools.report.page.charts.timeline import timeline
from flint.tools.report.page.colours import MEMORY, PHASES
from flint.tools.report.page.document import document, one_class, report_html
from flint.tools.report.page.markup import Heading, Markup, folded, heads, join, table, tag
from flint.tools.report.page.section import Section, kind_colours, layered
from flint.tools.report.page.time_sections import AlikeCommunication, alike, axis_colours, pipeline
from flint.tools.report.views.breakdown import TimePart, by_axes, by_kind, by_phase
from flint.tools.report.views.communication import communication
from flint.tools.report.views.slices import SLICE_LIMIT, Slices, timeline_slices

if TYPE_CHECKING:
    from flint.backends.cost.estimate import Estimate
    from flint.backends.cost.estimate_numbers import ClassEstimate
    from flint.tools.change.diff.difference import Difference

# Numbers of two sides, and how much one is more than the other.


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


#: Rows of tables of what differs, and those that are shown unasked.
ROWS, FIRST = 120, 15


def page_html(
    estimate: Estimate,
    *,
    against: Estimate | None = None,
    names: tuple[str, str] | None = None,
    rank_class: int | str | None = None,
) -> str:
    """The page of `Estimate.to_html`: on one estimate, or on it beside another one."""
    if against is None:
        return report_html(estimate, rank_class=rank_class)
    found = diff.compare(*(diff.Side.of(e.workload, e) for e in (estimate, against)))
    return comparison_html(
        estimate, against, names or ("A", "B"), rank_class=rank_class, difference=found
    )


def comparison_html(
    first: Estimate,
    second: Estimate,
    names: tuple[str, str] = ("A", "B"),
    *,
    rank_class: int | str | None = None,
    difference: Difference | None = None,
) -> str:
    """Two estimates as one page. Causes and changes of their `difference` stand above all else.

    Raises FlintError FL503 as `report_html` does.
    """
    labels = [f"{a}: {name}" if name != a else name for a, name in zip("AB", names, strict=True)]
    sides = [
        PageSide(label, e, one_class(e, rank_class))
        for label, e in zip(labels, (first, second), strict=True)
    ]
    on = dict.fromkeys(e.cluster.name for e in (first, second))
    title = f"{names[0]} and {names[1]} on {' and '.join(on)}"
    sections = [
        *([_causes(difference)] if difference is not None and not difference.is_equal else []),
        _totals(sides),
        _time(sides),
        _timelines(sides),
        *_pipelines(sides),
        _memory(sides),
        _collectives(sides),
        *_foundations(sides),
    ]
    return document(title, _verdict(sides, difference), sections)


def _causes(difference: Difference) -> Section:
    """Why they differ, and the kernels that do."""
    causes = tag(
        "ul", *(tag("li", cause_text(difference, c)) for c in difference.causes), cls="notes"
    )
    headings = heads("what | over | phase | >difference | +change | +scope | +source")
    rows = [
        (
            f"{c.kernels:,} x {c.kind}" if c.kernels > 1 else c.kind,
            c.over,
            c.phase,
            delta_text(difference, c),
            c.said if c.action == "changed" else f"{c.action}: {c.said}",
            layered(c.scope),
            source(c),
        )
        for c in difference.changes
    ]
    first = table(headings, rows[:FIRST], "kernels and collectives that differ, largest first")
    more = rows[FIRST:ROWS]
    left_out = f"; {len(rows) - ROWS:,} are omitted" if len(rows) > ROWS else ""
    others = folded(f"{len(more)} smaller ones", table(headings, more, f"smaller ones{left_out}"))
    changes = join((first, others if more else "")) if rows else ""
    return Section("causes", "Causes", join((tag("div", causes, cls="causes"), changes)))


def _verdict(sides: Sequence[PageSide], found: Difference | None) -> Markup:
    a, b = (s.estimate for s in sides)
    if a.to_json() == b.to_json():
        said = f" ({verdict(found)})" if found is not None else ""
        return tag("p", f"The two estimates are equal.{said}")
    time = difference(a.step_time_ns, b.step_time_ns, format_duration)
    memory = difference(_peak(a), _peak(b), in_bytes)
    return tag("p", f"From A to B: step time {time}, peak memory {memory}.")


def _peak(e: Estimate) -> int:
    return max(c.memory.peak_bytes for c in e.classes)


def _total_rows(
    a: Estimate, b: Estimate, classes: Sequence[ClassEstimate]
) -> Iterable[DifferenceRow]:
    x, y = classes
    yield DifferenceRow("step time", a.step_time_ns, b.step_time_ns, format_duration)
    yield DifferenceRow("computing", x.compute_ns, y.compute_ns, format_duration)
    yield DifferenceRow("exposed communication", x.exposed_ns, y.exposed_ns, format_duration)
    idle = [max(0.0, round(c.end_ns - c.compute_ns - c.exposed_ns, 3)) for c in classes]
    if max(idle) >= 1:
        yield DifferenceRow("waiting", idle[0], idle[1], format_duration)
    yield DifferenceRow("MFU", a.mfu, b.mfu, in_percent, Good.MORE)
    yield DifferenceRow("HFU", a.hfu, b.hfu, in_percent, Good.MORE)
    yield DifferenceRow("model FLOPs", a.model_flops, b.model_flops, in_flops, Good.NEITHER)
    yield DifferenceRow("peak memory", _peak(a), _peak(b), in_bytes)
    ranks = [sum(c.ranks for c in e.classes) for e in (a, b)]
    yield DifferenceRow("devices", ranks[0], ranks[1], in_count, Good.NEITHER)


def _totals(sides: Sequence[PageSide]) -> Section:
    a, b = (s.estimate for s in sides)
    rows = _total_rows(a, b, [s.rank_class for s in sides])
    about = [
        (
            s.name,
            s.estimate.name,
            s.estimate.cluster.name,
            s.estimate.profile,
            s.estimate.policy.name,
            _placed(s.estimate),
        )
        for s in sides
    ]
    headings = heads("side | program | cluster | kernels | communication | +mesh")
    body = join(
        (
            both("totals", sides, [cells(row) for row in rows]),
            table(headings, about, "what is compared"),
        )
    )
    return Section("totals", "Totals", body)


def _placed(e: Estimate) -> str:
    return (
        ", ".join(f"{axis}={size} on {network}" for axis, size, network in e.mapping)
        or "one device"
    )


def _time(sides: Sequence[PageSide]) -> Section:
    kinds = [by_kind(s.rank_class) for s in sides]
    phases = [by_phase(s.rank_class) for s in sides]
    axes = [by_axes(s.rank_class) for s in sides]
    whole = max(s.rank_class.end_ns for s in sides)
    of_axes = axis_colours(p.name for parts in axes for p in parts)
    body = (
        tag("h3", "By kind of work"),
        _bars(sides, kinds, whole, [kind_colours(k) for k in kinds]),
        _parts("time of the step by kind of work", sides, kinds),
        tag("h3", "By phase"),
        _bars(
            sides, phases, whole, [[PHASES.get(p.name, PHASES["other"]) for p in k] for k in phases]
        ),
        _parts("time of the step by phase", sides, phases),
        tag("h3", "Exposed communication by mesh axes"),
        _bars(sides, axes, whole, [[of_axes[p.name] for p in k] for k in axes]),
        _parts("exposed communication by mesh axes", sides, axes),
    )
    return Section("time", "Where the time goes", join(body))


def _bars(
    sides: Sequence[PageSide],
    parts: Sequence[Sequence[TimePart]],
    whole: float,
    colours: Sequence[Sequence[str]],
) -> Markup:
    """A bar for each side, on one scale."""
    drawn = []
    for side, found, chosen in zip(sides, parts, colours, strict=True):
        segments = [
            BarSegment(p.name.replace("_", " "), p.exposed_ns, c)
            for p, c in zip(found, chosen, strict=True)
        ]
        label = f"{side.name}: {format_duration(sum(s.value for s in segments))}"
        drawn += [tag("p", label, cls="small"), bar(segments, whole, label)]
    return join(drawn)


def _parts(caption: str, sides: Sequence[PageSide], parts: Sequence[Sequence[TimePart]]) -> Markup:
    times = [{p.name: p.exposed_ns for p in found} for found in parts]
    rows = [
        cells(DifferenceRow(name.replace("_", " "), a, b, format_duration))
        for name, a, b in joined(times)
    ]
    return both(caption, sides, rows)


def _timelines(sides: Sequence[PageSide]) -> Section:
    shown: list[Markup] = []
    for letter, side in zip("ab", sides, strict=True):
        e = side.estimate
        slices: Slices = timeline_slices(e, side.number, limit=SLICE_LIMIT // 2)
        memory = memory_over_time(e, side.number)
        chart = timeline(f"step-{letter}", slices, memory, e.step_time_ns)
        shown += [tag("h3", f"{side.name}: {format_duration(e.step_time_ns)}"), chart]
    return Section("timeline", "Timelines", join(shown))


def _pipelines(sides: Sequence[PageSide]) -> list[Section]:
    found = [(s.name, pipeline(s.estimate)) for s in sides]
    shown = [join((tag("h3", name), section.body)) for name, section in found if section]
    return [Section("pipeline", "Pipeline schedules", join(shown))] if shown else []


def _memory(sides: Sequence[PageSide]) -> Section:
    found: list[MemoryOverTime] = []
    charts: list[Markup] = []
    for side in sides:
        e = side.estimate
        fullest = max(range(len(e.classes)), key=lambda n: e.classes[n].memory.peak_bytes)
        memory = memory_over_time(e, fullest)
        found.append(memory)
        charts.append(
            tag("div", tag("h3", side.name), memory_chart(memory, e.classes[fullest].end_ns))
        )
    kinds = joined([dict(m.breakdown) for m in found])
    rows = [
        (
            join((sample(MEMORY[n]), " ", n.replace("_", " "))),
            *cells(DifferenceRow("", a, b, in_bytes))[1:],
        )
        for n, a, b in kinds
    ]
    body = (tag("div", *charts, cls="pair"), both("memory at the peak by kind", sides, rows))
    return Section("memory", "Memory", join(body))


def _collectives(sides: Sequence[PageSide]) -> Section:
    """Collectives that are alike on both sides in one row."""
    found: list[dict[tuple[str, ...], list[AlikeCommunication]]] = []
    for side in sides:
        by: dict[tuple[str, ...], list[AlikeCommunication]] = {}
        for a in alike(communication(side.estimate, side.number)):
            by.setdefault(_same(a), []).append(a)
        found.append(by)
    keys = dict.fromkeys(key for side in found for key in side)
    rows = sorted(
        (_collective(key, *(side.get(key, []) for side in found)) for key in keys),
        key=lambda r: r[0],
    )
    differs = [row for (rank, _), row in rows if rank]
    same = len(rows) - len(differs)
    headings = heads("collective | over | phase | +scope | >count | >bytes | >exposed | source")
    if not differs:
        return Section("collectives", "Collectives", tag("p", f"All {same:,} kinds are equal."))
    left_out = f"; {len(differs) - ROWS:,} more" if len(differs) > ROWS else ""
    caption = (
        f"collectives that differ, A \N{RIGHTWARDS ARROW} B{left_out}; {same:,} kinds are equal"
    )
    return Section("collectives", "Collectives", table(headings, differs[:ROWS], caption))


def _same(a: AlikeCommunication) -> tuple[str, ...]:
    """What makes collectives of two programs one: lines of the source may have moved."""
    return a.first.kind, a.first.over, a.first.phase, layered(a.first.scope)


def _collective(
    key: tuple[str, ...], a: Sequence[AlikeCommunication], b: Sequence[AlikeCommunication]
) -> tuple[tuple[float, tuple[str, ...]], tuple[object, ...]]:
    """What rows are sorted by (0 for what is equal), and their cells."""
    counts = [sum(x.executions for x in side) for side in (a, b)]
    moved = [sum(x.executions * x.first.payload_bytes for x in side) for side in (a, b)]
    seen = [sum(x.exposed_ns for x in side) for side in (a, b)]
    busy = [sum(x.busy_ns for x in side) for side in (a, b)]
    longer, more_seen = abs(busy[1] - busy[0]), abs(seen[1] - seen[0])
    equal = counts[0] == counts[1] and moved[0] == moved[1] and longer < 1 and more_seen < 1
    rank = 0.0 if equal else -(1e3 * more_seen + longer + 1)
    lines = [sorted({x.first.location for x in side if x.first.location}) for side in (a, b)]
    kind, over, phase, scope = key
    row = (
        kind.replace("_", " "),
        over,
        phase or "-",
        scope,
        arrow(counts[0], counts[1], in_count),
        arrow(moved[0], moved[1], in_bytes),
        changed(seen[0], seen[1], format_duration),
        ", ".join(dict.fromkeys((*lines[0][:2], *lines[1][:2]))) or "-",
    )
    return (rank, key), row


def _foundations(sides: Sequence[PageSide]) -> list[Section]:
    """Notes of both, and constants: of one cluster once."""
    a, b = (s.estimate for s in sides)
    notes = [join((tag("h3", s.name), facts.notes(s.estimate).body)) for s in sides]
    constants = [facts.constants(a.cluster).body]
    if a.cluster != b.cluster:
        constants.append(facts.constants(b.cluster).body)
    return [
        Section("notes", "Notes", join(notes)),
        Section("constants", "Constants and their sources", join(constants)),
    ]
