"""Packed rows as they came become tables in order of start, and ids become rows of tables."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flint.errors import FlintError
from flint.ir.arrays import Float64s, Int32s, Int64s
from flint.tools.measure.profiles.profile import (
    Activities,
    ActivityKind,
    CallKind,
    HostCalls,
    Marks,
    Operators,
)
from flint.tools.measure.profiles.source import too_large

# Columns of one table that grow row by row.

_NUMPY = {"d": "<f8", "q": "<i8", "i": "<i4", "B": "u1", "?": "?"}
#: Of one table. With all tables full a Profile takes about 6 GB while it is made.
MOST_ROWS = 1 << 24


class PackedColumns:
    """Rows of numbers, packed one after another.

    A row goes in as a whole or not at all, in one call. Columns are views of the packed rows: nothing
    may be added once one of them was taken.
    """

    def __init__(self, **types: str) -> None:
        row = struct.Struct("<" + "".join(types.values()))
        self._pack = row.pack
        self._rows = bytearray()
        self._most_bytes = MOST_ROWS * row.size
        self._type = np.dtype([(name, _NUMPY[code]) for name, code in types.items()])

    def add(self, *values: Any) -> None:
        """One row. Raises FlintError FL805 for a number that does not fit, FL806 for too many rows."""
        try:
            self._rows += self._pack(*values)
        except (struct.error, OverflowError) as error:
            raise FlintError("FL805", f"an absurd number in the profile: {error}") from error
        if len(self._rows) > self._most_bytes:
            raise too_large(None, f"more than {MOST_ROWS:,} events of one kind")

    def column(self, name: str) -> NDArray[Any]:
        """All rows of one column, a view that is not contiguous."""
        found: NDArray[Any] = np.frombuffer(self._rows, dtype=self._type)[name]
        return found

    def of(self, table: type, order: NDArray[np.intp]) -> dict[str, NDArray[Any]]:
        """The columns that a table has by the same names, their rows in an order."""
        names = {f.name for f in fields(table)} & set(self._type.names or ())
        return {name: self.column(name)[order] for name in names}

    def __len__(self) -> int:
        return len(self._rows) // self._type.itemsize


# What calls of the runtime wait for: as the profiler says it, else as the times show it.

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
        key = np.asarray((activities.stream[rows].astype(np.int64) << 32) | activities.call[rows])
        order = np.lexsort((activities.end_ns[rows], key))
        self._rows, self._keys, self._stream = rows[order], key[order], activities.stream

    def before(self, stream: int, call: int) -> int:
        """Row of that activity, or -1."""
        at = int(np.searchsorted(self._keys, (stream << 32) | max(call, 0), side="left")) - 1
        if at < 0 or self._stream[self._rows[at]] != stream:
            return -1
        return int(self._rows[at])


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


@dataclass(frozen=True)
class ProfileTables:
    """What was added, by table. `syncs` say what calls wait for, by their correlation."""

    added_operators: PackedColumns
    added_calls: PackedColumns
    added_activities: PackedColumns
    added_marks: PackedColumns
    added_syncs: PackedColumns
    added_waits: PackedColumns
    pageable: tuple[
        int, ...
    ]  #: names of copies from or to memory that the device cannot read itself

    @cached_property
    def operators(self) -> Operators:
        """Operators; of those that start together the longer one is outside."""
        columns = self.added_operators.of(Operators, self._order_of_operators)
        start, thread = columns["start_ns"], columns["thread"]
        parent = innermost(start, start + columns["duration_ns"], thread)
        return Operators(parent=parent, **columns)

    @cached_property
    def calls(self) -> HostCalls:
        """Calls, with what they wait for as far as it is said or seen."""
        c, at = self.added_calls, self._order_of_calls
        correlation = self.added_activities.column("correlation")[self._order_of_activities]
        calls = HostCalls(
            operator=self._operators_of_calls,
            waits_for=found(correlation, c.column("waits")[at]),
            **c.of(HostCalls, at),
        )
        return waits_of_calls(calls, self.activities, self._syncs(), self.pageable)

    @cached_property
    def activities(self) -> Activities:
        """Activities with the calls and operators that launched them."""
        a, at = self.added_activities, self._order_of_activities
        correlation = self.added_calls.column("correlation")[self._order_of_calls]
        call = found(correlation, a.column("correlation")[at])
        operator = self._by_external(a.column("external")[at])
        if len(self._operators_of_calls):
            by_call = np.where(call >= 0, self._operators_of_calls[call], -1)
            operator = np.where(by_call >= 0, by_call, operator).astype(np.int32)
        return Activities(call=call, operator=operator, **a.of(Activities, at))

    @cached_property
    def marks(self) -> Marks:
        """Annotations."""
        at = np.argsort(self.added_marks.column("start_ns"), kind="stable")
        return Marks(**self.added_marks.of(Marks, at))

    @cached_property
    def waits(self) -> Int32s:
        """Rows of activities that wait for others, (count, 2)."""
        place = np.argsort(self._order_of_activities, kind="stable").astype(np.int32)
        both = (self.added_waits.column(c) for c in ("waiter", "waited"))
        return np.asarray(place[np.stack(tuple(both), axis=1)])

    @cached_property
    def _order_of_operators(self) -> NDArray[np.intp]:
        o = self.added_operators
        return np.lexsort((-o.column("duration_ns"), o.column("start_ns")))

    @cached_property
    def _order_of_calls(self) -> NDArray[np.intp]:
        return np.argsort(self.added_calls.column("start_ns"), kind="stable")

    @cached_property
    def _order_of_activities(self) -> NDArray[np.intp]:
        return np.argsort(self.added_activities.column("start_ns"), kind="stable")

    @cached_property
    def _operators_of_calls(self) -> Int32s:
        """The innermost operator of the thread at that time; else by external id."""
        c, at, o = self.added_calls, self._order_of_calls, self.operators
        start, thread = c.column("start_ns")[at], c.column("thread")[at]
        around = innermost_at(o.start_ns, o.start_ns + o.duration_ns, o.thread, start, thread)
        by_id = self._by_external(c.column("external")[at])
        return np.where(around >= 0, around, by_id).astype(np.int32)

    def _by_external(self, wanted: Int64s) -> Int32s:
        return found(self.added_operators.column("external")[self._order_of_operators], wanted)

    def _syncs(self) -> Sync:
        s = self.added_syncs
        calls = self.added_calls.column("correlation")[self._order_of_calls]
        return Sync(
            call=found(calls, s.column("correlation")),
            stream=s.column("stream"),
            waited_stream=s.column("waited"),
            record=found(calls, s.column("record")),
        )


def found(keys: Int64s, wanted: Int64s) -> Int32s:
    """For each of `wanted` the last position in `keys` that holds it, or -1; ids below 0 are none."""
    if not len(keys):
        return np.full(len(wanted), -1, dtype=np.int32)
    order = np.argsort(keys, kind="stable")
    in_order = keys[order]
    at = np.searchsorted(in_order, wanted, side="right") - 1
    there = (at >= 0) & (wanted >= 0)
    there[there] = in_order[at[there]] == wanted[there]
    return np.where(there, order[np.maximum(at, 0)], -1).astype(np.int32)


#: Rows that are Python's numbers at a time.
_PIECE = 1 << 16


def innermost(start: Float64s, end: Float64s, thread: Int32s) -> Int32s:
    """For each span, in order of start, the innermost span of its thread around it, or -1."""
    found = np.full(len(start), -1, dtype=np.int32)
    open_: dict[int, list[tuple[float, int]]] = {}
    for row, (begun, over, of) in enumerate(_rows(start, end, thread)):
        stack = open_.setdefault(of, [])
        while stack and (stack[-1][0] <= begun or stack[-1][0] < over):
            stack.pop()
        if stack:
            found[row] = stack[-1][1]
        stack.append((over, row))
    return found


def innermost_at(
    start: Float64s, end: Float64s, thread: Int32s, moments: Float64s, of: Int32s
) -> Int32s:
    """For each moment of a thread, in order of time, the innermost span around it, or -1."""
    found = np.full(len(moments), -1, dtype=np.int32)
    open_: dict[int, list[tuple[float, int]]] = {}
    spans = enumerate(_rows(start, end, thread))
    row, (begun, over, whose) = next(spans, _NONE)
    for at, (moment, where) in enumerate(_rows(moments, of)):
        while row >= 0 and begun <= moment:
            stack = open_.setdefault(whose, [])
            while stack and stack[-1][0] <= begun:
                stack.pop()
            stack.append((over, row))
            row, (begun, over, whose) = next(spans, _NONE)
        inside = open_.get(where, [])
        while inside and inside[-1][0] <= moment:
            inside.pop()
        if inside:
            found[at] = inside[-1][1]
    return found


_NONE: tuple[int, tuple[Any, ...]] = (-1, (0.0, 0.0, 0))


def _rows(*columns: NDArray[Any]) -> Iterator[tuple[Any, ...]]:
    for first in range(0, len(columns[0]), _PIECE):
        yield from zip(*(c[first : first + _PIECE].tolist() for c in columns), strict=True)
