"""Tables of a study: the best points, and why others were rejected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flint.text import format_bytes, format_count
from flint.tools.explore.answers.rank import Ranking
from flint.tools.explore.choices import choices
from flint.tools.explore.page.sections import MEMORY, MFU, TIME, named
from flint.tools.explore.result import Result, Status
from flint.tools.report.page.markup import Heading, join, table, tag
from flint.tools.report.page.section import Section

#: Rows of each table.
ROWS = 100


def best(ranking: Ranking, chosen: Mapping[str, Sequence[str]]) -> Section | None:
    """The first points, with what they chose and what came of it; those of a front come first."""
    ranked = ranking.results
    if not ranked:
        return None
    measures = list({m.name: m for m in (*ranking.objectives, TIME, MFU, MEMORY)}.values())
    headings = [
        Heading("", right=True),
        Heading("devices", right=True),
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
    headings = (
        Heading("status"), Heading("points", right=True), Heading("why", wide=True),
        Heading("decided by", wide=True), Heading("for one", wide=True),
    )  # fmt: skip
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
