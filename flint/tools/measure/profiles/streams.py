"""Streams of the device: their names, lanes where activities of one overlap, and who waits for whom."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flint.tools.measure.profiles.profile import ActivityKind, CallKind, Profile

#: Activities of one stream that overlap by no more are taken as in order: clocks are no finer.
TOLERANCE_NS = 1000.0
#: A program has at most 256 streams.
_MOST_LANES = 240
#: What a wait is for is looked for among so many activities before and after it.
_MOST_NEAR = 1024
#: Operators and annotations inside which a collective is launched.
_COMMUNICATES = re.compile(r"^(record_param_comms|c10d::|_c10d_functional|nccl:|rccl:)")


@dataclass(frozen=True, slots=True)
class Waits:
    """For each activity of a step (by row of the profile) those of other streams that it waits for.

    `dropped` counts waits that measured times contradict.
    """

    of: dict[int, tuple[int, ...]]
    dropped: int = 0


def main_stream(profile: Profile, rows: NDArray[np.int64]) -> int:
    """The stream with most kernel time that is not spent on communication."""
    a = profile.activities
    computing = rows[(a.kind[rows] == ActivityKind.KERNEL) & ~profile.communicates[rows]]
    used = computing if len(computing) else rows
    numbers, place = np.unique(a.stream[used], return_inverse=True)
    return int(numbers[np.argmax(np.bincount(place, weights=a.duration_ns[used]))])


def lanes_of(profile: Profile, rows: NDArray[np.int64], main: int) -> dict[int, str]:
    """The stream of a program that each activity runs on. `rows` are in order of start.

    The main stream is `compute`, others are `stream N`; of activities that overlap on one stream the
    later runs on a lane of its own (`compute (2)`).
    """
    a = profile.activities
    ends: dict[int, list[float]] = defaultdict(list)
    found: dict[int, str] = {}
    lanes = 0
    for row in rows.tolist():
        stream, start = int(a.stream[row]), float(a.start_ns[row])
        over = ends[stream]
        free = [i for i, end in enumerate(over) if end <= start + TOLERANCE_NS]
        at = free[0] if free else len(over)
        if not free and over and lanes >= _MOST_LANES:
            at = int(np.argmin(over))
        if at == len(over):
            over.append(-np.inf)
            lanes += 1
        over[at] = max(start, over[at]) + float(a.duration_ns[row])  # as it plays back
        name = "compute" if stream == main else f"stream {stream}"
        found[row] = name if at == 0 else f"{name} ({at + 1})"
    return found


def waits_of(
    profile: Profile, rows: NDArray[np.int64], launched: NDArray[np.float64], main: int
) -> Waits:
    """Waits between streams: those that the profile has, else those that PyTorch makes."""
    pairs = {(int(w), int(d)) for w, d in profile.waits.tolist()}
    inside = set(rows.tolist())
    order = rows[np.argsort(launched[rows], kind="stable")]
    order = order[~np.isnan(launched[order])]
    pairs |= _of_calls(profile, order, launched) | _of_collectives(profile, order, launched, main)
    a = profile.activities
    found: dict[int, list[int]] = defaultdict(list)
    dropped = 0
    for waiter, waited in sorted(pairs):
        if waiter not in inside or waited not in inside:
            continue
        if a.stream[waiter] == a.stream[waited]:
            continue
        if a.start_ns[waited] + a.duration_ns[waited] > a.start_ns[waiter] + TOLERANCE_NS:
            dropped += 1
            continue
        found[waiter].append(waited)
    return Waits({w: tuple(d) for w, d in found.items()}, dropped)


def _of_calls(
    profile: Profile, order: NDArray[np.int64], launched: NDArray[np.float64]
) -> set[tuple[int, int]]:
    """A stream that waits for an event: its next activity waits for the one before the event.

    Where the profile does not say which event, outside collectives the main stream waits for the
    collective that was launched last: so PyTorch waits for its work.
    """
    calls, a = profile.calls, profile.activities
    pairs: set[tuple[int, int]] = set()
    times = launched[order]
    for call in np.flatnonzero(calls.kind == CallKind.STREAM_WAIT).tolist():
        at = int(np.searchsorted(times, calls.start_ns[call]))
        if at == 0 or at == len(order):
            continue
        stream, waited = int(calls.stream[call]), int(calls.waits_for[call])
        if waited >= 0:
            pairs |= _next_on(a.stream, order[at:], stream, {waited})
        elif not _in_collective(profile, call):
            last = _last_of_streams(a.stream, order[:at])
            pairs |= {
                (waiter, other)
                for waiter, _ in _next_on(a.stream, order[at:], stream, {-1})
                for number, other in last.items()
                if number != int(a.stream[waiter]) and profile.communicates[other]
            }
    return pairs


def _next_on(
    streams: NDArray[np.int32], order: NDArray[np.int64], stream: int, waited: set[int]
) -> set[tuple[int, int]]:
    near = order[:_MOST_NEAR]
    there = near if stream < 0 else near[streams[near] == stream]
    return {(int(there[0]), w) for w in waited} if len(there) else set()


def _last_of_streams(streams: NDArray[np.int32], order: NDArray[np.int64]) -> dict[int, int]:
    recent = order[-_MOST_NEAR:]
    return {int(streams[row]): int(row) for row in recent.tolist()}


def _in_collective(profile: Profile, call: int) -> bool:
    """Whether an operator around a call communicates."""
    around = profile.operators.around(int(profile.calls.operator[call]))
    names = (profile.strings[profile.operators.name[at]] for at in around)
    return any(map(_COMMUNICATES.match, names))


def _of_collectives(
    profile: Profile, order: NDArray[np.int64], launched: NDArray[np.float64], main: int
) -> set[tuple[int, int]]:
    """A collective on a stream of its own waits for what was launched before on the main stream."""
    a = profile.activities
    pairs: set[tuple[int, int]] = set()
    before = -1
    for row in order.tolist():
        if int(a.stream[row]) == main:
            before = row
        elif before >= 0 and profile.communicates[row]:
            pairs.add((row, before))
    return pairs
