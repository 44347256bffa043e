"""The page of a study: what was found first, then pictures of all points, then tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from flint.text import format_bytes, format_count, format_duration
from flint.tools.explore.answers.objectives import Objective
from flint.tools.explore.answers.rank import Ranking
from flint.tools.explore.choices import varying
from flint.tools.explore.page import best, sections, tables
from flint.tools.explore.page.sections import MEMORY, TIME
from flint.tools.explore.result import Result
from flint.tools.report.page.document import document
from flint.tools.report.page.facts import summary_card
from flint.tools.report.page.markup import Markup, join, tag
from flint.tools.report.page.section import Section

_FOOTER = (
    "Made by flint explore from captured programs; nothing was run on hardware. Times and "
    "memory are estimates; Flint's docs/explore-accuracy.md says how well they rank."
)


def study_html(ranking: Ranking, *, title: str, said: Sequence[str] = ()) -> str:
    """The page of all points of a ranking.

    The first objective says what is best, the second is the other side of the front (without one,
    memory); `said` are sentences on the space: defaults, constraints, what was omitted.

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
        best.scaling(ranked, goal),
        best.bottlenecks(ranked, chosen),
        tables.best(ranking, chosen),
        tables.rejected(ranking, chosen),
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
        shown = [
            *([] if goal is TIME else [(goal.title, goal.text(first), "")]),
            time,
            ("MFU", f"{first.mfu:.1%}", first.point.cluster),
            ("peak memory", format_bytes(first.memory_bytes), capacity),
            ("devices", format_count(first.devices), first.point.mesh),
            *shown,
        ]
    return tag("dl", *(summary_card(*card) for card in shown), cls="cards")


def _sure(r: Result) -> str:
    if not r.low_ns:
        return ""
    return f"80 %: {format_duration(r.low_ns)} to {format_duration(r.high_ns)}"
