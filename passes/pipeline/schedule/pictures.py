"""Pictures of schedules: what each rank runs when, as text and as SVG.

Stages are equal, and sending takes no time (`simulate.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from flint.passes.pipeline.schedule.simulate import TimedSchedule
from flint.passes.pipeline.schedule.units import Unit, UnitWork
from flint.text import plural

#: What stands before the number of the microbatch.
LETTERS = {
    UnitWork.FORWARD: "",
    UnitWork.BACKWARD: "b",
    UnitWork.INPUT_BACKWARD: "b",
    UnitWork.WEIGHT_BACKWARD: "w",
}


class _Box(NamedTuple):
    rank: int
    start: int
    length: int
    unit: Unit


def picture(timed: TimedSchedule) -> str:
    """Draw the schedule as text, a line for each rank.

    `3` is the forward pass of microbatch 3, `b3` its backward pass (or the part that the stage
    before waits for), `w3` the gradients of the weights; `3'` is in the rank's second chunk.
    A point is a time unit in which the rank waits.
    """
    boxes, ranks = _boxes(timed), timed.placement.ranks
    # each label and a space after it must fit into its box
    width = max(-(-(len(_label(box.unit)) + 1) // box.length) for box in boxes)
    name_width = len(f"rank {ranks - 1}")
    rows = [[".".ljust(width)] * timed.length for _ in range(ranks)]
    for box in boxes:
        cells = _label(box.unit).ljust(width * box.length)
        rows[box.rank][box.start] = cells
        rows[box.rank][box.start + 1 : box.start + box.length] = [""] * (box.length - 1)
    return "".join(
        f"{f'rank {rank}'.ljust(name_width)} | {''.join(row).rstrip()}\n"
        for rank, row in enumerate(rows)
    )


def _boxes(timed: TimedSchedule) -> list[_Box]:
    return [
        _Box(rank, int(span.start), int(span.end - span.start), unit)
        for rank, order in enumerate(timed.orders)
        for unit, span in zip(order, timed.spans[rank], strict=True)
    ]


def _label(unit: Unit) -> str:
    return f"{LETTERS[unit.work]}{unit.microbatch}{chr(39) * unit.chunk}"


# Sizes in pixels.
_TIME_UNIT, _ROW, _LEFT, _TOP, _LEGEND = 24, 28, 56, 8, 30

#: Colors of the chunks, from the first; after the last they begin again.
_FILLS = {
    UnitWork.FORWARD: ("#9ec5f4", "#5f9be8", "#c7e0fb", "#3f7fd6"),
    UnitWork.BACKWARD: ("#a8dba8", "#6cbf72", "#cdebcb", "#4aa354"),
    UnitWork.INPUT_BACKWARD: ("#a8dba8", "#6cbf72"),
    UnitWork.WEIGHT_BACKWARD: ("#f6c28b", "#eb9f4e"),
}
_NAMES = {
    UnitWork.FORWARD: "forward",
    UnitWork.BACKWARD: "backward",
    UnitWork.INPUT_BACKWARD: "backward of the input",
    UnitWork.WEIGHT_BACKWARD: "backward of the weights",
}


def svg(timed: TimedSchedule) -> str:
    """Draw the schedule as an SVG document of its own, a row for each rank.

    Numbers are microbatches, colors are passes, and their shades chunks.
    """
    boxes, ranks, length = _boxes(timed), timed.placement.ranks, timed.length
    works = sorted({box.unit.work for box in boxes})
    width = max(_LEFT + length * _TIME_UNIT + 8, _LEFT + 190 * len(works))
    height = _TOP + ranks * _ROW + _LEGEND
    title = f"{timed.name}: {plural(ranks, 'rank')}, {_microbatches(timed.microbatches)}"
    if timed.chunks > 1:
        title += f", {timed.chunks} chunks"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"',
        f'  viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12" fill="#333333">',
        "<!-- flint schedules -->",  # by it `flint.io.outputs` knows its own
        f"<title>{title}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        *_tracks(ranks, length),
        '<g text-anchor="middle">',
        *(line for box in boxes for line in _drawn(box)),
        "</g>",
        *_legend(works, _TOP + ranks * _ROW + 8),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _microbatches(count: int) -> str:
    return f"{count} microbatch{'es' if count > 1 else ''}"


def _tracks(ranks: int, length: int) -> Iterator[str]:
    for rank in range(ranks):
        y = _TOP + rank * _ROW
        yield f'<text x="8" y="{y + 17}">rank {rank}</text>'
        yield _rectangle(_LEFT, y, length * _TIME_UNIT, "#eeeeee")


def _drawn(box: _Box) -> Iterator[str]:
    x, y = _LEFT + box.start * _TIME_UNIT, _TOP + box.rank * _ROW
    fills = _FILLS[box.unit.work]
    width = box.length * _TIME_UNIT
    # a pixel of the track stays to be seen between two passes
    yield _rectangle(x, y, width - 1, fills[box.unit.chunk % len(fills)])
    yield f'<text x="{x + width // 2}" y="{y + 17}">{box.unit.microbatch}</text>'


def _legend(works: list[UnitWork], y: int) -> Iterator[str]:
    for place, work in enumerate(works):
        x = _LEFT + place * 190
        yield _rectangle(x, y, 14, _FILLS[work][0], height=14)
        yield f'<text x="{x + 20}" y="{y + 11}">{_NAMES[work]}</text>'


def _rectangle(x: int, y: int, width: int, fill: str, height: int = 24) -> str:
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{fill}"/>'
