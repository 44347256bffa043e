"""Memory over time: a curve in steps, the chip's memory as a line, the peak as a point."""

from __future__ import annotations

from flint.backends.cost.memory.over_time import MemoryOverTime
from flint.text import format_bytes, format_duration
from flint.tools.report.page.charts.bars import percent
from flint.tools.report.page.charts.picture import picture, round_steps
from flint.tools.report.page.markup import Markup, tag

_HEIGHT = 240
#: The plot is this high, the rest is the axis of time below it and room above.
_TOP, _BOTTOM = 16, 212
#: Units of the stretched drawing.
_UNITS = 10_000


def memory_chart(memory: MemoryOverTime, end_ns: float) -> Markup:
    """The curve from the start of the step to its end."""
    roof = memory.capacity_bytes if 0 < memory.capacity_bytes < 4 * memory.peak_bytes else 0
    most = max(memory.peak_bytes, roof) * 1.06 or 1.0
    label = (
        f"Memory in use over the step on a device of {memory.name}: at most "
        f"{format_bytes(memory.peak_bytes)}, at {format_duration(memory.peak_ns)}"
    )
    return picture(
        label,
        _HEIGHT,
        *_lines(most),
        _area(memory, end_ns, most),
        *_sizes(most),
        *_roof(roof, most),
        *_peak(memory, end_ns, most),
        *_times(end_ns),
    )


def _y(size: float, most: float) -> float:
    return _BOTTOM - (_BOTTOM - _TOP) * size / most


def _lines(most: float) -> list[Markup]:
    levels = (f"{_y(size, most):.1f}" for size in round_steps(most, 5, base=2.0))
    return [tag("line", x1="0", x2="100%", y1=y, y2=y, cls="grid") for y in levels]


def _sizes(most: float) -> list[Markup]:
    """What the lines stand for, over the curve."""
    return [
        tag("text", format_bytes(int(size)), x="3", y=f"{_y(size, most) - 3:.1f}", cls="strong")
        for size in round_steps(most, 5, base=2.0)
        if size
    ]


def _area(memory: MemoryOverTime, end_ns: float, most: float) -> Markup:
    """The curve in a drawing of its own, which is stretched to the width of the page."""
    points = [(p.start_ns, p.num_bytes) for p in memory.points]
    path = [f"M0 {_BOTTOM}"]
    for start, size in points:
        path.append(f"H{_UNITS * start / end_ns if end_ns else 0:.0f}V{_y(size, most):.1f}")
    path.append(f"H{_UNITS}V{_BOTTOM}Z")
    return tag(
        "svg",
        tag("path", d="".join(path), cls="area"),
        viewBox=f"0 0 {_UNITS} {_HEIGHT}",
        preserveAspectRatio="none",
        width="100%",
        height=_HEIGHT,
    )


def _roof(roof: int, most: float) -> list[Markup]:
    if not roof:
        return []
    y = _y(roof, most)
    said = f"memory of the chip: {format_bytes(roof)}"
    return [
        tag("line", x1="0", x2="100%", y1=f"{y:.1f}", y2=f"{y:.1f}", cls="roof"),
        tag("text", said, x="99.5%", y=f"{y + 14:.1f}", cls="strong end"),
    ]


def _peak(memory: MemoryOverTime, end_ns: float, most: float) -> list[Markup]:
    share = memory.peak_ns / end_ns if end_ns else 0.0
    y = _y(memory.peak_bytes, most)
    beside = "end" if share > 0.6 else "start"
    moved = share + (-0.008 if beside == "end" else 0.008)
    said = f"peak {format_bytes(memory.peak_bytes)}"
    return [
        tag("circle", cx=percent(share), cy=f"{y:.1f}", r="4", cls="mark"),
        tag("text", said, x=percent(moved), y=f"{max(y - 4, 11):.1f}", cls=f"strong {beside}"),
    ]


def _times(end_ns: float) -> list[Markup]:
    found = []
    for moment in round_steps(end_ns, 6):
        share = moment / end_ns if end_ns else 0.0
        if share > 0.96:
            continue
        where = "start" if not share else "middle"
        at, name = percent(share), format_duration(moment) if moment else "0"
        found.append(tag("line", x1=at, x2=at, y1=_BOTTOM, y2=_BOTTOM + 4, cls="axis"))
        found.append(tag("text", name, x=at, y=_BOTTOM + 18, cls=f"tick {where}"))
    return found
