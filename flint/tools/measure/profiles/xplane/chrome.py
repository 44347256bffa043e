"""The Chrome JSON that jax.profiler writes (`*.trace.json.gz`, `perfetto_trace.json.gz`) as planes.

Processes are planes and threads are lines by their names; arguments are the stats of xplane.pb, as
text. The programs are not in it, so that shapes are known only where the operations' text has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flint.errors import FlintError, Malformed
from flint.io.bounded import parse_json
from flint.tools.measure.profiles.profile import Profile
from flint.tools.measure.profiles.source import whole_profile
from flint.tools.measure.profiles.xplane.modules import Programs
from flint.tools.measure.profiles.xplane.planes import Plane, PlaneEvent, PlaneLine, Value, is_time
from flint.tools.measure.profiles.xplane.reader import profiles_of

#: jax.profiler writes a million events at most.
MOST_BYTES = 1 << 29
_PROCESS = re.compile(rb'"name"\s*:\s*"/(device:[A-Z]+:\d|host:CPU)')


def recognizes(head: bytes) -> bool:
    """Whether a file is a Chrome trace with XLA's names of processes."""
    return (
        head.lstrip()[:1] == b"{"
        and b'"traceEvents"' in head
        and b'"schemaVersion"' not in head
        and _PROCESS.search(head) is not None
    )


def read(path: Path) -> tuple[Profile, ...]:
    """Profiles of the devices of a Chrome trace of XLA.

    Raises FlintError FL824 (no such trace), FL825 (nothing of a device), FL801, FL803, FL806.
    """
    try:
        document = parse_json(whole_profile(path, MOST_BYTES))
    except Malformed as error:
        raise _broken(path, str(error)) from error
    events = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(events, list):
        raise _broken(path, "it has no list traceEvents")
    planes = _planes([e for e in events if isinstance(e, dict)])
    return profiles_of(planes, Programs(), str(path), "xla chrome trace", 0, [])


def _planes(events: list[dict[str, Any]]) -> list[Plane]:
    """Planes with the lines of each thread that has a name."""
    processes = dict(_named(events, "process_name", "pid"))
    threads = dict(_named(events, "thread_name", "pid", "tid"))
    found: dict[object, list[PlaneEvent]] = {key: [] for key in threads}
    left_out: dict[object, int] = {}
    for event in events:
        if event.get("ph") != "X":
            continue
        pid = event.get("pid")
        made = _event(event)
        if made is None:
            left_out[pid] = left_out.get(pid, 0) + 1
        elif isinstance(pid, int | str) and isinstance(tid := event.get("tid"), int | str):
            found.setdefault((pid, tid), []).append(made)
    return [
        Plane(
            name.partition(" ")[0] if name.startswith("/device:") else name,
            lines=[
                PlaneLine(0, threads.get(key, ""), in_line)
                for key, in_line in found.items()
                if isinstance(key, tuple) and key[0] == pid[0]
            ],
            left_out=left_out.get(pid[0], 0),
        )
        for pid, name in processes.items()
        if isinstance(pid, tuple)
    ]


def _named(events: list[dict[str, Any]], what: str, *keys: str) -> Iterator[tuple[object, str]]:
    for event in events:
        arguments = event.get("args")
        if event.get("ph") == "M" and event.get("name") == what and isinstance(arguments, dict):
            key = tuple(event.get(k) for k in keys)
            if all(isinstance(k, int | str) for k in key):
                yield key, str(arguments.get("name", ""))


def _event(event: dict[str, Any]) -> PlaneEvent | None:
    start, duration = event.get("ts"), event.get("dur", 0)
    if not isinstance(start, int | float) or not isinstance(duration, int | float):
        return None
    if not is_time(start * 1e3, duration * 1e3):
        return None
    arguments = event.get("args")
    stats: dict[str, Value] = {}
    if isinstance(arguments, dict):
        stats = {k: v for k, v in arguments.items() if isinstance(v, int | float | str)}
    name = str(event.get("name", ""))
    return PlaneEvent(name, str(stats.get("long_name", name)), start * 1e3, duration * 1e3, stats)


def _broken(path: Path, why: str) -> FlintError:
    return FlintError(
        "FL824",
        f"{path} is not a Chrome trace of XLA: {why}",
        help="give the .xplane.pb beside it, which contains more",
    )
