"""Planes and their events, whichever of the two formats they were read from.

Times are in nanoseconds. Stats are what is said of an event: those of the event, and those of all
events of its name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Value = int | float | str | bytes
#: No profile is longer than a century.
_MOST_NS = 3.2e18


@dataclass(frozen=True, slots=True)
class PlaneEvent:
    """`name` is the display name where there is one, `text` the full one (of TPU ops: their HLO)."""

    name: str
    text: str
    start_ns: float
    duration_ns: float
    stats: dict[str, Value]

    @property
    def end_ns(self) -> float:
        """When it ends."""
        return self.start_ns + self.duration_ns

    def number(self, name: str, default: int = -1) -> int:
        """A stat as a whole number, `default` where it is missing, none, or beyond 63 bits."""
        return whole(self.stats.get(name), default)

    def word(self, name: str) -> str:
        """A stat as text, "" where it is missing."""
        return text(self.stats, name)


@dataclass(frozen=True, slots=True)
class PlaneLine:
    """A thread, a stream, or one kind of things that a device does."""

    number: int
    name: str
    events: list[PlaneEvent]


@dataclass(frozen=True, slots=True)
class Plane:
    """A device, or the host. `left_out` events had times that cannot be."""

    name: str
    stats: dict[str, Value] = field(default_factory=dict)
    lines: list[PlaneLine] = field(default_factory=list)
    left_out: int = 0


def text(stats: dict[str, Value], name: str) -> str:
    """A stat as text, "" where it is missing. JSON has some in quotes of their own."""
    return _text(stats.get(name, "")).strip('"')


def whole(value: Value | None, default: int) -> int:
    """A value of a stat as a whole number of 63 bits, else `default`."""
    try:
        found = int(_text(value).strip('"')[:40] if isinstance(value, str | bytes) else value or 0)
    except (ValueError, OverflowError):
        return default
    if value is None:
        return default
    return found if abs(found) < 1 << 63 else default


def is_time(start_ns: float, duration_ns: float) -> bool:
    """Whether an event of a profile can have these times."""
    return math.isfinite(start_ns) and abs(start_ns) < _MOST_NS and 0 <= duration_ns < _MOST_NS


class PlaneNames:
    """Names and stats of a plane's tables of metadata."""

    def __init__(self, plane: Any) -> None:
        self._stats = {e.key: _text(e.value.name) for e in plane.stat_metadata}
        self._events = {
            e.key: (_text(e.value.name), _text(e.value.display_name), self.stats(e.value.stats))
            for e in plane.event_metadata
        }

    def stats(self, stats: Any) -> dict[str, Value]:
        """Stats by name; those without a name or a value are omitted."""
        found: dict[str, Value] = {}
        for stat in stats:
            name = self._stats.get(stat.metadata_id)
            kind = stat.WhichOneof("value")
            if name and kind:
                value = getattr(stat, kind)
                if kind == "ref_value":
                    value = self._stats.get(value, "")
                found[name] = _text(value) if kind == "str_value" else value
        return found

    def events(self, line: Any, zero_ns: int, needed: frozenset[str]) -> Iterator[PlaneEvent]:
        """Events of an XLine, their times from `zero_ns`: floats do not hold those from 1970.

        Unless `needed` is empty, only those of which one of its stats is said.
        """
        zero = line.timestamp_ns - zero_ns
        wanted = {number for number, name in self._stats.items() if name in needed}
        for event in line.events:
            if needed and not any(s.metadata_id in wanted for s in event.stats):
                continue
            full, display, common = self._events.get(event.metadata_id, ("", "", {}))
            own = self.stats(event.stats)
            yield PlaneEvent(
                name=display or full,
                text=full,
                start_ns=zero + event.offset_ps / 1000,
                duration_ns=event.duration_ps / 1000,
                stats={**common, **own} if common else own,
            )

    def descriptions(self) -> Iterator[tuple[int, str, dict[str, Value]]]:
        """Id, name and stats of each kind of event."""
        for key, (name, _, stats) in self._events.items():
            yield key, name, stats


def decoded(plane: Any, zero_ns: int, needed: frozenset[str] = frozenset()) -> Plane:
    """An XPlane with its lines, times from `zero_ns`; of events those with `needed` stats, if any."""
    names = PlaneNames(plane)
    lines, left_out = [], 0
    for line in plane.lines:
        found = list(names.events(line, zero_ns, needed))
        events = [e for e in found if is_time(e.start_ns, e.duration_ns)]
        left_out += len(found) - len(events)
        lines.append(PlaneLine(line.id, _text(line.name), events))
    return Plane(_text(plane.name), names.stats(plane.stats), lines, left_out)


def _text(value: Value) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
