"""The page of a study: what was found first, then pictures of all points, then tables."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from flint.text import format_bytes, format_count, format_duration
from flint.tools.explore.answers.objectives import Objective, QuantityUnit
from flint.tools.explore.answers.rank import Ranking
from flint.tools.explore.page import sections
from flint.tools.explore.page.sections import MEMORY, MFU, TIME, Chosen, named, number
from flint.tools.explore.point import choices, varying
from flint.tools.explore.result import Result, Status
from flint.tools.report.page.charts.bars import BarSegment, legend, percent
from flint.tools.report.page.charts.picture import picture, round_steps
from flint.tools.report.page.colours import series
from flint.tools.report.page.document import document
from flint.tools.report.page.facts import hints as hints_section
from flint.tools.report.page.facts import summary_card
from flint.tools.report.page.markup import Heading, Markup, heads, join, table, tag
from flint.tools.report.page.section import Section

if TYPE_CHECKING:
    from flint.tools.hints.hint import StepHints

# Tables of a study: the best points, and why others were rejected.

#: Rows of each table.
ROWS = 100


def best(ranking: Ranking, chosen: Mapping[str, Sequence[str]]) -> Section | None:
    """The first points, with what they chose and what came of it; those of a front come first."""
    ranked = ranking.results
    if not ranked:
        return None
    measures = list({m.name: m for m in (*ranking.objectives, TIME, MFU, MEMORY)}.values())
    headings = [
        *heads("> | >devices"),
        *(Heading(name) for name in chosen),
        *(Heading(m.title, right=True) for m in measures),
    ]
    rows = []
    for n, r in enumerate(ranked[:ROWS], 1):
        mine = choices(r.point)
        picked = (mine.get(name, "") or "-" for name in chosen)
        rows.append((f"{n}", format_count(r.devices), *picked, *(m.text(r) for m in measures)))
    first_of = f"best {ranking.objectives[0].title}" if ranking.on_front < 2 else "the front"
    count = f"{len(rows)} of {format_count(len(ranked))}"
    caption = f"points that fit, {first_of} first: {count}"
    first = ranked[0]
    notes = [tag("li", note) for note in first.notes]
    said = (tag("h3", "Notes on the first"), tag("ul", *notes, cls="notes")) if notes else ()
    return Section("best", "The best points", join((table(headings, rows, caption), *said)))


def rejected(ranking: Ranking, chosen: Mapping[str, Sequence[str]]) -> Section | None:
    """Points that are not ranked, counted by why, with one of each."""
    groups: dict[tuple[str, str, str], list[Result]] = {}
    for r in ranking.rejected:
        why = ranking.beyond.get(r.point, "")
        said = (f"not: {why}", "a limit") if why else (_why(r), r.place)
        groups.setdefault((r.status.value, *said), []).append(r)
    if not groups:
        return None
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    rows = [
        (status, format_count(len(found)), why, place or "-", named(found[0], chosen))
        for (status, why, place), found in ordered[:ROWS]
    ]
    headings = heads("status | >points | +why | +decided by | +for one")
    count = format_count(sum(map(len, groups.values())))
    left = len(groups) - len(rows)
    caption = f"{count} points that were rejected" + (f"; {left} more reasons" if left else "")
    return Section("rejected", "Rejected points", table(headings, rows, caption))


def _why(r: Result) -> str:
    """The reason; of memory, without the amount, which differs from point to point."""
    if r.status is Status.TOO_LARGE:
        bound = ", before capture" if r.is_bound else ""
        return f"needs more than the {format_bytes(r.capacity_bytes)} of a device{bound}"
    return f"{r.code}: {r.reason}" if r.code else r.reason


# Pictures of a study's best points: with more devices, and what their time goes to.

# Curves over numbers that double: what becomes of a quantity with more devices.

_HEIGHT, _TOP, _BOTTOM = 300, 14, 262
_LEFT, _RIGHT = 0.06, 0.96


class Curve(NamedTuple):
    """A name, the name of its color, and its points (x, y, what is said), x ascending.

    A `guide` is drawn in dashes and without dots: what would be, not what is.
    """

    name: str
    colour: str
    points: Sequence[tuple[float, float, str]]
    guide: bool = False


def curves_chart(
    curves: Sequence[Curve], titles: tuple[str, str], written: Callable[[float], str], label: str
) -> Markup:
    """Curves of a quantity, which `written` writes, from 0 up; along stands log2 of x.

    `titles` are of what is along and of what is up.
    """
    places = sorted({x for c in curves for x, _, _ in c.points})
    most = max((y for c in curves for _, y, _ in c.points), default=0.0) * 1.08 or 1.0
    along = _along(places)
    return picture(
        label,
        _HEIGHT,
        *_grid(places, along, most, written),
        *(_curve(c, along, most) for c in curves),
        tag("text", titles[0], x="50%", y=_BOTTOM + 34, cls="tick middle"),
        tag("text", titles[1], x="99.5%", y=_TOP, cls="tick end"),
    )


def _along(places: Sequence[float]) -> Callable[[float], str]:
    low, high = math.log2(places[0]), math.log2(places[-1])

    def x(value: float) -> str:
        share = (math.log2(value) - low) / (high - low) if high > low else 0.5
        return percent(_LEFT + (_RIGHT - _LEFT) * share)

    return x


def _y(value: float, most: float) -> str:
    return f"{_BOTTOM - (_BOTTOM - _TOP) * value / most:.1f}"


def _grid(
    places: Sequence[float],
    along: Callable[[float], str],
    most: float,
    written: Callable[[float], str],
) -> list[Markup]:
    drawn = []
    for value in round_steps(most, 5):
        y = _y(value, most)
        drawn.append(tag("line", x1="0", x2="100%", y1=y, y2=y, cls="grid"))
        if value:
            drawn.append(tag("text", written(value), x="3", y=f"{float(y) - 3:.1f}", cls="tick"))
    for place in places:
        x = along(place)
        drawn.append(tag("line", x1=x, x2=x, y1=_TOP, y2=_BOTTOM, cls="grid"))
        drawn.append(tag("text", f"{place:,.0f}", x=x, y=_BOTTOM + 16, cls="tick middle"))
    return drawn


def _curve(curve: Curve, along: Callable[[float], str], most: float) -> Markup:
    at = [(along(x), _y(y, most)) for x, y, _ in curve.points]
    dashes = "4 4" if curve.guide else None
    lines = [
        tag("line", x1=a[0], y1=a[1], x2=b[0], y2=b[1], stroke_dasharray=dashes)
        for a, b in itertools.pairwise(at)
    ]
    dots = [
        tag("circle", tag("title", said), cx=x, cy=y, r="4", cls=f"fill-{curve.colour} point")
        for (x, y), (_, _, said) in zip(at, curve.points, strict=True)
        if not curve.guide
    ]
    return tag("g", tag("title", curve.name), *lines, *dots, cls=f"curve stroke-{curve.colour}")


#: Points that have a bar.
BARS = 25
#: Colors of communication by mesh axes: the warm ones.
_WARM = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "message")


def scaling(ranked: Sequence[Result], goal: Objective) -> Section | None:
    """The best of each number of devices, beside what as many times the devices should give."""
    rate = _rate_of(goal)
    best: dict[str, dict[int, Result]] = {}
    for r in ranked:
        best.setdefault(r.point.cluster, {}).setdefault(r.devices, r)
    if not any(len(sizes) > 1 for sizes in best.values()):
        return None
    curves, rows = [], []
    for n, (cluster, sizes) in enumerate(sorted(best.items())):
        few = min(sizes)
        each = number(rate, sizes[few]) / few
        points = [
            (float(d), number(rate, r), f"{cluster}, {d:,} devices: {rate.text(r)}")
            for d, r in sorted(sizes.items())
        ]
        ideal = [(float(d), each * d, "") for d in (few, max(sizes))]
        curves += [
            Curve(f"{cluster}, in proportion", series(n), ideal, guide=True),
            Curve(cluster, series(n), points),
        ]
        rows += [
            (cluster, f"{d:,}", goal.text(r), f"{number(rate, r) / (each * d):.1%}",
             r.point.mesh, f"{r.mfu:.1%}")
            for d, r in sorted(sizes.items())
        ]  # fmt: skip
    label = f"{rate.title} of the best point by devices"
    headings = heads(f"cluster | >devices | >{goal.title} | >of proportion | mesh | >MFU")
    names = legend([(c.name, c.colour) for c in curves if not c.guide])
    parts = (curves_chart(curves, ("devices", rate.title), rate.unit.text, label), names)
    numbers = table(headings, rows, "the best point of each number of devices")
    return Section("scaling", "More devices", join((*parts, numbers)))


def _rate_of(goal: Objective) -> Objective:
    """The objective itself if more of it is better, else steps per second."""
    if goal.maximize:
        return goal
    return Objective(
        "steps_per_s", "steps/s", QuantityUnit.PER_S, True,
        lambda r: 1e9 / r.step_time_ns if r.step_time_ns else None,
    )  # fmt: skip


def bottlenecks(ranked: Sequence[Result], chosen: Chosen) -> Section | None:
    """What the time of the best points is made of, in the class of ranks that ends last."""
    shown = [r for r in ranked[:BARS] if r.step_time_ns]
    if not shown:
        return None
    over = sorted({axes for r in shown for axes in r.exposed_ns})
    colours = {axes: _WARM[n % len(_WARM)] for n, axes in enumerate(over)}
    stacks = [
        StackedBar(f"{n}", _parts(r, colours), f"{n}. {named(r, chosen)}")
        for n, r in enumerate(shown, 1)
    ]
    label = f"Breakdown of the step of the best {len(shown)} points"
    entries = {s.name: s.colour for stack in stacks for s in stack.segments if s.value}
    names = list(entries)
    headings = (*heads("> | +point"),
                *(Heading(name, right=True) for name in names))  # fmt: skip
    rows = [
        (stack.name, named(r, chosen), *_part_cells(stack, names))
        for stack, r in zip(stacks, shown, strict=True)
    ]
    picture = stacks_chart(stacks, label)
    numbers = table(headings, rows, "time of the step by category, best points first")
    return Section(
        "bottlenecks",
        "Where the time goes",
        join((picture, legend(list(entries.items())), numbers)),
    )


def _parts(r: Result, colours: Mapping[str, str]) -> list[BarSegment]:
    known = r.compute_ns + sum(r.exposed_ns.values()) + r.waiting_ns + r.host_ns
    other = r.step_time_ns - known
    return [
        BarSegment("computing", r.compute_ns, "product"),
        *(
            BarSegment(f"over {axes}", ns, colours[axes])
            for axes, ns in sorted(r.exposed_ns.items())
        ),
        BarSegment("waiting for ranks", r.waiting_ns, "idle"),
        BarSegment("waiting for the host", r.host_ns, "declared"),
        # Below a millionth of the step it is what additions round.
        BarSegment("other", other if other > 1e-6 * r.step_time_ns else 0.0, "move"),
    ]


def _part_cells(stack: StackedBar, names: Sequence[str]) -> list[str]:
    found = {s.name: s.value for s in stack.segments}
    return [format_duration(found[name]) if found.get(name) else "-" for name in names]


#: As high as a name in the column beside it (`.names span`).
_ROW, _BAR = 26, 20


class StackedBar(NamedTuple):
    """A bar: the name beside it, its parts, and what is said of all of it."""

    name: str
    segments: Sequence[BarSegment]
    said: str


def stacks_chart(stacks: Sequence[StackedBar], label: str) -> Markup:
    """All bars, the longest as wide as the page."""
    most = max((sum(s.value for s in stack.segments) for stack in stacks), default=0.0) or 1.0
    names = (tag("span", stack.name, title=stack.said) for stack in stacks)
    drawn = picture(
        label, _ROW * len(stacks), *(_bar(stack, n, most) for n, stack in enumerate(stacks))
    )
    return tag("div", tag("div", *names, cls="names"), drawn, cls="lanes")


def _bar(stack: StackedBar, number: int, most: float) -> Markup:
    drawn, at = [], 0.0
    whole = sum(s.value for s in stack.segments)
    for s in stack.segments:
        share = s.value / most
        if share > 0:
            title = tag("title", f"{stack.said}: {s.name} {s.value / whole:.1%}")
            box = tag(
                "rect", title, x=percent(at), width=percent(share),
                y=_ROW * number + (_ROW - _BAR) // 2, height=_BAR, cls=f"fill-{s.colour} edge",
            )  # fmt: skip
            drawn.append(box)
        at += share
    return tag("g", *drawn)


_FOOTER = (
    "Made by flint explore from captured programs; nothing was run on hardware. Times and "
    "memory are estimates; Flint's docs/explore.md says how well they rank."
)


def study_html(
    ranking: Ranking, *, title: str, said: Sequence[str] = (), hints: StepHints | None = None
) -> str:
    """The page of all points of a ranking.

    The first objective says what is best, the second is the other side of the front (without one,
    memory); `said` are sentences on the space: defaults, constraints, what was omitted; `hints` are of
    the first point.

    Equal rankings give equal bytes. Pictures are of a bounded number of points; what is not drawn is
    counted below them.
    """
    results = sorted((*ranking.results, *ranking.rejected), key=lambda r: r.point)
    goal = ranking.objectives[0]
    beside = (*ranking.objectives[1:], TIME if goal is MEMORY else MEMORY)[0]
    ranked = sorted(ranking.results, key=lambda r: (goal.order(r), r.memory_bytes, r.point))
    chosen = varying(r.point for r in results)
    found: list[Section | None] = [
        sections.front(ranked, goal, beside, chosen),
        sections.coordinates(ranked, goal, chosen),
        sections.heat_maps(results, ranked, goal, chosen),
        scaling(ranked, goal),
        bottlenecks(ranked, chosen),
        best(ranking, chosen),
        hints_section(hints),
        rejected(ranking, chosen),
    ]
    none = () if ranked else (tag("p", "No point fits and meets the limits.", cls="bad"),)
    told = (tag("p", sentence) for sentence in said)
    head = join((_cards(results, ranked, goal), *none, *told))
    return document(title, head, [s for s in found if s is not None], _FOOTER)


def _cards(results: Sequence[Result], ranked: Sequence[Result], goal: Objective) -> Markup:
    counts = Counter(r.status.value for r in results)
    points = ", ".join(f"{format_count(n)} {what}" for what, n in counts.most_common())
    shown = [("points", format_count(len(results)), points)]
    if ranked:
        first = ranked[0]
        capacity = f"of {format_bytes(first.capacity_bytes)}" if first.capacity_bytes else ""
        time = ("step time", format_duration(first.step_time_ns), _sure(first))
        of_step = (time, ("MFU", f"{first.mfu:.1%}", first.point.cluster))
        shown = [
            *([] if goal is TIME else [(goal.title, goal.text(first), "")]),
            *(() if first.served else of_step),
            ("peak memory", format_bytes(first.memory_bytes), capacity),
            ("devices", format_count(first.devices), first.point.mesh),
            *shown,
        ]
    return tag("dl", *(summary_card(*card) for card in shown), cls="cards")


def _sure(r: Result) -> str:
    if not r.low_ns:
        return ""
    return f"80 %: {format_duration(r.low_ns)} to {format_duration(r.high_ns)}"
