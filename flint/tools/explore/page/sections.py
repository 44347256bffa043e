"""Pictures of all points of a study. Points are ranked: the best one is first."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from flint.text import format_count
from flint.tools.explore.answers.objectives import OBJECTIVES, Objective, QuantityUnit
from flint.tools.explore.point import choices
from flint.tools.explore.result import Result
from flint.tools.report.page.charts.bars import fitting, legend, percent
from flint.tools.report.page.charts.parallel import Thread, Upright, parallel_chart
from flint.tools.report.page.charts.picture import picture
from flint.tools.report.page.charts.scatter import Axis, ScatterDot, scatter_chart
from flint.tools.report.page.markup import Markup, folded, heads, join, table, tag
from flint.tools.report.page.section import Section

# Heat map: what comes of two choices at once, the better the stronger the color.

_ROW, _TOP, _FOOT = 30, 24, 22
#: Share of the width that names of rows take, and pixels of a page that is wide.
_NAMES, _WIDTH = 0.14, 1080.0
#: The strongest color lets text over it be read.
_STRONGEST = 0.42


class HeatCell(NamedTuple):
    """A cell: how good it is, from 0 (worst) to 1, what is written in it, what is said of it."""

    good: float
    written: str
    said: str


def heat_map(
    names: tuple[str, str],
    rows: Sequence[str],
    columns: Sequence[str],
    cells: Mapping[tuple[str, str], HeatCell],
    label: str,
) -> Markup:
    """`cells` by (row, column); places without one stay empty. `names`: of the rows, the columns."""
    wide = (1 - _NAMES) / max(1, len(columns))
    titles = (
        tag("text", name, x=percent(_NAMES + wide * (n + 0.5)), y=_TOP - 8, cls="strong middle")
        for n, name in enumerate(columns)
    )
    bottom = _TOP + _ROW * len(rows)
    return picture(label, bottom + _FOOT,
        tag("text", names[0], x="0", y=_TOP - 8, cls="tick"),
        *titles,
        *(_row(n, row, columns, cells, wide) for n, row in enumerate(rows)),
        tag("text", names[1], x=percent(_NAMES + (1 - _NAMES) / 2), y=bottom + 15, cls="tick middle"),
            )  # fmt: skip


def _row(
    number: int,
    row: str,
    columns: Sequence[str],
    cells: Mapping[tuple[str, str], HeatCell],
    wide: float,
) -> Markup:
    y = _TOP + _ROW * number
    name = tag("text", fitting(row, _NAMES * _WIDTH) or row[:8], x="0", y=y + 19, cls="strong")
    drawn = (
        _cell(cells[row, column], _NAMES + wide * n, y, wide)
        for n, column in enumerate(columns)
        if (row, column) in cells
    )
    return tag("g", name, *drawn)


def _cell(cell: HeatCell, at: float, y: int, wide: float) -> Markup:
    strength = f"{0.04 + (_STRONGEST - 0.04) * cell.good:.3f}"
    box = tag(
        "rect", x="1", y="1", width="100%", height=_ROW - 2, cls="fill-s1", fill_opacity=strength
    )
    written = fitting(cell.written, wide * _WIDTH)
    text = tag("text", written, x="50%", y="19", cls="strong middle") if written else ""
    return tag(
        "svg", tag("title", cell.said), box, text,
        x=percent(at), y=y, width=percent(wide * 0.99), height=_ROW,
    )  # fmt: skip


#: Points that pictures show at most: as dots, as threads.
DOTS, THREADS = 1500, 250
#: Pairs of choices that have a heat map, and values of one.
MAPS, VALUES = 6, 24
_TENTH, _HALF, _REST = "s2", "s1", "s10"

Chosen = Mapping[str, Sequence[str]]
TIME, MFU, MEMORY = (OBJECTIVES[name] for name in ("time", "mfu", "memory"))


def named(result: Result, chosen: Chosen) -> str:
    """What sets a point apart from others: `data=64 model=8 remat=full`."""
    mine = choices(result.point)
    return " ".join(f"{name}={mine[name]}" for name in chosen if mine.get(name))


def pareto(ranked: Sequence[Result], a: Objective, b: Objective) -> list[Result]:
    """Those that no other is better than in one of both and as good in the other, best `a` first.

    Results of which one of both is not known are omitted.
    """
    known = [r for r in ranked if a.value(r) is not None and b.value(r) is not None]
    found: list[Result] = []
    for result in sorted(known, key=lambda r: (a.order(r), b.order(r))):
        if not found or b.order(result) < b.order(found[-1]):
            found.append(result)
    return found


def front(
    ranked: Sequence[Result], goal: Objective, beside: Objective, chosen: Chosen
) -> Section | None:
    """Both objectives of each point, and a table of those that are on the front."""
    if not ranked:
        return None
    best = pareto(ranked, goal, beside)
    edge = {r.point for r in best}
    others = [r for r in ranked if r.point not in edge and beside.value(r) is not None]
    drawn = _spread(others, DOTS)

    def dot(r: Result, colour: str, radius: float) -> ScatterDot:
        said = f"{named(r, chosen)}: {goal.text(r)}, {beside.text(r)}"
        return ScatterDot(number(beside, r), number(goal, r), colour, said, radius)

    label = f"{goal.title} against {beside.title}: {len(best)} of {len(ranked)} points on the front"
    picture = scatter_chart(
        [dot(r, "s1", 3) for r in drawn],
        [dot(r, "s8", 5) for r in best],
        _axis(beside),
        _axis(goal),
        label,
    )
    rows = [(named(r, chosen), goal.text(r), beside.text(r), f"{r.mfu:.1%}") for r in best]
    headings = heads(f"+point | >{goal.title} | >{beside.title} | >MFU")
    numbers = table(headings, rows[:VALUES], f"points on the front of {goal.title}, {beside.title}")
    hidden = _not_drawn(len(ranked) - len(drawn) - len(best))
    return Section("front", "Trade-offs", join((picture, *hidden, numbers)))


def _axis(objective: Objective) -> Axis:
    base = 2.0 if objective.unit is QuantityUnit.BYTES else 10.0
    return Axis(objective.title, objective.unit.text, base)


def number(objective: Objective, r: Result) -> float:
    """The quantity, 0 where it is not known: pictures are of results of which it is."""
    return objective.value(r) or 0.0


def _spread(ranked: Sequence[Result], most: int) -> list[Result]:
    """At most so many of them: the better half of those as they are, of the others each n-th."""
    if len(ranked) <= most:
        return list(ranked)
    rest = ranked[most // 2 :]
    step = -(-len(rest) // (most - most // 2))
    return [*ranked[: most // 2], *rest[::step]]


def _not_drawn(count: int) -> list[Markup]:
    said = f"{format_count(count)} points are not drawn."
    return [tag("p", said, cls="small")] if count > 0 else []


def coordinates(ranked: Sequence[Result], goal: Objective, chosen: Chosen) -> Section | None:
    """Each choice and each quantity upright, points across."""
    if len(ranked) < 2 or not chosen:
        return None
    measures = (*((goal,) if goal is not TIME else ()), TIME, MEMORY, MFU)
    drawn = _spread(ranked, THREADS)
    uprights = [
        Upright(name, [(_place(n, len(values)), v or "-") for n, v in enumerate(values)])
        for name, values in chosen.items()
    ]
    uprights += [_measure_upright(m, ranked) for m in measures]
    places = {r.point: n / len(ranked) for n, r in enumerate(ranked)}
    ranges = [(m, *_range(m, ranked)) for m in measures]
    threads = [_thread(r, places[r.point], ranges, chosen) for r in reversed(drawn)]
    label = f"Choices and quantities of {len(drawn)} points"
    picture = parallel_chart(uprights, threads, label)
    entries = [("best tenth", _TENTH), ("better half", _HALF), ("others", _REST)]
    hidden = _not_drawn(len(ranked) - len(drawn))
    said = tag("p", "Each line is a point; hover over it to see which.")
    return Section(
        "coordinates", "Choices and their results",
        join((said, picture, legend(entries), *hidden)),
    )  # fmt: skip


def _place(number: int, count: int) -> float:
    return number / (count - 1) if count > 1 else 0.5


def _measure_upright(measure: Objective, ranked: Sequence[Result]) -> Upright:
    low, high = _range(measure, ranked)
    return Upright(measure.title, [(0.0, measure.unit.text(low)), (1.0, measure.unit.text(high))])


def _range(measure: Objective, ranked: Sequence[Result]) -> tuple[float, float]:
    values = [number(measure, r) for r in ranked]
    return min(values), max(values)


def _thread(
    r: Result, place: float, ranges: Sequence[tuple[Objective, float, float]], chosen: Chosen
) -> Thread:
    mine = choices(r.point)
    heights = [
        _place(list(values).index(mine.get(name, "")), len(values))
        for name, values in chosen.items()
    ]
    for measure, low, high in ranges:
        heights.append((number(measure, r) - low) / (high - low) if high > low else 0.5)
    said = ", ".join(f"{m.title} {m.text(r)}" for m, _, _ in ranges)
    colour = _TENTH if place < 0.1 else _HALF if place < 0.5 else _REST
    return Thread(heights, colour, f"{named(r, chosen)}: {said}")


def heat_maps(
    results: Sequence[Result], ranked: Sequence[Result], goal: Objective, chosen: Chosen
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
        f"Each cell has the best {goal.title} of the points with both choices, darker is "
        "better; a dash means that none of these points fits.",
    )
    others = folded("other choices", *maps[1:]) if maps[1:] else ""
    return Section("maps", "Two choices at a time", join((said, maps[0], others)))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 1.0


def _influence(ranked: Sequence[Result], goal: Objective, name: str) -> float:
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
    goal: Objective,
    chosen: Chosen,
) -> Markup:
    def place(r: Result) -> tuple[str, str]:
        mine = choices(r.point)
        return mine.get(pair[0], "") or "-", mine.get(pair[1], "") or "-"

    best: dict[tuple[str, str], Result] = {}
    for r in ranked:
        best.setdefault(place(r), r)
    cells = {place(r): HeatCell(0.0, "-", f"{' '.join(place(r))}: none fits") for r in results}
    good = abs(goal.order(ranked[0]))
    for where, r in best.items():
        value = abs(goal.order(r))
        share = _share(value, good) if goal.maximize else _share(good, value)
        said = f"{goal.text(r)}, {named(r, chosen)}"
        cells[where] = HeatCell(share**2, goal.text(r), said)
    rows, columns = ([value or "-" for value in chosen[name]] for name in pair)
    label = f"Best {goal.title} by {pair[0]} and {pair[1]}"
    return heat_map(pair, rows, columns, cells, label)
