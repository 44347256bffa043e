"""Pictures of a study's points. Points are ranked: the best one is first."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from flint.backends.report.page.charts.bars import Segment, legend
from flint.backends.report.page.charts.curves import Curve, curves_chart
from flint.backends.report.page.charts.heat import Cell, heat_map
from flint.backends.report.page.charts.parallel import Thread, Upright, parallel_chart
from flint.backends.report.page.charts.scatter import Axis, Dot, scatter_chart
from flint.backends.report.page.charts.stacks import Stack, stacks_chart
from flint.backends.report.page.colours import series
from flint.backends.report.page.markup import Heading, Markup, folded, join, table, tag
from flint.backends.report.page.section import Section
from flint.exploring.choices import choices
from flint.exploring.page.measures import MEMORY, MFU, TIME, Measure
from flint.exploring.result import Result
from flint.text import format_count, format_duration

#: Points that pictures show at most: as dots, as threads, as bars.
DOTS, THREADS, BARS = 1500, 250, 25
#: Pairs of choices that have a heat map, and values of one.
MAPS, VALUES = 6, 24
#: Colours of what the time goes to; communication by mesh axes has the warm ones.
_WARM = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "message")
_TENTH, _HALF, _REST = "s2", "s1", "s10"

Chosen = Mapping[str, Sequence[str]]


def named(result: Result, chosen: Chosen) -> str:
    """What sets a point apart from others: `data=64 model=8 remat=full`."""
    mine = choices(result.point)
    return " ".join(f"{name}={mine[name]}" for name in chosen if mine.get(name))


def pareto(ranked: Sequence[Result], a: Measure, b: Measure) -> list[Result]:
    """Those that no other is better than in one of both and as good in the other, best `a` first."""
    found: list[Result] = []
    for result in sorted(ranked, key=lambda r: (a.order(r), b.order(r))):
        if not found or b.order(result) < b.order(found[-1]):
            found.append(result)
    return found


def front(
    ranked: Sequence[Result], goal: Measure, beside: Measure, chosen: Chosen
) -> Section | None:
    """Both objectives of each point, and a table of those that are on the front."""
    if not ranked:
        return None
    best = pareto(ranked, goal, beside)
    edge = {r.point for r in best}
    drawn = _spread([r for r in ranked if r.point not in edge], DOTS)

    def dot(r: Result, colour: str, radius: float) -> Dot:
        said = f"{named(r, chosen)}: {goal.written(goal.of(r))}, {beside.written(beside.of(r))}"
        return Dot(beside.of(r), goal.of(r), colour, said, radius)

    label = f"{goal.title} against {beside.title}: {len(best)} of {len(ranked)} points on the front"
    picture = scatter_chart(
        [dot(r, "s1", 3) for r in drawn],
        [dot(r, "s8", 5) for r in best],
        Axis(beside.title, beside.written, beside.base),
        Axis(goal.title, goal.written, goal.base),
        label,
    )
    rows = [
        (named(r, chosen), goal.written(goal.of(r)), beside.written(beside.of(r)), f"{r.mfu:.1%}")
        for r in best
    ]
    headings = (
        Heading("point", wide=True),
        Heading(goal.title, right=True),
        Heading(beside.title, right=True),
        Heading("MFU", right=True),
    )
    numbers = table(headings, rows[:VALUES], f"points on the front of {goal.title}, {beside.title}")
    hidden = _not_drawn(len(ranked) - len(drawn) - len(best), "points are not drawn")
    return Section("front", "What can be had for what", join((picture, *hidden, numbers)))


def _spread(ranked: Sequence[Result], most: int) -> list[Result]:
    """At most so many of them: the better half of those as they are, of the others each n-th."""
    if len(ranked) <= most:
        return list(ranked)
    rest = ranked[most // 2 :]
    step = -(-len(rest) // (most - most // 2))
    return [*ranked[: most // 2], *rest[::step]]


def _not_drawn(count: int, what: str) -> list[Markup]:
    return [tag("p", f"{format_count(count)} {what}.", cls="small")] if count > 0 else []


def coordinates(ranked: Sequence[Result], goal: Measure, chosen: Chosen) -> Section | None:
    """Each choice and each quantity upright, points across."""
    if len(ranked) < 2 or not chosen:
        return None
    measures = (*((goal,) if goal is not TIME else ()), TIME, MEMORY, MFU)
    drawn = _spread(ranked, THREADS)
    uprights = [_choice_upright(name, values) for name, values in chosen.items()]
    uprights += [_measure_upright(m, ranked) for m in measures]
    places = {r.point: n / len(ranked) for n, r in enumerate(ranked)}
    ranges = [(m, *_range(m, ranked)) for m in measures]
    threads = [_thread(r, places[r.point], ranges, chosen) for r in reversed(drawn)]
    label = f"Choices and quantities of {len(drawn)} points"
    picture = parallel_chart(uprights, threads, label)
    entries = [("best tenth", _TENTH), ("better half", _HALF), ("others", _REST)]
    hidden = _not_drawn(len(ranked) - len(drawn), "points are not drawn")
    said = tag("p", "Each line is a point; under the mouse it says which.")
    return Section(
        "coordinates", "Choices and what comes of them",
        join((said, picture, legend(entries), *hidden)),
    )  # fmt: skip


def _choice_upright(name: str, values: Sequence[str]) -> Upright:
    return Upright(name, [(_place(n, len(values)), v or "-") for n, v in enumerate(values)])


def _place(number: int, count: int) -> float:
    return number / (count - 1) if count > 1 else 0.5


def _measure_upright(measure: Measure, ranked: Sequence[Result]) -> Upright:
    low, high = _range(measure, ranked)
    return Upright(measure.title, [(0.0, measure.written(low)), (1.0, measure.written(high))])


def _range(measure: Measure, ranked: Sequence[Result]) -> tuple[float, float]:
    values = [measure.of(r) for r in ranked]
    return min(values), max(values)


def _thread(
    r: Result, place: float, ranges: Sequence[tuple[Measure, float, float]], chosen: Chosen
) -> Thread:
    mine = choices(r.point)
    heights = [
        _place(list(values).index(mine.get(name, "")), len(values))
        for name, values in chosen.items()
    ]
    for measure, low, high in ranges:
        heights.append((measure.of(r) - low) / (high - low) if high > low else 0.5)
    said = ", ".join(f"{m.title} {m.written(m.of(r))}" for m, _, _ in ranges)
    colour = _TENTH if place < 0.1 else _HALF if place < 0.5 else _REST
    return Thread(heights, colour, f"{named(r, chosen)}: {said}")


def heat_maps(
    results: Sequence[Result], ranked: Sequence[Result], goal: Measure, chosen: Chosen
) -> Section | None:
    """The best of each two values of two choices, for the pairs of choices that matter most."""
    names = sorted(chosen, key=lambda name: -_influence(ranked, goal, name))
    names = [name for name in names if len(chosen[name]) <= VALUES]
    pairs = list(itertools.combinations(names, 2))[:MAPS]
    if not ranked or not pairs:
        return None
    maps = [_map(pair, results, ranked, goal, chosen) for pair in pairs]
    said = tag(
        "p",
        f"Each cell has the best {goal.title} of the points with both choices, the stronger the "
        "better; a dash: there are such points, and none of them fits.",
    )
    others = folded("other choices", *maps[1:]) if maps[1:] else ""
    return Section("maps", "Two choices at a time", join((said, maps[0], others)))


def _influence(ranked: Sequence[Result], goal: Measure, name: str) -> float:
    """By what share the best of a choice's values are apart: 0 if the choice is all the same."""
    best: dict[str, float] = {}
    for r in ranked:
        best.setdefault(choices(r.point).get(name, ""), abs(goal.order(r)))
    values = [value for value in best.values() if value]
    return max(values) / min(values) - 1 if values else 0.0


def _map(
    pair: tuple[str, str],
    results: Sequence[Result],
    ranked: Sequence[Result],
    goal: Measure,
    chosen: Chosen,
) -> Markup:
    def place(r: Result) -> tuple[str, str]:
        mine = choices(r.point)
        return mine.get(pair[0], "") or "-", mine.get(pair[1], "") or "-"

    best: dict[tuple[str, str], Result] = {}
    for r in ranked:
        best.setdefault(place(r), r)
    cells = {place(r): Cell(0.0, "-", f"{' '.join(place(r))}: none fits") for r in results}
    good = abs(goal.order(ranked[0]))
    for where, r in best.items():
        value = abs(goal.order(r))
        share = value / good if goal.more_is_better else good / value
        said = f"{goal.written(goal.of(r))}, {named(r, chosen)}"
        cells[where] = Cell(share**2, goal.written(goal.of(r)), said)
    rows, columns = ([value or "-" for value in chosen[name]] for name in pair)
    label = f"Best {goal.title} by {pair[0]} and {pair[1]}"
    return heat_map(pair, rows, columns, cells, label)


def scaling(ranked: Sequence[Result], goal: Measure) -> Section | None:
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
        each = rate.of(sizes[few]) / few
        points = [
            (float(d), rate.of(r), f"{cluster}, {d:,} devices: {rate.written(rate.of(r))}")
            for d, r in sorted(sizes.items())
        ]
        ideal = [(float(d), each * d, "") for d in (few, max(sizes))]
        curves += [
            Curve(f"{cluster}, in proportion", series(n), ideal, guide=True),
            Curve(cluster, series(n), points),
        ]
        rows += [
            (cluster, f"{d:,}", goal.written(goal.of(r)), f"{rate.of(r) / (each * d):.1%}",
             r.point.mesh, f"{r.mfu:.1%}")
            for d, r in sorted(sizes.items())
        ]  # fmt: skip
    label = f"{rate.title} of the best point by devices"
    headings = (
        Heading("cluster"), Heading("devices", right=True), Heading(goal.title, right=True),
        Heading("of proportion", right=True), Heading("mesh"), Heading("MFU", right=True),
    )  # fmt: skip
    names = legend([(c.name, c.colour) for c in curves if not c.guide])
    parts = (curves_chart(curves, ("devices", rate.title), rate.written, label), names)
    numbers = table(headings, rows, "the best point of each number of devices")
    return Section("scaling", "More devices", join((*parts, numbers)))


def _rate_of(goal: Measure) -> Measure:
    """The objective itself if more of it is better, else steps per second."""
    if goal.more_is_better:
        return goal
    return Measure(
        "steps/s", lambda r: 1e9 / r.step_time_ns if r.step_time_ns else 0.0, lambda v: f"{v:.3g}"
    )


def bottlenecks(ranked: Sequence[Result], chosen: Chosen) -> Section | None:
    """What the time of the best points is made of, in the class of ranks that ends last."""
    shown = ranked[:BARS]
    if not shown:
        return None
    over = sorted({axes for r in shown for axes in r.exposed_ns})
    colours = {axes: _WARM[n % len(_WARM)] for n, axes in enumerate(over)}
    stacks = [
        Stack(f"{n}", _parts(r, colours), f"{n}. {named(r, chosen)}")
        for n, r in enumerate(shown, 1)
    ]
    label = f"What the step of the best {len(shown)} points is made of"
    entries = {s.name: s.colour for stack in stacks for s in stack.segments if s.value}
    names = list(entries)
    headings = (Heading("", right=True), Heading("point", wide=True),
                *(Heading(name, right=True) for name in names))  # fmt: skip
    rows = [
        (stack.name, named(r, chosen), *_part_cells(stack, names))
        for stack, r in zip(stacks, shown, strict=True)
    ]
    picture = stacks_chart(stacks, label)
    numbers = table(headings, rows, "time of the step by what it goes to, best points first")
    return Section(
        "bottlenecks",
        "Where the time goes",
        join((picture, legend(list(entries.items())), numbers)),
    )


def _parts(r: Result, colours: Mapping[str, str]) -> list[Segment]:
    known = r.compute_ns + sum(r.exposed_ns.values()) + r.waiting_ns + r.host_ns
    return [
        Segment("computing", r.compute_ns, "product"),
        *(Segment(f"over {axes}", ns, colours[axes]) for axes, ns in sorted(r.exposed_ns.items())),
        Segment("waiting for ranks", r.waiting_ns, "idle"),
        Segment("waiting for the host", r.host_ns, "declared"),
        Segment("other", max(0.0, r.step_time_ns - known), "move"),
    ]


def _part_cells(stack: Stack, names: Sequence[str]) -> list[str]:
    found = {s.name: s.value for s in stack.segments}
    return [format_duration(found[name]) if found.get(name) else "-" for name in names]
