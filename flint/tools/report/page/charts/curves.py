"""Curves over numbers that double: what becomes of a quantity with more devices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from flint.tools.report.page.charts.axes import round_steps
from flint.tools.report.page.charts.bars import percent
from flint.tools.report.page.charts.picture import picture
from flint.tools.report.page.markup import Markup, tag

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
