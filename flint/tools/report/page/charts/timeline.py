"""The timeline of a rank class: a canvas that a script draws, and the numbers that it draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flint.backends.cost.memory.over_time import MemoryOverTime
from flint.text import format_duration, one_line, plural
from flint.tools.report.page.charts.bars import legend
from flint.tools.report.page.colours import TITLES, families, family
from flint.tools.report.page.markup import Markup, data, join, tag
from flint.tools.report.views.slices import Slices, TimelineSlice

#: Pixels of a stream, of the curve of memory, and of the axis of time (page.js has the same).
ROW, MEMORY, AXIS = 30, 56, 22
#: Letters of a name, and of all names of a timeline together; many names are shorter.
_LONGEST, _ALL_NAMES = 80, 500_000
_KEYS = (
    "Drag or use arrow keys to move, + and - to zoom, 0 to show the whole step, < and > to go "
    "from slice to slice, up and down from stream to stream; the wheel zooms while the picture "
    "has the focus. The critical path goes through underlined slices."
)


def timeline(name: str, slices: Slices, memory: MemoryOverTime | None, step_ns: float) -> Markup:
    """The picture with its buttons, a line that says what is chosen, and its data as `name`."""
    invitation = "Choose a slice to see its details."
    parts = (
        _buttons(name),
        _canvas(
            name, slices, AXIS + ROW * len(slices.streams) + (MEMORY if memory else 0), step_ns
        ),
        tag("p", invitation, id=f"{name}-said", cls="said", aria_live="polite"),
        legend([(TITLES[f], f) for f in families(s.kind for s in slices.slices)]),
        tag("p", f"{_kept(slices)}. {_KEYS}", id=f"{name}-keys", cls="small"),
        data(f"{name}-data", _numbers(slices, memory, step_ns)),
    )
    return join(parts)


def _buttons(name: str) -> Markup:
    """What the keyboard does too, for a pointer: the words are those of page.js."""
    buttons = (
        tag("button", said, type="button", data_for=name, data_does=does, aria_label=meaning)
        for said, does, meaning in (
            ("\N{MINUS SIGN}", "out", "zoom out"),
            ("+", "in", "zoom in"),
            ("\N{LEFTWARDS ARROW}", "left", "earlier"),
            ("\N{RIGHTWARDS ARROW}", "right", "later"),
            ("whole step", "all", "show the whole step"),
        )
    )
    return tag("div", *buttons, cls="buttons")


def _canvas(name: str, slices: Slices, height: int, step_ns: float) -> Markup:
    streams = ", ".join(slices.streams)
    label = f"Timeline of {slices.name}: {streams} over {format_duration(step_ns)}"
    return tag(
        "canvas",
        label,
        id=name,
        cls="timeline",
        tabindex="0",
        role="application",
        aria_label=label,
        aria_describedby=f"{name}-keys",
        height=height,
        data_height=height,
    )


def _kept(slices: Slices) -> str:
    """How many slices there are, and what is omitted."""
    kept = f"{plural(len(slices.slices), 'slice')} of {slices.name}"
    if not slices.left_out:
        return kept
    rest = f"{slices.left_out:,} shorter ones, {format_duration(slices.left_out_ns)} together"
    return f"{kept}, the longest; {rest}, are omitted"


def _numbers(slices: Slices, memory: MemoryOverTime | None, step_ns: float) -> dict[str, Any]:
    """What the script draws: starts and lengths in ns, each start after that of the slice before."""
    rows: dict[tuple[str, ...], int] = {}
    number = [rows.setdefault(_about(s), len(rows)) for s in slices.slices]
    letters = min(_LONGEST, max(16, _ALL_NAMES // (4 * len(rows) or 1)))
    starts = [round(s.start_ns) for s in slices.slices]
    return {
        "end": round(step_ns),
        "streams": [one_line(s) for s in slices.streams],
        "rows": [[_end(name, letters) for name in row] for row in rows],
        "row": number,
        "stream": [slices.streams.index(s.stream) for s in slices.slices],
        "start": _steps(starts),
        "critical": _steps([n for n, s in enumerate(slices.slices) if s.critical]),
        "length": [max(1, round(s.duration_ns)) for s in slices.slices],
        **_memory(memory),
    }


def _about(s: TimelineSlice) -> tuple[str, ...]:
    """What a slice says when it is chosen; its color is the first."""
    return family(s.kind), s.kind, s.over, s.phase, s.opcode, s.scope, s.location


def _end(text: str, letters: int) -> str:
    """A name, of a very long one its end."""
    return one_line(text if len(text) <= letters else f"\N{HORIZONTAL ELLIPSIS}{text[-letters:]}")


def _memory(memory: MemoryOverTime | None) -> dict[str, Any]:
    if memory is None:
        return {}
    return {
        "at": _steps([round(p.start_ns) for p in memory.points]),
        "bytes": [p.num_bytes for p in memory.points],
        "peak": memory.peak_bytes,
    }


def _steps(values: Sequence[int]) -> list[int]:
    """The first value, then how much larger each is than the one before: short to write."""
    return [b - a for a, b in zip((0, *values), values, strict=False)]
