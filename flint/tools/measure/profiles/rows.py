"""One rank's step -> a Program: rows of host and device that play back at their measured times."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flint.frontends.torch_world.program.groups import Channels, Messages
from flint.ir.arrays import Float64s
from flint.ir.builder import ProgramBuilder
from flint.ir.mesh import Mesh
from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Program
from flint.tools.measure.profiles.attribution import ActivityOrigins
from flint.tools.measure.profiles.contents import Contents
from flint.tools.measure.profiles.profile import ActivityKind, CallKind, Profile
from flint.tools.measure.profiles.ranks import Aligned, Recorded
from flint.tools.measure.profiles.steps import launched_at
from flint.tools.measure.profiles.streams import lanes_of, main_stream, waits_of

# The host's side of a step: from which moment each launch could run, and when the host waited.
#
# What the host did itself becomes a chain of rows. Played with the durations of the device's rows it
# gives the measured start of each launch that the host was late for.

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


#: Opcodes of rows of the host, and of a pause of the device between two kernels.
LAUNCH, WAIT, GAP = "host.launch", "host.wait", "host.gap"
HOST_STREAM = "host"
#: Shorter pauses are left to the next one: starts are as exact as this.
_LEAST_GAP_NS = 250.0


@dataclass(frozen=True)
class Shared:
    """What the programs of a workload have in common. `problems` counts sentences for the user."""

    mesh: Mesh
    world: int
    groups: tuple[tuple[int, ...], ...]
    channels: Channels
    problems: Counter[str]


class ProgramOfProfile:
    """Makes the program of one rank. Times of all ranks count from `origin_ns`, on one clock.

    `begin_ns` is when this rank's step begins; `span_ns`, there after `build`, is from the origin to
    the end of the last activity.
    """

    def __init__(
        self,
        recorded: Recorded,
        shared: Shared,
        aligned: Aligned,
        *,
        origin_ns: float,
        begin_ns: float,
    ) -> None:
        self._profile, self._shared = recorded.profile, shared
        shift = aligned.shift_ns[recorded.rank]
        self._zero = origin_ns - shift
        self._begin = begin_ns - origin_ns
        self._begin_here = begin_ns - shift  # on the profile's own clock
        self._rows = recorded.step.activities
        self._transfer = aligned.transfer_ns[recorded.rank]
        self._launched = launched_at(self._profile)
        messages = Messages(recorded.rank, shared.mesh, shared.channels)
        self._contents = Contents(
            recorded, shared.mesh, shared.groups, shared.world, messages,
            aligned.unmatched[recorded.rank], shared.problems,
        )  # fmt: skip
        self._builder = ProgramBuilder(shared.mesh)
        self._row_of: dict[int, int] = {}
        self._end_of: dict[int, float] = {}
        self._last_on: dict[str, int] = {}
        self._host, self._host_point = -1, 0.0
        self.span_ns = 0.0

    def build(self) -> Program:
        """The program; not verified here."""
        a = self._profile.activities
        order, keys = self._order()
        by_start = self._rows[np.argsort(a.start_ns[self._rows], kind="stable")]
        main = main_stream(self._profile, self._rows)
        self._lanes = lanes_of(self._profile, by_start, main)
        waits = waits_of(self._profile, self._rows, self._launched, main)
        if waits.dropped:
            self._shared.problems[
                "waits between streams that contradict measured times, omitted"
            ] += waits.dropped
        self._before = self._device_order(order, by_start, waits.of)
        ready = ready_ns(self._profile, order, self._before, self._begin_here)
        events = host_events(self._profile, order, keys, ready)
        origins = ActivityOrigins(self._profile).of(self._rows, self._launched)
        self._contents.prepare(self._rows, origins)
        self._emit(order, events)
        ends = a.end_ns[self._rows]
        self.span_ns = float(ends.max()) - self._zero
        return self._builder.build()

    def _order(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Activities in order of launch, without contradicting the order on any stream."""
        a = self._profile.activities
        by_start = self._rows[np.argsort(a.start_ns[self._rows], kind="stable")]
        reached: dict[int, float] = defaultdict(lambda: -np.inf)
        keys = np.empty(len(by_start))
        for i, row in enumerate(by_start.tolist()):
            key = float(self._launched[row])
            key = float(a.start_ns[row]) if np.isnan(key) else key
            stream = int(a.stream[row])
            keys[i] = reached[stream] = max(key, reached[stream])
        order = np.lexsort((np.arange(len(keys)), keys))
        return by_start[order], keys[order]

    def _device_order(
        self,
        order: NDArray[np.int64],
        by_start: NDArray[np.int64],
        waits: dict[int, tuple[int, ...]],
    ) -> dict[int, tuple[int, ...]]:
        """For each activity those that it waits for on the device: of its stream, and of others.

        What was fetched before the step began, beside the step before, keeps nothing in it waiting.
        """
        a = self._profile.activities
        ends = a.end_ns
        place = {row: i for i, row in enumerate(order.tolist())}
        last: dict[str, int] = {}
        last_of_stream: dict[int, int] = {}
        found: dict[int, tuple[int, ...]] = {}
        for row in by_start.tolist():
            lane, stream = self._lanes[row], int(a.stream[row])
            before = [last.get(lane, last_of_stream.get(stream, -1))]
            if ends[before[0]] > a.start_ns[row] and lane not in last:
                before = []  # the first of a lane begins while its stream is busy
            before += [w for w in waits.get(row, ()) if a.start_ns[w] >= self._begin_here]
            found[row] = tuple(b for b in before if b >= 0 and place[b] < place[row])
            last[lane] = last_of_stream[stream] = row
        return found

    def _emit(self, order: NDArray[np.int64], events: Sequence[HostEvent]) -> None:
        """Rows in order: the point of a launch comes before the first of its activities."""
        event_of = {row: i for i, e in enumerate(events) for row in e.activities}
        reached: list[tuple[int, float]] = []  # by event, the row of the host and its end
        for row in order.tolist():
            number = event_of.get(row, -1)
            while len(reached) <= number:
                self._host_event(events[len(reached)])
                reached.append((self._host, self._host_point))
            self._activity(row, *(reached[number] if number >= 0 else (-1, 0.0)))

    def _host_event(self, event: HostEvent) -> None:
        """A row for what the host did up to the event, if that took time."""
        point = max(event.point_ns - self._zero, self._begin)
        since, deps = self._host_point, [self._host]
        if event.is_wait:
            waited = self._end_of.get(event.waited, np.inf)
            if waited > point + _LEAST_GAP_NS:
                return
            since, deps = max(since, waited), [self._host, self._row_of[event.waited]]
        measured = round(point) - round(since)
        if measured < 1 and not (event.is_wait and since > self._host_point):
            return
        self._host = self._builder.add(
            WAIT if event.is_wait else LAUNCH,
            op=OpClass.HOST,
            deps=deps,
            stream=HOST_STREAM,
            measured_ns=max(measured, 1),
            flags=Flag.WAITS if event.is_wait else 0,
        )
        self._host_point = round(since) + max(measured, 1)

    def _pause(self, lane: str, deps: Sequence[int], pause_ns: int) -> int:
        """A row for a pause of a stream that nothing explains."""
        return self._builder.add(
            GAP, op=OpClass.HOST, deps=deps, stream=lane, measured_ns=pause_ns, flags=Flag.WAITS
        )

    def _activity(self, row: int, launch: int, launched_ns: float) -> None:
        """A row of the device, after a pause where it began later than all says.

        `launch` is the row of the host up to its call, whose kernels may begin after later launches; -1 for none.
        """
        a = self._profile.activities
        lane = self._lanes[row]
        start = float(a.start_ns[row]) - self._zero
        deps = [self._row_of[b] for b in self._before[row]]
        ready = max((self._end_of[b] for b in self._before[row]), default=0.0)
        if lane in self._last_on:
            ready = max(ready, self._end_of[self._last_on[lane]])
        if launch >= 0:
            deps.append(launch)
            ready = max(ready, launched_ns)
        if start - ready >= _LEAST_GAP_NS:
            pause = round(start) - round(ready)
            deps.append(self._pause(lane, deps, pause))
            ready = round(ready) + pause
        content = self._contents.of(row)
        whole = max(round(float(a.duration_ns[row])), 1)
        measured = max(round(self._transfer.get(row, whole)), 1)
        number = self._builder.add(
            content.opcode, content.kind, deps=deps, stream=lane, measured_ns=measured,
            **content.columns,
        )  # fmt: skip
        waited = whole - measured if row in self._transfer else 0
        self._row_of[row] = number
        self._end_of[row] = max(ready, start if waited else ready) + whole
        self._last_on[lane] = row
