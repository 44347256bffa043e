"""A tree of scopes as nested boxes: the larger, the more of the step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import NamedTuple

from flint.text import format_duration
from flint.tools.report.page.charts.bars import WIDTH, fitting, percent
from flint.tools.report.page.charts.picture import picture
from flint.tools.report.page.colours import series
from flint.tools.report.page.markup import Markup, tag
from flint.tools.report.views.breakdown import ScopeTime

#: Height of the picture in pixels, and of the line with the name of a box that holds others.
_HEIGHT, _NAME = 340.0, 20.0
#: Width that boxes are laid out for; they are stretched to that of the page.
_WIDTH = 900.0
#: Boxes of a smaller share of the step are drawn as one.
_LEAST_SHARE = 0.002
#: A box is drawn as the boxes inside it if these are more than this share of it.
_OPENED = 0.15
#: Boxes in boxes.
_DEPTH = 3


class _Place(NamedTuple):
    x: float
    y: float
    width: float
    height: float


class _Item(NamedTuple):
    name: str
    size: float
    scope: ScopeTime | None


def treemap(root: ScopeTime, idle_ns: float, label: str) -> Markup:
    """The picture of a tree, with the time in which nothing of it runs as a grey box."""
    whole = root.exposed_ns + idle_ns
    items = [*_items(root, whole), *([_Item("waiting", idle_ns, None)] if idle_ns > 0 else [])]
    colours = count()
    drawn: list[Markup] = []
    placed = squarified([i.size for i in items], _Place(0, 0, _WIDTH, _HEIGHT))
    for item, place in zip(items, placed, strict=True):
        drawn += _boxes(item, place, whole, colours, 1)
    return picture(label, int(_HEIGHT), *drawn, cls="treemap")


def _items(scope: ScopeTime, whole: float) -> list[_Item]:
    """The parts of a scope, largest first, small ones and what is of no part together."""
    large = [p for p in scope.parts if p.exposed_ns > _LEAST_SHARE * whole]
    rest = scope.exposed_ns - sum(p.exposed_ns for p in large)
    found = [_Item(p.name, p.exposed_ns, p) for p in large]
    if rest > _LEAST_SHARE * whole:
        found.append(_Item("other" if scope.name else "no scope", rest, None))
    return sorted(found, key=lambda i: (-i.size, i.name))


def _boxes(
    item: _Item, place: _Place, whole: float, colours: Iterator[int], depth: int
) -> Iterator[Markup]:
    """A box with its name; one that holds others has no color of its own."""
    scope = item.scope
    inner = _Place(place.x + 3, place.y + _NAME, place.width - 6, place.height - _NAME - 3)
    opens = (
        scope is not None
        and depth < _DEPTH
        and sum(p.exposed_ns for p in scope.parts) > _OPENED * item.size
        and inner.width > 40
        and inner.height > 24
    )
    idle = scope is None and item.name == "waiting"
    colour = "track" if opens else "fill-idle" if idle else f"fill-{series(next(colours))}"
    yield _box(item, place, whole, colour)
    if not opens or scope is None:
        return
    items = _items(scope, whole)
    inside = squarified([i.size for i in items], inner)
    for part, where in zip(items, inside, strict=True):
        yield from _boxes(part, where, whole, colours, depth + 1)


def _box(item: _Item, place: _Place, whole: float, colour: str) -> Markup:
    path = item.scope.path if item.scope else item.name
    said = f"{path}: {format_duration(item.size)}, {item.size / whole:.1%} of the step"
    wide = place.width * WIDTH / _WIDTH
    name = fitting(item.name, wide - 35)
    label = f"{name} {item.size / whole:.0%}" if name and place.height > 16 else ""
    return tag(
        "svg",
        tag("title", said),
        tag("rect", width="100%", height="100%", cls=f"{colour} edge"),
        tag("text", label, x="5", y="14", cls="in-bar") if label else "",
        x=percent(place.x / _WIDTH),
        y=f"{place.y:.1f}",
        width=percent(place.width / _WIDTH),
        height=f"{place.height:.1f}",
    )


def squarified(sizes: Sequence[float], place: _Place) -> list[_Place]:
    """Places of boxes whose areas go by `sizes`, which fall, each as near to a square as rows allow.

    The method is that of Bruls, Huizing and van Wijk, "Squarified treemaps" (2000).
    """
    total = sum(sizes)
    if total <= 0 or place.width <= 0 or place.height <= 0:
        return [_Place(place.x, place.y, 0, 0) for _ in sizes]
    scale = place.width * place.height / total
    areas = [s * scale for s in sizes]
    found: list[_Place] = []
    while len(found) < len(areas):
        side = min(place.width, place.height)
        row = _row(areas[len(found) :], side)
        thick = sum(row) / side if side else 0.0
        along = 0.0
        tall = place.width >= place.height  # the row is a column at the left
        for area in row:
            length = area / thick if thick else 0.0
            found.append(
                _Place(place.x, place.y + along, thick, length)
                if tall
                else _Place(place.x + along, place.y, length, thick)
            )
            along += length
        place = (
            _Place(place.x + thick, place.y, place.width - thick, place.height)
            if tall
            else _Place(place.x, place.y + thick, place.width, place.height - thick)
        )
    return found


def _row(areas: Sequence[float], side: float) -> list[float]:
    """As many of the first areas as make boxes along `side` that are nearest to squares."""
    row = [areas[0]]
    for area in areas[1:]:
        if _worst([*row, area], side) > _worst(row, side):
            break
        row.append(area)
    return row


def _worst(row: Sequence[float], side: float) -> float:
    """The largest ratio of the sides of boxes in a row."""
    total = sum(row)
    if not total or not min(row):
        return float("inf")
    return max(side**2 * max(row) / total**2, total**2 / (side**2 * min(row)))
