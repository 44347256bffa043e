"""Sections on time: where it goes, what is exposed, collectives, the critical path, kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from flint.backends.cost.memory.over_time import MemoryOverTime
from flint.text import format_bytes, format_count, format_duration, format_flops, plural
from flint.tools.report.page.charts.bars import legend, percent
from flint.tools.report.page.charts.picture import picture
from flint.tools.report.page.charts.roofline import drawn_points, roofline_chart
from flint.tools.report.page.charts.timeline import timeline
from flint.tools.report.page.charts.treemap import treemap
from flint.tools.report.page.colours import PHASES, series
from flint.tools.report.page.markup import Markup, folded, heads, join, table, tag
from flint.tools.report.page.section import (
    Section,
    kind_colours,
    kind_legend,
    layered,
    parts_bar,
    share,
)
from flint.tools.report.views.breakdown import (
    ScopeTime,
    by_axes,
    by_kind,
    by_phase,
    by_resource,
    row_times,
    scope_tree,
)
from flint.tools.report.views.communication import CommunicationRow
from flint.tools.report.views.pipeline import Box, PipelineLane, PipelineTimeline, pipeline_schedule
from flint.tools.report.views.roofline import RooflinePoint, RooflineView, roofline
from flint.tools.report.views.slices import SLICE_LIMIT, timeline_slices

if TYPE_CHECKING:
    from flint.backends.cost.estimate import Estimate
    from flint.backends.cost.estimate_numbers import ClassEstimate

# The schedule of a pipeline as a picture: a row for each rank class, a box for each pass.

_ROW = 26
#: Rank classes that are drawn at most, and boxes; with more boxes those of least time are omitted.
LANES, BOXES = 64, 2500
#: Boxes of a smaller share of the step have no number.
_NUMBERED = 0.012


def schedule_chart(found: PipelineTimeline) -> Markup:
    """The picture. Boxes have the numbers of microbatches, and light ones are of later chunks."""
    lanes = found.lanes[:LANES]
    least = _least([b for lane in lanes for b in lane.boxes])
    label = f"What each of {len(lanes)} rank classes computes when, over {format_duration(found.end_ns)}"
    rows = [box for at, lane in enumerate(lanes) for box in _lane(lane, at, found.end_ns, least)]
    drawn = picture(label, _ROW * len(lanes), *rows)
    names = tag("div", *(tag("span", x.name.partition(":")[0]) for x in lanes), cls="names")
    return tag("div", names, drawn, cls="lanes")


def _least(boxes: list[Box]) -> float:
    """How long a box must be to be drawn."""
    if len(boxes) <= BOXES:
        return 0.0
    return sorted((b.end_ns - b.start_ns for b in boxes), reverse=True)[BOXES]


def _lane(lane: PipelineLane, at: int, end_ns: float, least: float) -> list[Markup]:
    track = tag("rect", x="0", y=at * _ROW, width="100%", height=_ROW - 3, cls="track")
    boxes = [_box(b, at, end_ns, lane.name) for b in lane.boxes if b.end_ns - b.start_ns >= least]
    return [track, *boxes]


def _box(box: Box, at: int, end_ns: float, lane: str) -> Markup:
    share = (box.end_ns - box.start_ns) / end_ns if end_ns else 0.0
    what = box.work.replace("_", " ")
    which = f" of microbatch {box.microbatch}" if box.microbatch >= 0 else ""
    chunk = f", chunk {box.chunk}" if box.chunk > 0 else ""
    length = format_duration(box.end_ns - box.start_ns)
    shade = f" chunk-{box.chunk % 2}" if box.chunk > 0 else ""
    number = (
        tag("text", box.microbatch, x="50%", y="16", cls="in-bar middle")
        if box.microbatch >= 0 and share > _NUMBERED
        else ""
    )
    return tag(
        "svg",
        tag("title", f"{lane}: {what}{which}{chunk}, {length}"),
        tag("rect", width="100%", height="100%", cls=f"fill-{PHASES[box.work]} edge{shade}"),
        number,
        x=percent(box.start_ns / end_ns if end_ns else 0.0),
        y=at * _ROW,
        width=percent(share),
        height=_ROW - 3,
    )


#: Rows of tables: kernels, collectives, scopes, segments of the critical path.
KERNELS, COLLECTIVES, SCOPES, PATH = 25, 60, 60, 40
#: Collectives that are shown when asked for too.
MORE = 300


def where_the_time_goes(e: Estimate, number: int) -> Section:
    """By kind of work, phase and scope."""
    c = e.classes[number]
    kinds, phases = by_kind(c), by_phase(c)
    colours = [PHASES.get(p.name, PHASES["other"]) for p in phases]
    tree = scope_tree(e, number)
    idle = sum(row_times(e.timeline.classes[number]).idle_ns.values())
    body = join(
        (
            _whose(e, number),
            tag("h3", "By kind of work"),
            parts_bar(kinds, c.end_ns, "time of the step by kind of work", kind_colours(kinds)),
            tag("h3", "By phase"),
            parts_bar(phases, c.end_ns, "time of the step by phase", colours),
            tag("h3", "By mesh axes"),
            _by_axes(c),
            tag("h3", "By scope in the source"),
            treemap(tree, idle, "Time of the step by source scope; the table has the numbers"),
            folded("Scopes as a table", _scope_table(tree, c.end_ns)),
        )
    )
    return Section("time", "Where the time goes", body)


def _by_axes(c: ClassEstimate) -> Markup:
    parts = by_resource(c)
    own = {"computing": "product", "waiting": "idle"}
    axes = axis_colours(p.name for p in parts if p.name not in own)
    colours = [own.get(p.name) or axes[p.name] for p in parts]
    caption = "time of the step by category: computation, or communication over mesh axes"
    return parts_bar(parts, c.end_ns, caption, colours)


def axis_colours(names: Iterable[str]) -> dict[str, str]:
    """A color for each of some mesh axes, the same wherever the same axes are named."""
    return {name: series(n + 1) for n, name in enumerate(sorted(set(names)))}


def _whose(e: Estimate, number: int) -> Markup:
    if len(e.classes) == 1:
        return join(())
    said = f"Of {e.classes[number].name}, which ends last of {len(e.classes)} rank classes."
    return tag("p", said, cls="small")


def _scope_table(tree: ScopeTime, whole: float) -> Markup:
    rows: list[tuple[object, ...]] = []

    def visit(scope: ScopeTime) -> None:
        for part in scope.parts:
            times = (format_duration(part.busy_ns), format_duration(part.exposed_ns))
            rows.append((part.path, *times, share(part.exposed_ns, whole)))
            visit(part)

    visit(tree)
    headings = heads("+scope | >busy | >of the step | >share")
    left_out = f"; {len(rows) - SCOPES:,} more" if len(rows) > SCOPES else ""
    return table(headings, rows[:SCOPES], f"time by scope, including inner scopes{left_out}")


def timeline_section(e: Estimate, number: int, memory: MemoryOverTime) -> Section:
    """The timeline of a class with its memory."""
    slices = timeline_slices(e, number, limit=SLICE_LIMIT)
    return Section(
        "timeline", "Timeline of a step", timeline("step", slices, memory, e.step_time_ns)
    )


class AlikeCommunication(NamedTuple):
    """Communication that differs in its layer only: the first of it, and what all are together."""

    first: CommunicationRow
    executions: int
    busy_ns: float
    exposed_ns: float


def alike(rows: Sequence[CommunicationRow]) -> list[AlikeCommunication]:
    """Communication of one kind, size, source and phase, most exposed first."""
    found: dict[tuple[object, ...], AlikeCommunication] = {}
    for c in rows:
        key = (c.kind, c.over, c.payload_bytes, layered(c.scope), c.location, c.phase, c.cause)
        before = found.get(key, AlikeCommunication(c, 0, 0.0, 0.0))
        found[key] = AlikeCommunication(
            before.first,
            before.executions + c.count,
            before.busy_ns + c.busy_ns,
            before.exposed_ns + c.exposed_ns,
        )
    return sorted(found.values(), key=lambda a: (-a.exposed_ns, -a.busy_ns, a.first.row))


def exposed(e: Estimate, number: int, rows: Sequence[AlikeCommunication]) -> Section:
    """Communication that nothing hides, by axes and by cause."""
    c, title = e.classes[number], "Exposed communication"
    axes = by_axes(c)
    if not axes:
        return Section("exposed", title, tag("p", "The step communicates nothing."))
    of_axes = axis_colours(p.name for p in axes)
    colours = [of_axes[p.name] for p in axes]
    total, busy = (
        sum(times) for times in zip(*((p.exposed_ns, p.busy_ns) for p in axes), strict=True)
    )
    said = (
        f"For {format_duration(total)} of the step ({share(total, c.end_ns)}) nothing is "
        f"computed because of communication, which runs for {format_duration(busy)} in total."
    )
    body = (
        tag("p", said),
        tag("h3", "By mesh axes"),
        parts_bar(axes, c.end_ns, "exposed communication by mesh axes", colours),
        tag("h3", "By cause"),
        _causes(rows, c.end_ns),
    )
    return Section("exposed", title, join(body))


def _causes(rows: Sequence[AlikeCommunication], whole: float) -> Markup:
    causes = [
        (
            *_collective_cells(a),
            a.first.phase or "-",
            format_duration(a.exposed_ns),
            share(a.exposed_ns, whole),
            a.first.location or "-",
            _cause(a.first),
        )
        for a in rows
        if a.exposed_ns > 0
    ]
    headings = heads("collective | over | phase | >exposed | >of step | source | +cause")
    left_out = f"; {len(causes) - PATH:,} smaller ones are omitted" if len(causes) > PATH else ""
    return table(headings, causes[:PATH], f"exposed communication by cause{left_out}")


def _collective_cells(a: AlikeCommunication) -> tuple[object, ...]:
    return a.first.kind.replace("_", " "), a.first.over


def _cause(c: CommunicationRow) -> Markup:
    """What made the partitioner communicate, and its rule when asked for."""
    cause, _, rule = c.cause.partition(" #sdy")
    where = layered(c.scope)
    parts = [join((tag("b", where), " ")) if where else "", cause]
    if rule:
        parts.append(folded("rule", tag("span", f"#sdy{rule}", cls="small")))
    return join(parts)


def collectives(rows: Sequence[AlikeCommunication]) -> Section:
    """Every collective and message with its source line."""
    headings = heads(
        "collective | over | >ranks | >payload | >count | >bytes | >each | >busy | >exposed"
        " | tier | phase | +scope | source"
    )
    ordered = sorted(rows, key=lambda a: (-a.busy_ns, a.first.row))
    cells = [
        (
            *_collective_cells(a),
            format_count(a.first.group_size) if a.first.group_size else "-",
            format_bytes(a.first.payload_bytes),
            format_count(a.executions),
            format_bytes(a.first.payload_bytes * a.executions),
            format_duration(a.busy_ns / a.executions) if a.busy_ns else "-",
            format_duration(a.busy_ns) if a.busy_ns else "-",
            format_duration(a.exposed_ns) if a.exposed_ns else "-",
            a.first.tier,
            a.first.phase or "-",
            layered(a.first.scope),
            a.first.location or "-",
        )
        for a in ordered
    ]
    if not cells:
        return Section("collectives", "Collectives", tag("p", "There are none."))
    caption = "collectives and messages of one rank in one step, longest first"
    shown = table(headings, cells[:COLLECTIVES], caption)
    rest = cells[COLLECTIVES:MORE]
    left_out = f"; {len(cells) - MORE:,} are omitted" if len(cells) > MORE else ""
    others = f"the others{left_out}"
    more = folded(f"{len(rest):,} more", table(headings, rest, others)) if rest else ""
    return Section("collectives", "Collectives", join((shown, more)))


def critical_path(e: Estimate) -> Section:
    """What the step time is made of."""
    added: dict[tuple[str, str, str, str], list[float]] = {}
    for s in e.critical_path:
        entry = added.setdefault((s.kind, s.over, layered(s.scope), s.location), [0, 0.0])
        entry[0] += s.count
        entry[1] += s.total_ns
    ordered = sorted(added.items(), key=lambda item: (-item[1][1], item[0]))
    rows = [
        (
            kind.replace("_", " "),
            over,
            f"{int(count):,}",
            format_duration(ns),
            share(ns, e.step_time_ns),
            scope,
            location,
        )
        for (kind, over, scope, location), (count, ns) in ordered
    ]
    headings = heads("work | over | >count | >time | >of step | +scope | source")
    rest = sum(ns for _, (_, ns) in ordered[PATH:])
    left_out = f"; {len(ordered) - PATH:,} more take {format_duration(rest)}" if rest else ""
    said = (
        "Each piece of work began when its last dependency ended. To shorten the step, shorten "
        "this chain, which leads from the end of the step back to its start."
    )
    caption = f"segments of the critical path, longest first{left_out}"
    return Section(
        "path", "Critical path", join((tag("p", said), table(headings, rows[:PATH], caption)))
    )


def kernels(e: Estimate, number: int) -> Section:
    """The roofline plot and the kernels of most time."""
    found = roofline(e, number)
    drawn = drawn_points(found)
    whole = sum(p.total_ns for p in found.points)
    silent = [p for p in found.points if not p.flops]
    missing = (
        f" {plural(len(silent), 'kind')} of kernels that only move bytes, {_of(silent, whole)}, "
        "cannot be placed in it."
        if silent
        else ""
    )
    rest = len(found.points) - len(drawn) - len(silent)
    missing += f" {rest:,} others with the least time are omitted." if rest > 0 else ""
    said = (
        "Each point is one kind of kernel; a larger point takes more time. Flops and bytes are "
        f"those that the estimate prices; points above the memory slope are in caches.{missing}"
    )
    body = join(
        (
            tag("p", said),
            roofline_chart(found) if drawn else "",
            legend(kind_legend(p.kind for p in drawn)),
            _kernel_table(found, whole),
        )
    )
    return Section("kernels", "Kernels under the chip's rooflines", body)


def _of(points: Sequence[RooflinePoint], whole: float) -> str:
    return f"{share(sum(p.total_ns for p in points), whole)} of the time"


def _kernel_table(found: RooflineView, whole: float) -> Markup:
    headings = heads(
        "kernel | type | >count | >time | >of kernels | >flops each | >bytes each | >reaches | +scope | source"
    )
    rows = [
        (
            p.kind.replace("_", " "),
            p.dtype,
            format_count(p.count),
            format_duration(p.total_ns),
            share(p.total_ns, whole),
            format_flops(p.flops),
            format_bytes(p.moved_bytes),
            f"{p.flops_per_s / 1e12:,.1f} TFLOP/s, {p.bytes_per_s / 1e12:.2f} TB/s",
            layered(p.scope),
            p.location,
        )
        for p in found.points[:KERNELS]
    ]
    left_out = len(found.points) - len(rows)
    return table(
        headings, rows, f"kernels with the most time{f'; {left_out:,} more' if left_out else ''}"
    )


def pipeline(e: Estimate) -> Section | None:
    """What the classes of a pipeline run when; None if there is none."""
    found = pipeline_schedule(e)
    if found is None:
        return None
    works = sorted({b.work for lane in found.lanes for b in lane.boxes}, key=list(PHASES).index)
    entries = [(w.replace("_", " "), PHASES[w]) for w in works]
    body = (_schedule_text(found), schedule_chart(found), legend(entries), _lane_table(found))
    return Section("pipeline", "Pipeline schedule", join(body))


def _schedule_text(found: PipelineTimeline) -> Markup:
    what = (
        f"Schedule {found.schedule} with {found.microbatches:,} microbatches, as it runs: "
        "numbers are microbatches, boxes of another shade are later chunks."
        if found.schedule
        else "Passes of the rank classes as they run."
    )
    boxes = sum(len(lane.boxes) for lane in found.lanes[:LANES])
    cut = (
        f" {len(found.lanes) - LANES:,} more classes are not drawn."
        if len(found.lanes) > LANES
        else ""
    )
    cut += f" The {boxes - BOXES:,} shortest boxes are not drawn." if boxes > BOXES else ""
    return tag("p", what + cut)


def _lane_table(found: PipelineTimeline) -> Markup:
    headings = heads("+rank class | >ranks | >computes nothing | >of step")
    rows = [
        (x.name, format_count(x.ranks), format_duration(x.idle_ns), share(x.idle_ns, found.end_ns))
        for x in found.lanes
    ]
    return folded("Idle time by rank class", table(headings, rows, "time without computation"))
