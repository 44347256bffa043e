"""Heat map: what comes of two choices at once, the better the stronger the color."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from flint.tools.report.page.charts.bars import fitting, percent
from flint.tools.report.page.charts.picture import picture
from flint.tools.report.page.markup import Markup, tag

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
    heads = (
        tag("text", name, x=percent(_NAMES + wide * (n + 0.5)), y=_TOP - 8, cls="strong middle")
        for n, name in enumerate(columns)
    )
    bottom = _TOP + _ROW * len(rows)
    return picture(label, bottom + _FOOT,
        tag("text", names[0], x="0", y=_TOP - 8, cls="tick"),
        *heads,
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
