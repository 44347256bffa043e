"""Tables of a study: the best points, and why others were rejected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flint.backends.report.page.markup import Heading, join, table, tag
from flint.backends.report.page.section import Section
from flint.exploring.choices import choices
from flint.exploring.objectives import Objective
from flint.exploring.page.sections import MEMORY, MFU, TIME, named
from flint.exploring.result import Result, Status
from flint.text import format_bytes, format_count

#: Rows of each table.
ROWS = 100


def best(
    ranked: Sequence[Result], goal: Objective, chosen: Mapping[str, Sequence[str]]
) -> Section | None:
    """The first points, with what they chose and what came of it."""
    if not ranked:
        return None
    measures = (*((goal,) if goal is not TIME else ()), TIME, MFU, MEMORY)
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
    caption = (
        f"points that fit, best {goal.title} first: {len(rows)} of {format_count(len(ranked))}"
    )
    first = ranked[0]
    notes = [tag("li", note) for note in first.notes]
    said = (tag("h3", "Notes on the first"), tag("ul", *notes, cls="notes")) if notes else ()
    return Section("best", "The best points", join((table(headings, rows, caption), *said)))


def rejected(results: Sequence[Result], chosen: Mapping[str, Sequence[str]]) -> Section | None:
    """Points that do not run, counted by why, with one of each."""
    groups: dict[tuple[str, str, str], list[Result]] = {}
    for r in results:
        if r.status is not Status.FITS:
            why = _why(r)
            groups.setdefault((r.status.value, why, r.place), []).append(r)
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
    return Section("rejected", "What does not run", table(headings, rows, caption))


def _why(r: Result) -> str:
    """The reason; of memory, without the amount, which differs from point to point."""
    if r.status is Status.TOO_LARGE:
        bound = ", before it is captured" if r.is_bound else ""
        return f"needs more than the {format_bytes(r.capacity_bytes)} of a device{bound}"
    return f"{r.code}: {r.reason}" if r.code else r.reason
