"""What calls of the runtime wait for: as the profiler says it, else as the times show it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flint.ir.arrays import Int32s, Int64s
from flint.tools.measure.profiles.profile import Activities, ActivityKind, CallKind, HostCalls

#: Between the clocks of the host and of the device as profilers align them.
_CLOCKS_NS = 2_000.0
#: Activities that ended before a wait, from the latest, which are looked at for one launched before.
_LOOKED_AT = 64


@dataclass(frozen=True)
class Sync:
    """What a profiler's synchronization records say, one entry each (-1: not said).

    `call` is the row of the call, `stream` the stream that waits or that the host waits for,
    `waited_stream` the one on which the event was recorded, by the call of row `record`.
    """

    call: Int32s
    stream: Int32s
    waited_stream: Int32s
    record: Int32s


def waits_of_calls(
    calls: HostCalls, activities: Activities, syncs: Sync, pageable: tuple[int, ...]
) -> HostCalls:
    """Calls with `stream` and `waits_for` filled in.

    A wait for a stream or an event is for what was last launched there before the call, or before the
    event was recorded. Where no stream is known, it is for what ended last while the host waited, and
    for nothing if nothing did. A synchronous copy waits for itself; so does one of `pageable` names
    whose call returned after it ended.
    """
    stream, waits = calls.stream.copy(), calls.waits_for.copy()
    tails = _Tails(activities)
    _said(calls, syncs, tails, stream, waits)
    for row in np.flatnonzero((calls.kind == CallKind.WAIT_STREAM) & (waits < 0) & (stream >= 0)):
        waits[row] = tails.before(int(stream[row]), int(row))
    _seen(calls, activities, stream, waits)
    _copies(calls, activities, pageable, waits)
    return replace(calls, stream=stream, waits_for=waits)


class _Tails:
    """The last activity of a stream that was launched before a call."""

    def __init__(self, activities: Activities) -> None:
        rows = np.flatnonzero(activities.call >= 0)
        key = _key(activities.stream[rows], activities.call[rows])
        order = np.lexsort((activities.end_ns[rows], key))
        self._rows, self._keys, self._stream = rows[order], key[order], activities.stream

    def before(self, stream: int, call: int) -> int:
        """Row of that activity, or -1."""
        at = int(np.searchsorted(self._keys, (stream << 32) | max(call, 0), side="left")) - 1
        if at < 0 or self._stream[self._rows[at]] != stream:
            return -1
        return int(self._rows[at])


def _key(stream: Int32s, call: Int32s) -> Int64s:
    return np.asarray((stream.astype(np.int64) << 32) | call)


def _said(calls: HostCalls, syncs: Sync, tails: _Tails, stream: Int32s, waits: Int32s) -> None:
    for row, own, waited, record in zip(
        syncs.call.tolist(), syncs.stream.tolist(), syncs.waited_stream.tolist(),
        syncs.record.tolist(), strict=True,
    ):  # fmt: skip
        if row < 0:
            continue
        if own >= 0:
            stream[row] = own
        if waited >= 0 and record >= 0:
            stream[record] = waited
            waits[row] = tails.before(waited, record)


def _seen(calls: HostCalls, activities: Activities, stream: Int32s, waits: Int32s) -> None:
    """Waits whose stream nothing says: the latest end within the wait, of what was launched before."""
    kinds = (CallKind.WAIT_DEVICE, CallKind.WAIT_STREAM, CallKind.WAIT_EVENT)
    rows = np.flatnonzero(np.isin(calls.kind, kinds) & (waits < 0))
    order = np.argsort(activities.end_ns, kind="stable")
    ends = activities.end_ns[order]
    over = calls.start_ns[rows] + calls.duration_ns[rows] + _CLOCKS_NS
    last = np.searchsorted(ends, over, side="right") - 1
    for row, at in zip(rows.tolist(), last.tolist(), strict=True):
        begun = calls.start_ns[row] - _CLOCKS_NS
        for candidate in range(at, max(-1, at - _LOOKED_AT), -1):
            if ends[candidate] < begun:
                break
            activity = int(order[candidate])
            if activities.call[activity] < row and stream[row] in (-1, activities.stream[activity]):
                waits[row] = activity
                break


def _copies(
    calls: HostCalls, activities: Activities, pageable: tuple[int, ...], waits: Int32s
) -> None:
    """Synchronous copies: those that say so, and those of pageable memory, if the host did wait."""
    if not len(calls.kind):
        return
    launched = np.flatnonzero((activities.kind == ActivityKind.COPY) & (activities.call >= 0))
    named = launched[np.isin(activities.name[launched], np.asarray(pageable, dtype=np.int32))]
    waits[activities.call[named]] = named
    own: NDArray[np.bool_] = (calls.kind == CallKind.LAUNCH) & (waits >= 0)
    rows = np.flatnonzero(own)
    over = calls.start_ns[rows] + calls.duration_ns[rows] + _CLOCKS_NS
    waits[rows[activities.end_ns[waits[rows]] > over]] = -1
