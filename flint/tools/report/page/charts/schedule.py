"""The schedule of a pipeline as a picture: a row for each rank class, a box for each pass."""

from __future__ import annotations

from flint.text import format_duration
from flint.tools.report.page.charts.bars import percent
from flint.tools.report.page.charts.picture import picture
from flint.tools.report.page.colours import PHASES
from flint.tools.report.page.markup import Markup, tag
from flint.tools.report.views.pipeline import Box, PipelineLane, PipelineTimeline

_ROW = 26
#: Rank classes that are drawn at most, and boxes; with more boxes those of least time are omitted.
LANES, BOXES = 64, 2500
#: Boxes of a smaller share of the step have no number.
_NUMBERED = 0.012


def schedule_chart(found: PipelineTimeline) -> Markup:
    """The picture. Boxes have the numbers of microbatches, and light ones are of later chunks."""
    lanes = found.lanes[:LANES]
    least = _least([b for lane in lanes for b in lane.boxes])
    label = f"What each of {len(lanes)} rank classes computes when, over {format_duration(found.end_ns)}"
    rows = [box for at, lane in enumerate(lanes) for box in _lane(lane, at, found.end_ns, least)]
    drawn = picture(label, _ROW * len(lanes), *rows)
    names = tag("div", *(tag("span", x.name.partition(":")[0]) for x in lanes), cls="names")
    return tag("div", names, drawn, cls="lanes")


def _least(boxes: list[Box]) -> float:
    """How long a box must be to be drawn."""
    if len(boxes) <= BOXES:
        return 0.0
    return sorted((b.end_ns - b.start_ns for b in boxes), reverse=True)[BOXES]


def _lane(lane: PipelineLane, at: int, end_ns: float, least: float) -> list[Markup]:
    track = tag("rect", x="0", y=at * _ROW, width="100%", height=_ROW - 3, cls="track")
    boxes = [_box(b, at, end_ns, lane.name) for b in lane.boxes if b.end_ns - b.start_ns >= least]
    return [track, *boxes]


def _box(box: Box, at: int, end_ns: float, lane: str) -> Markup:
    share = (box.end_ns - box.start_ns) / end_ns if end_ns else 0.0
    what = box.work.replace("_", " ")
    which = f" of microbatch {box.microbatch}" if box.microbatch >= 0 else ""
    chunk = f", chunk {box.chunk}" if box.chunk > 0 else ""
    length = format_duration(box.end_ns - box.start_ns)
    shade = f" chunk-{box.chunk % 2}" if box.chunk > 0 else ""
    number = (
        tag("text", box.microbatch, x="50%", y="16", cls="in-bar middle")
        if box.microbatch >= 0 and share > _NUMBERED
        else ""
    )
    return tag(
        "svg",
        tag("title", f"{lane}: {what}{which}{chunk}, {length}"),
        tag("rect", width="100%", height="100%", cls=f"fill-{PHASES[box.work]} edge{shade}"),
        number,
        x=percent(box.start_ns / end_ns if end_ns else 0.0),
        y=at * _ROW,
        width=percent(share),
        height=_ROW - 3,
    )
