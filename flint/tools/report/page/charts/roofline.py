"""Kernels under the roofs of a chip: what they reach against how much they calculate per byte."""

from __future__ import annotations

import math
from typing import NamedTuple

from flint.text import format_bytes, format_count, format_duration, format_flops
from flint.tools.report.page.charts.bars import percent
from flint.tools.report.page.charts.picture import decades, picture
from flint.tools.report.page.colours import family
from flint.tools.report.page.markup import Markup, tag
from flint.tools.report.views.roofline import RooflinePoint, RooflineView

_HEIGHT, _TOP, _BOTTOM = 380, 12, 344
#: Where the plot begins and ends, as shares of the width.
_LEFT, _RIGHT = 0.0, 1.0
#: Points that are drawn, those of most time, and radii of points in pixels.
POINTS = 400
_SMALLEST, _LARGEST = 3.0, 16.0


class _Scale(NamedTuple):
    """Powers of ten at the edges: flops per byte along, flops per second up."""

    left: float
    right: float
    low: float
    high: float

    def x(self, value: float) -> float:
        return (math.log10(value) - self.left) / (self.right - self.left)

    def y(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return _BOTTOM - (_BOTTOM - _TOP) * share


def drawn_points(found: RooflineView) -> list[RooflinePoint]:
    """The points that have a place in the plot: they calculate, move bytes and take time."""
    return [p for p in found.points if p.flops and p.moved_bytes and p.total_ns][:POINTS]


def roofline_chart(found: RooflineView) -> Markup:
    """The plot, with a point for each kind of kernel, the larger the more time it takes."""
    points = drawn_points(found)
    scale = _scale(found, points)
    whole = sum(p.total_ns for p in found.points) or 1.0
    label = f"Roofline of {found.chip}: {len(points)} kinds of kernels"
    return picture(
        label,
        _HEIGHT,
        *_grid(scale),
        *_roofs(found, points, scale),
        *(_point(p, whole, scale) for p in points),
    )


def _scale(found: RooflineView, points: list[RooflinePoint]) -> _Scale:
    peak = max(found.peak_flops_per_s.values())
    ridge = peak / found.bandwidth_bytes_per_s
    across = [p.flops_per_byte for p in points] + [ridge]
    up = [p.flops_per_s for p in points] + [peak]
    along, upward = decades(min(across) * 0.8, max(across) * 1.2), decades(min(up), peak * 1.3)
    low = max(upward[0], upward[-1] - 7)
    left = max(along[0], along[-1] - 8)
    return _Scale(left, along[-1], low, upward[-1])


def _grid(scale: _Scale) -> list[Markup]:
    lines = []
    for power in range(int(scale.low), int(scale.high) + 1):
        y = scale.y(10.0**power)
        lines.append(tag("line", x1="0", x2="100%", y1=f"{y:.1f}", y2=f"{y:.1f}", cls="grid"))
        if scale.low < power < scale.high:
            name = f"{format_flops(10**power) if power >= 0 else 0}/s"
            lines.append(tag("text", name, x="2", y=f"{y - 3:.1f}", cls="tick"))
    for power in range(int(scale.left), int(scale.right) + 1):
        x = percent(scale.x(10.0**power))
        lines.append(tag("line", x1=x, x2=x, y1=_TOP, y2=_BOTTOM, cls="grid"))
        if scale.left < power < scale.right:
            name = f"{10.0**power:g}"
            lines.append(tag("text", name, x=x, y=_BOTTOM + 16, cls="tick middle"))
    title = "flops per byte moved"
    return [*lines, tag("text", title, x="50%", y=_BOTTOM + 32, cls="tick middle")]


def _roofs(found: RooflineView, points: list[RooflinePoint], scale: _Scale) -> list[Markup]:
    """The memory's slope up to the highest peak, and a level line for each peak that is used."""
    bandwidth = found.bandwidth_bytes_per_s
    used = {p.dtype.partition(":")[0] for p in points}
    levels: dict[float, list[str]] = {}
    for dtype, peak in found.peak_flops_per_s.items():
        if dtype in used:
            levels.setdefault(peak, []).append(dtype)
    highest = max(levels, default=max(found.peak_flops_per_s.values()))
    start = max(10.0**scale.left, 10.0**scale.low / bandwidth)
    middle = math.sqrt(start * highest / bandwidth)
    drawn = [
        _line(scale, (start, start * bandwidth), (highest / bandwidth, highest)),
        tag(
            "text",
            f"memory {bandwidth / 1e12:.3g} TB/s",
            x=percent(scale.x(middle) - 0.01),
            y=f"{scale.y(middle * bandwidth) - 10:.1f}",
            cls="tick end",
        ),
    ]
    for peak, names in sorted(levels.items()):
        drawn.append(_line(scale, (peak / bandwidth, peak), (10.0**scale.right, peak)))
        said = f"{', '.join(sorted(names))} {peak / 1e12:,.0f} TFLOP/s"
        drawn.append(tag("text", said, x="99.5%", y=f"{scale.y(peak) - 4:.1f}", cls="tick end"))
    return drawn


def _line(scale: _Scale, start: tuple[float, float], end: tuple[float, float]) -> Markup:
    return tag(
        "line",
        x1=percent(scale.x(start[0])),
        y1=f"{scale.y(start[1]):.1f}",
        x2=percent(scale.x(end[0])),
        y2=f"{scale.y(end[1]):.1f}",
        cls="roof",
    )


def _point(p: RooflinePoint, whole: float, scale: _Scale) -> Markup:
    share = p.total_ns / whole
    radius = _SMALLEST + (_LARGEST - _SMALLEST) * min(1.0, math.sqrt(share / 0.2))
    x = min(max(scale.x(p.flops_per_byte), 0.0), 1.0)
    y = min(scale.y(p.flops_per_s), float(_BOTTOM))
    return tag(
        "circle",
        tag("title", _said(p, share)),
        cx=percent(x),
        cy=f"{y:.1f}",
        r=f"{radius:.1f}",
        cls=f"fill-{family(p.kind)} point",
    )


def _said(p: RooflinePoint, share: float) -> str:
    place = ", ".join(filter(None, (p.scope, p.location)))
    return (
        f"{p.kind} {p.dtype} {p.phase} {place}: {format_count(p.count)} x {format_flops(p.flops)}, "
        f"{format_bytes(p.moved_bytes)}; {format_flops(int(p.flops_per_s))}/s, "
        f"{format_duration(p.total_ns)} ({share:.1%} of kernels' time)"
    )
