"""The host's side of a step: from which moment each launch could run, and when the host waited.

What the host did itself becomes a chain of rows. Played with the durations of the device's rows it
gives the measured start of each launch that the host was late for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flint.ir.arrays import Float64s
from flint.tools.measure.profiles.profile import ActivityKind, CallKind, Profile

#: Calls that wait, by what for.
_WAITING = (CallKind.WAIT_DEVICE, CallKind.WAIT_STREAM, CallKind.WAIT_EVENT)
#: The launch latency is this part of the delays of kernels that found an idle device.
_LOW_PERCENTILE = 5
#: A call that returns so long before its copy ends did not wait for it.
_TOLERANCE_NS = 500.0


@dataclass(frozen=True, slots=True)
class HostEvent:
    """A launch (its call, `activities` in order of start), or a wait for `waited` (-1: nothing).

    `key_ns` orders events, `point_ns` is when what follows can run, both on the profile's clock.
    """

    key_ns: float
    point_ns: float
    activities: tuple[int, ...] = ()
    waited: int = -1

    @property
    def is_wait(self) -> bool:
        """Whether the host waited."""
        return not self.activities


def launch_latency_ns(profile: Profile) -> float:
    """From a call to the start of its first kernel where the device had nothing else to do.

    A low percentile over the whole profile; 0 where no kernel found an idle device.
    """
    a = profile.activities
    order = np.argsort(a.start_ns, kind="stable")
    called = order[a.call[order] >= 0]
    _, first = np.unique(a.call[called], return_index=True)
    called = called[first]
    begun = profile.calls.start_ns[a.call[called]]
    reached = np.maximum.accumulate(a.end_ns[order])
    at = np.searchsorted(a.start_ns[order], begun, side="right") - 1
    idle = (at >= 0) & (reached[np.maximum(at, 0)] <= begun)
    delays = (a.start_ns[called] - begun)[idle]
    delays = delays[delays > 0]
    return float(np.percentile(delays, _LOW_PERCENTILE)) if len(delays) else 0.0


def ready_ns(
    profile: Profile, rows: NDArray[np.int64], before: dict[int, tuple[int, ...]], begin_ns: float
) -> dict[int, float]:
    """For each activity the end of the last that it waits for on the device, else the step's begin."""
    ends = profile.activities.end_ns
    return {
        row: max((float(ends[w]) for w in before.get(row, ())), default=begin_ns)
        for row in rows.tolist()
    }


def host_events(
    profile: Profile, rows: NDArray[np.int64], keys: NDArray[np.float64], ready: dict[int, float]
) -> list[HostEvent]:
    """Launches and waits in order. `rows` are in launch order with their `keys`.

    The point of a launch is call + latency, or the kernel's start if that was earlier, or if the
    device had nothing else to do. Points rise: none is later than the next.
    """
    latency = launch_latency_ns(profile)
    events = _launches(profile, rows, keys, ready, latency)
    last = max((e.key_ns for e in events), default=-np.inf)
    events += [w for w in _waits(profile, rows) if w.key_ns <= last]
    events.sort(key=lambda e: (e.key_ns, e.is_wait))
    return _rising(events)


def _launches(
    profile: Profile,
    rows: NDArray[np.int64],
    keys: NDArray[np.float64],
    ready: dict[int, float],
    latency: float,
) -> list[HostEvent]:
    a = profile.activities
    by_call: dict[int, list[int]] = {}
    key_of: dict[int, float] = {}
    for row, key in zip(rows.tolist(), keys.tolist(), strict=True):
        call = int(a.call[row])
        if call >= 0:
            by_call.setdefault(call, []).append(row)
            key_of.setdefault(call, key)
    events = []
    for call, launched in by_call.items():
        first = min(launched, key=lambda r: float(a.start_ns[r]))
        start, point = float(a.start_ns[first]), float(profile.calls.start_ns[call]) + latency
        if start < point or ready[first] <= point:
            point = start
        events.append(HostEvent(key_of[call], point, tuple(launched)))
    return events


def _waits(profile: Profile, rows: NDArray[np.int64]) -> list[HostEvent]:
    """Calls that wait, and copies that their call waits for."""
    calls, a = profile.calls, profile.activities
    events = []
    launched = _Launched(profile, rows)
    for call in np.flatnonzero(np.isin(calls.kind, _WAITING)).tolist():
        end = float(calls.start_ns[call] + calls.duration_ns[call])
        waited = launched.waited_for(call, end)
        if waited >= 0:
            events.append(HostEvent(end, end, (), waited))
    ends = a.end_ns
    for row in rows[(a.kind[rows] == ActivityKind.COPY) & (a.call[rows] >= 0)].tolist():
        call = int(a.call[row])
        end = float(calls.start_ns[call] + calls.duration_ns[call])
        if end + _TOLERANCE_NS >= float(ends[row]):
            events.append(HostEvent(end, max(end, float(ends[row])), (), row))
    return events


class _Launched:
    """Activities of a step by stream, in order of start, to find what a call waits for."""

    def __init__(self, profile: Profile, rows: NDArray[np.int64]) -> None:
        self._profile, a = profile, profile.activities
        self._inside = set(rows.tolist())
        called = rows[a.call[rows] >= 0]
        self._streams: dict[int, tuple[NDArray[np.int64], Float64s, Float64s]] = {}
        for stream in np.unique(a.stream[called]).tolist():
            of = called[a.stream[called] == stream]
            of = of[np.argsort(a.start_ns[of], kind="stable")]
            begun = np.maximum.accumulate(profile.calls.start_ns[a.call[of]])
            over = np.maximum.accumulate(a.start_ns[of] + a.duration_ns[of])
            self._streams[stream] = (of, begun, over)

    def waited_for(self, call: int, end_ns: float) -> int:
        """The last to end of those launched before a waiting call that ended with it, -1 for none."""
        calls, a = self._profile.calls, self._profile.activities
        known, stream = int(calls.waits_for[call]), int(calls.stream[call])
        limit = end_ns + _TOLERANCE_NS
        if known >= 0:
            ended = float(a.start_ns[known] + a.duration_ns[known])
            return known if known in self._inside and ended <= limit else -1
        everywhere = stream < 0 or CallKind(int(calls.kind[call])) is CallKind.WAIT_DEVICE
        best, latest = -1, -np.inf
        for number, (rows, begun, over) in self._streams.items():
            if not everywhere and number != stream:
                continue
            before = int(np.searchsorted(begun, calls.start_ns[call]))
            at = min(before, int(np.searchsorted(over, limit, side="right"))) - 1
            if at >= 0 and over[at] > latest:
                best, latest = int(rows[at]), float(over[at])
        return best


def _rising(events: Sequence[HostEvent]) -> list[HostEvent]:
    """No point is later than that of a later event."""
    found: list[HostEvent] = []
    limit = np.inf
    for event in reversed(events):
        limit = min(limit, event.point_ns)
        found.append(HostEvent(event.key_ns, float(limit), event.activities, event.waited))
    return found[::-1]
