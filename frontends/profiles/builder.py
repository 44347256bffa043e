"""ProfileBuilder: events go in one at a time, in any order, a Profile comes out.

Columns grow as arrays of numbers, so that a recording of some million events takes some hundred
megabytes. Ids of the format (correlation, external id) become rows of tables when all are there.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flint.frontends.profiles.profile import (
    Activities,
    ActivityKind,
    CallKind,
    Calls,
    Comm,
    Compiled,
    Marks,
    Operators,
    Profile,
    Signature,
)
from flint.ir.builder import Table

_NUMPY = {"d": np.float64, "q": np.int64, "i": np.int32, "B": np.uint8}


class _Columns:
    """Columns of one table, by name, each with the code of its type (see `array`)."""

    def __init__(self, **types: str) -> None:
        self._columns = {name: array(code) for name, code in types.items()}
        self._append = [c.append for c in self._columns.values()]

    def add(self, *values: Any) -> None:
        for append, value in zip(self._append, values, strict=True):
            append(value)

    def column(self, name: str) -> NDArray[Any]:
        found = self._columns[name]
        return (
            np.frombuffer(found, dtype=_NUMPY[found.typecode])
            if found
            else np.zeros(0, dtype=_NUMPY[found.typecode])
        )

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))


@dataclass
class ProfileBuilder:
    """Collects events of one rank. Ids are the format's, -1 for none; times in nanoseconds."""

    format: str
    rank: int = -1
    world_size: int = 0
    device: str = ""
    device_memory_bytes: int = 0
    processors: int = 0
    peak_bytes: int = 0
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._strings: Table[str] = Table({"": 0})
        self._signatures: Table[Signature] = Table()
        self._comms: Table[Comm] = Table()
        self._compiled: Table[Compiled] = Table()
        self._tensors: Table[tuple[tuple[int, ...], tuple[int, ...]]] = Table()
        self._threads: Table[Any] = Table()
        self._operators = _Columns(
            name="i", start="d", duration="d", thread="i", external="q", signature="i",
            sequence="q", backward="B", comm="i", tensors="i", record="q",
        )  # fmt: skip
        self._calls = _Columns(
            kind="B", name="i", start="d", duration="d", thread="i", correlation="q",
            external="q", stream="i", waits="q",
        )  # fmt: skip
        self._activities = _Columns(
            kind="B", name="i", start="d", duration="d", stream="i", bytes="q", correlation="q",
            external="q", comm="i", flops="q", accessed="q", category="i", compiled="i",
        )  # fmt: skip
        self._waits = _Columns(waiter="i", waited="i")
        self._marks = _Columns(name="i", start="d", duration="d", thread="i", on_device="B")

    def text(self, value: str) -> int:
        """Number of a string."""
        return self._strings.index(value)

    def signature(self, value: Signature) -> int:
        """Number of a signature."""
        return self._signatures.index(value)

    def comm(self, value: Comm) -> int:
        """Number of a collective's description."""
        return self._comms.index(value)

    def compiled(self, value: Compiled) -> int:
        """Number of what a compiler says."""
        return self._compiled.index(value)

    def add_operator(
        self,
        name: str,
        start_ns: float,
        duration_ns: float,
        thread: object,
        *,
        external: int = -1,
        signature: int = -1,
        sequence: int = -1,
        is_backward: bool = False,
        comm: int = -1,
        tensors: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
        record: int = -1,
    ) -> None:
        """An operator of the framework. `thread` is anything that tells threads apart."""
        self._operators.add(
            self._strings.index(name), start_ns, duration_ns, self._threads.index(thread), external,
            signature, sequence, is_backward, comm,
            -1 if tensors is None else self._tensors.index(tensors), record,
        )  # fmt: skip

    def add_call(
        self,
        kind: CallKind,
        name: str,
        start_ns: float,
        duration_ns: float,
        thread: object,
        *,
        correlation: int = -1,
        external: int = -1,
        stream: int = -1,
        waits_for: int = -1,
    ) -> None:
        """A call of the runtime; `waits_for` is the correlation of the last call that it waits for."""
        self._calls.add(
            kind, self._strings.index(name), start_ns, duration_ns, self._threads.index(thread),
            correlation, external, stream, waits_for,
        )  # fmt: skip

    def add_activity(
        self,
        kind: ActivityKind,
        name: str,
        start_ns: float,
        duration_ns: float,
        stream: int,
        *,
        num_bytes: int = 0,
        correlation: int = -1,
        external: int = -1,
        comm: int = -1,
        flops: int = -1,
        bytes_accessed: int = -1,
        category: str = "",
        compiled: int = -1,
    ) -> int:
        """What ran on the device; returns its number, for `add_wait`."""
        self._activities.add(
            kind, self._strings.index(name), start_ns, duration_ns, stream, num_bytes, correlation,
            external, comm, flops, bytes_accessed, self._strings.index(category), compiled,
        )  # fmt: skip
        return len(self._activities) - 1

    def add_wait(self, waiter: int, waited: int) -> None:
        """One activity waits for another, beside what calls and streams say."""
        self._waits.add(waiter, waited)

    def add_mark(
        self, name: str, start_ns: float, duration_ns: float, thread: object, *, on_device: bool
    ) -> None:
        """An annotation."""
        self._marks.add(
            self._strings.index(name), start_ns, duration_ns, self._threads.index(thread), on_device
        )

    def build(self, origin_ns: int = 0) -> Profile:
        """The profile, with `origin_ns` the wall clock of time 0, in ns (0: not known)."""
        tables = _Tables(self._operators, self._calls, self._activities, self._marks)
        waits = np.stack((self._waits.column("waiter"), self._waits.column("waited")), axis=1)
        return Profile(
            format=self.format,
            rank=self.rank,
            world_size=self.world_size,
            device=self.device,
            origin_ns=origin_ns,
            strings=tuple(self._strings),
            operators=tables.operators(),
            calls=tables.calls(),
            activities=tables.activities(),
            marks=tables.marks(),
            signatures=tuple(self._signatures),
            comms=tuple(self._comms),
            tensors=tuple(self._tensors),
            compiled=tuple(self._compiled),
            waits=tables.place_of_activities()[waits],
            groups=dict(self.groups),
            device_memory_bytes=self.device_memory_bytes,
            processors=self.processors,
            peak_bytes=self.peak_bytes,
            warnings=tuple(self.warnings),
        )


class _Tables:
    """Tables in order of start, ids made rows."""

    def __init__(
        self, operators: _Columns, calls: _Columns, activities: _Columns, marks: _Columns
    ) -> None:
        self._o, self._c, self._a, self._m = operators, calls, activities, marks
        # Of operators that start together the longer one is outside.
        self._of_operators = np.lexsort((-operators.column("duration"), operators.column("start")))
        self._of_calls = np.argsort(calls.column("start"), kind="stable")
        self._of_activities = np.argsort(activities.column("start"), kind="stable")

    def operators(self) -> Operators:
        o, at = self._o, self._of_operators
        start, duration = o.column("start")[at], o.column("duration")[at]
        thread = o.column("thread")[at]
        return Operators(
            name=o.column("name")[at],
            start_ns=start,
            duration_ns=duration,
            thread=thread,
            parent=innermost(start, start + duration, thread),
            signature=o.column("signature")[at],
            sequence=o.column("sequence")[at],
            is_backward=o.column("backward")[at].astype(np.bool_),
            comm=o.column("comm")[at],
            tensors=o.column("tensors")[at],
            record=o.column("record")[at],
        )

    def calls(self) -> Calls:
        c, at = self._c, self._of_calls
        start, duration = c.column("start")[at], c.column("duration")[at]
        thread = c.column("thread")[at]
        return Calls(
            kind=c.column("kind")[at],
            name=c.column("name")[at],
            start_ns=start,
            duration_ns=duration,
            thread=thread,
            operator=self._operators_of_calls(),
            stream=c.column("stream")[at],
            waits_for=_found(
                self._a.column("correlation")[self._of_activities], c.column("waits")[at]
            ),
        )

    def _operators_of_calls(self) -> NDArray[np.int32]:
        """By external id; else the innermost operator of the thread at that time."""
        o, c = self._o, self._c
        by_id = _found(
            o.column("external")[self._of_operators], c.column("external")[self._of_calls]
        )
        found = self.operators()
        start = c.column("start")[self._of_calls]
        around = innermost_at(
            found.start_ns,
            found.start_ns + found.duration_ns,
            found.thread,
            start,
            c.column("thread")[self._of_calls],
        )
        return np.where(around >= 0, around, by_id).astype(np.int32)

    def activities(self) -> Activities:
        a, at = self._a, self._of_activities
        call = _found(self._c.column("correlation")[self._of_calls], a.column("correlation")[at])
        by_id = _found(self._o.column("external")[self._of_operators], a.column("external")[at])
        of_call = self._operators_of_calls()
        launched = np.where(call >= 0, of_call[call] if len(of_call) else -1, -1)
        return Activities(
            kind=a.column("kind")[at],
            name=a.column("name")[at],
            start_ns=a.column("start")[at],
            duration_ns=a.column("duration")[at],
            stream=a.column("stream")[at],
            num_bytes=a.column("bytes")[at],
            call=call,
            operator=np.where(launched >= 0, launched, by_id).astype(np.int32),
            comm=a.column("comm")[at],
            flops=a.column("flops")[at],
            bytes_accessed=a.column("accessed")[at],
            category=a.column("category")[at],
            compiled=a.column("compiled")[at],
        )

    def place_of_activities(self) -> NDArray[np.int32]:
        """The row of each activity, by the order in which they were added."""
        return np.argsort(self._of_activities, kind="stable").astype(np.int32)

    def marks(self) -> Marks:
        m = self._m
        at = np.argsort(m.column("start"), kind="stable")
        return Marks(
            name=m.column("name")[at],
            start_ns=m.column("start")[at],
            duration_ns=m.column("duration")[at],
            thread=m.column("thread")[at],
            on_device=m.column("on_device")[at].astype(np.bool_),
        )


def _found(keys: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int32]:
    """For each of `wanted` the last position in `keys` that holds it, or -1; ids below 0 are none."""
    if not len(keys):
        return np.full(len(wanted), -1, dtype=np.int32)
    order = np.argsort(keys, kind="stable")
    at = np.searchsorted(keys[order], wanted, side="right") - 1
    there = (at >= 0) & (wanted >= 0)
    there[there] = keys[order][at[there]] == wanted[there]
    return np.where(there, order[np.maximum(at, 0)], -1).astype(np.int32)


def innermost(
    start: NDArray[np.float64], end: NDArray[np.float64], thread: NDArray[np.int32]
) -> NDArray[np.int32]:
    """For each span, in order of start, the innermost span of its thread around it, or -1."""
    found = np.full(len(start), -1, dtype=np.int32)
    open_: dict[int, list[int]] = {}
    ends = end.tolist()
    for row, (begun, over, of) in enumerate(
        zip(start.tolist(), ends, thread.tolist(), strict=True)
    ):
        stack = open_.setdefault(of, [])
        while stack and (ends[stack[-1]] <= begun or ends[stack[-1]] < over):
            stack.pop()
        if stack:
            found[row] = stack[-1]
        stack.append(row)
    return found


def innermost_at(
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    thread: NDArray[np.int32],
    moments: NDArray[np.float64],
    of: NDArray[np.int32],
) -> NDArray[np.int32]:
    """For each moment of a thread, in order of time, the innermost span around it, or -1."""
    found = np.full(len(moments), -1, dtype=np.int32)
    open_: dict[int, list[int]] = {}
    starts, ends, threads = start.tolist(), end.tolist(), thread.tolist()
    row = 0
    for at, (moment, where) in enumerate(zip(moments.tolist(), of.tolist(), strict=True)):
        while row < len(starts) and starts[row] <= moment:
            stack = open_.setdefault(threads[row], [])
            while stack and ends[stack[-1]] <= starts[row]:
                stack.pop()
            stack.append(row)
            row += 1
        stack = open_.get(where, [])
        while stack and ends[stack[-1]] <= moment:
            stack.pop()
        if stack:
            found[at] = stack[-1]
    return found


def texts(values: Sequence[object]) -> tuple[str, ...]:
    """Values as a profiler's file may have them, as text."""
    return tuple(v if isinstance(v, str) else str(v) for v in values)
