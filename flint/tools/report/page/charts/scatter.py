"""Points by two quantities, the best of which are joined: a front."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from flint.tools.report.page.charts.bars import percent
from flint.tools.report.page.charts.picture import picture, round_steps
from flint.tools.report.page.markup import Markup, tag

_HEIGHT, _TOP, _BOTTOM = 360, 14, 318
#: The plot ends here, so that names of points at the edge have room.
_RIGHT = 0.98


class Axis(NamedTuple):
    """A quantity along or up: its title, how a value is written, base of its round numbers."""

    title: str
    written: Callable[[float], str]
    base: float = 10.0


class ScatterDot(NamedTuple):
    """A point: where it is, the name of its color, what is said of it, and its radius."""

    x: float
    y: float
    colour: str
    said: str
    radius: float = 3.0


def scatter_chart(
    dots: Sequence[ScatterDot], front: Sequence[ScatterDot], across: Axis, up: Axis, label: str
) -> Markup:
    """Dots in their order, from 0 in both directions; `front` over them, joined in its order."""
    every = (*dots, *front)
    most = (max((d.x for d in every), default=0.0), max((d.y for d in every), default=0.0))
    right, top = most[0] * 1.04 or 1.0, most[1] * 1.08 or 1.0
    joined = itertools.pairwise(front)
    return picture(
        label,
        _HEIGHT,
        *_grid(right, top, across, up),
        *(_dot(d, right, top) for d in dots),
        *(_joined(a, b, right, top) for a, b in joined),
        *(_dot(d, right, top) for d in front),
    )


def lines_chart(
    curves: Sequence[Sequence[ScatterDot]], across: Axis, up: Axis, label: str
) -> Markup:
    """Curves of dots, each joined in its order and in the color of its first, from 0 in both directions."""
    every = [dot for curve in curves for dot in curve]
    right = max((d.x for d in every), default=0.0) * 1.04 or 1.0
    top = max((d.y for d in every), default=0.0) * 1.08 or 1.0
    drawn = (
        tag("g", *(_joined(a, b, right, top, None) for a, b in itertools.pairwise(curve)),
            *(_dot(d, right, top) for d in curve), cls=f"curve stroke-{curve[0].colour}")
        for curve in curves if curve
    )  # fmt: skip
    return picture(label, _HEIGHT, *_grid(right, top, across, up), *drawn)


def _x(value: float, right: float) -> str:
    return percent(_RIGHT * value / right)


def _y(value: float, top: float) -> str:
    return f"{_BOTTOM - (_BOTTOM - _TOP) * value / top:.1f}"


def _grid(right: float, top: float, across: Axis, up: Axis) -> list[Markup]:
    drawn = []
    for value in round_steps(top, 5, base=up.base):
        y = _y(value, top)
        drawn.append(tag("line", x1="0", x2="100%", y1=y, y2=y, cls="grid"))
        if value:
            drawn.append(tag("text", up.written(value), x="3", y=f"{float(y) - 3:.1f}", cls="tick"))
    for value in round_steps(right, 6, base=across.base):
        x = _x(value, right)
        drawn.append(tag("line", x1=x, x2=x, y1=_TOP, y2=_BOTTOM, cls="grid"))
        if value and value < 0.96 * right:
            text = across.written(value)
            drawn.append(tag("text", text, x=x, y=_BOTTOM + 16, cls="tick middle"))
    titles = (
        tag("text", across.title, x="50%", y=_BOTTOM + 34, cls="tick middle"),
        tag("text", up.title, x="99.5%", y=_TOP, cls="tick end"),
    )
    return [*drawn, *titles]


def _dot(dot: ScatterDot, right: float, top: float) -> Markup:
    return tag(
        "circle",
        tag("title", dot.said),
        cx=_x(dot.x, right),
        cy=_y(dot.y, top),
        r=f"{dot.radius:g}",
        cls=f"fill-{dot.colour} point",
    )


def _joined(
    a: ScatterDot, b: ScatterDot, right: float, top: float, cls: str | None = "front"
) -> Markup:
    x1, x2, y1, y2 = _x(a.x, right), _x(b.x, right), _y(a.y, top), _y(b.y, top)
    return tag("line", x1=x1, x2=x2, y1=y1, y2=y2, cls=cls)
