"""Parallel coordinates: an upright line for each quantity or choice, and a thread for each point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flint.tools.report.page.charts.bars import percent
from flint.tools.report.page.charts.picture import picture
from flint.tools.report.page.markup import Markup, tag

_HEIGHT, _TOP, _BOTTOM = 340, 40, 320
#: Where the first and the last upright stand, as shares of the width.
_LEFT, _RIGHT = 0.05, 0.95
#: Values whose names are written beside an upright; of more, the first and the last.
_NAMED = 14


class Upright(NamedTuple):
    """A line with a title and the names of values, each at its height: 0 is below, 1 above."""

    title: str
    marks: Sequence[tuple[float, str]]


class Thread(NamedTuple):
    """A point: its height on each upright, the name of its color, what is said of it."""

    heights: Sequence[float]
    colour: str
    said: str


def parallel_chart(uprights: Sequence[Upright], threads: Sequence[Thread], label: str) -> Markup:
    """Threads in their order: later ones lie above. Each has a height for each upright."""
    return picture(
        label,
        _HEIGHT,
        *(_thread(t, len(uprights)) for t in threads),
        *(_upright(u, n, len(uprights)) for n, u in enumerate(uprights)),
    )


def _x(number: int, count: int) -> str:
    return percent(_LEFT + (_RIGHT - _LEFT) * (number / (count - 1) if count > 1 else 0.5))


def _y(height: float) -> str:
    return f"{_BOTTOM - (_BOTTOM - _TOP) * height:.1f}"


def _thread(thread: Thread, count: int) -> Markup:
    pairs = zip(thread.heights, thread.heights[1:], strict=False)
    lines = (
        tag("line", x1=_x(n, count), x2=_x(n + 1, count), y1=_y(a), y2=_y(b))
        for n, (a, b) in enumerate(pairs)
    )
    return tag("g", tag("title", thread.said), *lines, cls=f"thread stroke-{thread.colour}")


def _upright(upright: Upright, number: int, count: int) -> Markup:
    x = _x(number, count)
    marks = upright.marks
    if len(marks) > _NAMED:
        marks = (marks[0], marks[-1])
    # Titles of neighbors stand at two heights: they are wider than the room between them.
    named = tag("text", upright.title, x=x, y=12 + 14 * (number % 2), cls="strong middle")
    # The last upright has no room on its right.
    side, cls = ("-5", "tick end") if 0 < number == count - 1 else ("5", "tick")
    names = (
        tag("text", name, x=x, dx=side, y=f"{float(_y(height)) + 4:.1f}", cls=cls)
        for height, name in marks
    )
    return tag("g", tag("line", x1=x, x2=x, y1=_TOP, y2=_BOTTOM, cls="axis"), named, *names)
