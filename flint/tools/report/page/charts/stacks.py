"""Bars below each other on one scale, each in parts: what several points' time is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flint.tools.report.page.charts.bars import BarSegment, percent
from flint.tools.report.page.charts.picture import picture
from flint.tools.report.page.markup import Markup, tag

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
        label,
        _ROW * len(stacks),
        *(_bar(stack, n, most) for n, stack in enumerate(stacks)),
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
