"""Small XSpaces and Chrome traces of XLA, written for tests."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from flint.frontends.profiles.xplane.messages import plane_class

Stats = Mapping[str, int | float | str | bytes]
_NONE: Stats = MappingProxyType({})
_NO_PROGRAMS: Mapping[str, bytes] = MappingProxyType({})


class Happened(NamedTuple):
    """An event: times in microseconds; `common` stats are of all events of the name."""

    name: str
    start_us: float
    duration_us: float
    stats: Stats = _NONE
    common: Stats = _NONE
    display: str = ""


class Recorded(NamedTuple):
    """A plane: lines by name."""

    name: str
    lines: Mapping[str, Sequence[Happened]]
    stats: Stats = _NONE
    programs: Mapping[str, bytes] = _NO_PROGRAMS


def xspace(*planes: Recorded, timestamp_ns: int = 0) -> bytes:
    """The bytes of an XSpace."""
    found = b""
    for plane in planes:
        data = _plane(plane, timestamp_ns).SerializeToString()
        found += b"\x0a" + _varint(len(data)) + data
    return found + b"\x22\x04host"  # hostnames, which nobody needs


def chrome(path: Path, *planes: Recorded) -> Path:
    """The same as Chrome JSON, packed."""
    events: list[dict[str, Any]] = []
    for pid, plane in enumerate(planes):
        events.append(_named("process_name", plane.name, pid=pid))
        for tid, (line, happened) in enumerate(plane.lines.items()):
            events.append(_named("thread_name", line, pid=pid, tid=tid))
            for e in happened:
                stats = {**e.common, **e.stats, "long_name": e.name}
                events.append(
                    {
                        "ph": "X", "pid": pid, "tid": tid, "name": e.display or e.name,
                        "ts": e.start_us, "dur": e.duration_us,
                        "args": {k: str(v) for k, v in stats.items()},
                    }
                )  # fmt: skip
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    return path


def _named(what: str, name: str, **where: int) -> dict[str, Any]:
    return {"ph": "M", "name": what, "args": {"name": name}, **where}


class _Tables:
    """Ids of names in a plane."""

    def __init__(self, plane: Any) -> None:
        self.plane = plane
        self.stats: dict[str, int] = {}
        self.events: dict[tuple[str, str, tuple[tuple[str, Any], ...]], int] = {}

    def fill(self, target: Any, stats: Stats) -> None:
        for name, value in stats.items():
            if name not in self.stats:
                self.stats[name] = len(self.stats) + 1
                entry = self.plane.stat_metadata.add(key=self.stats[name])
                entry.value.id, entry.value.name = self.stats[name], name.encode()
            stat = target.add(metadata_id=self.stats[name])
            if isinstance(value, str):
                stat.str_value = value.encode()
            elif isinstance(value, bytes):
                stat.bytes_value = value
            elif isinstance(value, float):
                stat.double_value = value
            else:
                stat.int64_value = value

    def event(self, name: str, display: str, common: Stats) -> int:
        key = (name, display, tuple(common.items()))
        if key not in self.events:
            self.events[key] = len(self.events) + 1
            entry = self.plane.event_metadata.add(key=self.events[key])
            entry.value.id, entry.value.name = self.events[key], name.encode()
            entry.value.display_name = display.encode()
            self.fill(entry.value.stats, common)
        return self.events[key]


def _plane(recorded: Recorded, timestamp_ns: int) -> Any:
    plane = plane_class()(name=recorded.name.encode())
    tables = _Tables(plane)
    for number, (name, events) in enumerate(recorded.lines.items()):
        line = plane.lines.add(id=number, name=name.encode(), timestamp_ns=timestamp_ns)
        for e in events:
            made = line.events.add(
                metadata_id=tables.event(e.name, e.display, e.common),
                offset_ps=round(e.start_us * 1e6),
                duration_ps=round(e.duration_us * 1e6),
            )
            tables.fill(made.stats, e.stats)
    tables.fill(plane.stats, recorded.stats)
    for name, proto in recorded.programs.items():
        tables.event(name, "", {"Hlo Proto": proto})
    return plane


def _varint(value: int) -> bytes:
    found = b""
    while value > 0x7F:
        found += bytes([value & 0x7F | 0x80])
        value >>= 7
    return found + bytes([value])
