"""The host plane: launches by correlation id, steps, and what the allocators of devices held."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field

from flint.tools.measure.profiles.kineto.calls import kind_of_call
from flint.tools.measure.profiles.xplane.planes import Plane, PlaneEvent

#: What events of the host need to be read: frames of Python have nothing.
NEEDED = frozenset(("step_num", "correlation_id", "allocator_name"))
_ALLOCATOR = re.compile(r"^[GT]PU_(\d+)_bfc$")


@dataclass(frozen=True, slots=True)
class Launch:
    """A call of the runtime on a thread."""

    thread: int
    event: PlaneEvent
    correlation: int


@dataclass(frozen=True)
class Host:
    """What the host plane says of all devices. `peak_bytes` is by device."""

    launches: tuple[Launch, ...] = ()
    steps: tuple[tuple[int, PlaneEvent], ...] = ()
    peak_bytes: dict[int, int] = field(default_factory=dict)

    def calls_of(self, correlations: set[int]) -> list[Launch]:
        """Calls that launched one of these, and those of the same threads that launched nothing."""
        own = [c for c in self.launches if c.correlation in correlations]
        threads = {c.thread for c in own}
        launched = {c.correlation for c in own}
        waits = [
            c
            for c in self.launches
            if c.thread in threads and c.correlation not in launched and _only_waits(c)
        ]
        return sorted(own + waits, key=lambda c: c.event.start_ns)


def _only_waits(launch: Launch) -> bool:
    kind = kind_of_call(launch.event.name)
    return kind.name.startswith(("WAIT", "STREAM", "RECORD"))


def host_of(planes: list[Plane]) -> Host:
    """The planes of the host, read."""
    launches: list[Launch] = []
    steps: list[tuple[int, PlaneEvent]] = []
    peaks: dict[int, int] = defaultdict(int)
    for plane in planes:
        for thread, line in enumerate(plane.lines):
            for event in line.events:
                if "step_num" in event.stats:
                    steps.append((thread, event))
                elif "correlation_id" in event.stats:
                    launches.append(Launch(thread, event, event.number("correlation_id")))
                elif found := _ALLOCATOR.match(event.word("allocator_name")):
                    device = int(found[1][:9])
                    peaks[device] = max(peaks[device], event.number("peak_bytes_in_use", 0))
    return Host(tuple(launches), tuple(steps), dict(peaks))
