"""An estimate's timeline as a Perfetto trace (`.pftrace`, for https://ui.perfetto.dev).

A rank class is a process, a stream a thread, a node a slice; a counter shows memory in use. Kernels
that prepare communication in its stream (copies into buffers) have a thread of their own.

Numbers of messages are those of protos/perfetto/trace of google/perfetto: `trace_packet.proto` and
`track_event/*.proto`, whose fields keep their meaning for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flint.backends.cost.memory.over_time import MemoryPoint, memory_over_time
from flint.errors import FlintError
from flint.io.outputs import OutputKind, write_output
from flint.ir.program import Int64s, Kind, Phase, Program

if TYPE_CHECKING:
    from flint.backends.cost.estimate import Estimate
    from flint.backends.cost.estimate_numbers import ClassEstimate
    from flint.backends.cost.simulate.timeline import ClassTimeline


from enum import IntEnum
from functools import cache
from types import SimpleNamespace

from flint.messages import message_classes
from flint.text import short_scope

#: Nodes that are written where no window is given: what the viewer shows without effort.
NODE_LIMIT = 100_000
#: Names one writer of packets in a trace. There is one here.
_SEQUENCE = 1
#: That of the first packet: by it `flint.io.outputs` knows a timeline of Flint, "FLNT".
_MARK = 0x464C4E54
#: Tracks of a class: its process is number 0, its streams follow, and the counter is the last.
_TRACKS = 1000


@dataclass(frozen=True, slots=True)
class PerfettoReport:
    """What was written: nodes, and how many others the classes have in the step."""

    nodes: int
    left_out: int


def write_perfetto(
    estimate: Estimate,
    path: str | Path,
    *,
    rank_class: int | str | None = None,
    window_ns: tuple[float, float] | None = None,
    force: bool = False,
) -> PerfettoReport:
    """Write the timeline of `estimate` to `path`.

    `rank_class` is the index or name of a class, its name up to a colon ("pipe 1"), or "all"; None
    takes the one that ends last.
    `window_ns` are two times in ns from the start of the step: nodes that run between them are
    written. Without it, the first NODE_LIMIT nodes to start are. Times are rounded to 1 ns. Raises
    FlintError FL502 (cannot write), FL508 (a file of another stands there, without `force`), FL503 (no such class), FL504 (a window without
    length, or after the step).
    """
    chosen = estimate.chosen_classes(rank_class)
    if window_ns is not None:
        _require_window(window_ns, estimate.step_time_ns)
    packets: list[Iterator[Any]] = []
    written = total = 0
    for number in chosen:
        timeline = estimate.timeline.classes[number]
        nodes = _selected(timeline, window_ns, NODE_LIMIT // len(chosen))
        points = memory_over_time(estimate, number).points
        trace = _ClassTrace(number, estimate.classes[number], timeline, points)
        packets.append(trace.packets(estimate.timeline.streams, nodes))
        written, total = written + len(nodes), total + len(timeline.start_ns)
    made = trace_bytes(chain.from_iterable(packets))
    write_output(Path(path), made, OutputKind.TIMELINE, force=force)
    return PerfettoReport(written, total - written)


def trace_bytes(packets: Iterable[Any]) -> bytes:
    """Packets as a file, the first one marked as Flint's. They are made and written one by one."""
    parts: list[bytes] = []
    for packet in packets:
        if not parts:
            packet.trusted_packet_sequence_id = _MARK
        parts.append(messages().Trace(packet=[packet]).SerializeToString(deterministic=True))
    return b"".join(parts)


def described(**fields: Any) -> Any:
    """The packet that describes a track."""
    descriptor = messages().TrackDescriptor(**fields)
    return messages().TracePacket(trusted_packet_sequence_id=_SEQUENCE, track_descriptor=descriptor)


def occurred(moment_ns: int, event: Any) -> Any:
    """The packet of an event."""
    return messages().TracePacket(
        timestamp=moment_ns, trusted_packet_sequence_id=_SEQUENCE, track_event=event
    )


def argument(name: str, value: str | int) -> Any:
    """What a viewer shows of a slice, by name."""
    if isinstance(value, str):
        return messages().DebugAnnotation(name=name, string_value=value)
    return messages().DebugAnnotation(name=name, int_value=value)


def _require_window(window_ns: tuple[float, float], step_time_ns: float) -> None:
    start, end = window_ns
    if not start < end:
        raise FlintError(
            "FL504",
            f"the window {start:g} to {end:g} ns is empty",
            help="give the earlier time first",
        )
    if start >= step_time_ns or end <= 0:
        raise FlintError(
            "FL504",
            f"the window from {start / 1e6:g} to {end / 1e6:g} ms is outside the step",
            help=f"the step takes {step_time_ns / 1e6:.6g} ms",
        )


def _selected(timeline: ClassTimeline, window: tuple[float, float] | None, limit: int) -> Int64s:
    """Nodes to write, in the order in which they start."""
    order = np.argsort(timeline.start_ns, kind="stable")
    if window is None:
        return order[:limit]
    inside = (timeline.start_ns < window[1]) & (timeline.end_ns > window[0])
    return order[inside[order]]


class _ClassTrace:
    def __init__(
        self,
        number: int,
        about: ClassEstimate,
        timeline: ClassTimeline,
        memory: Sequence[MemoryPoint],
    ) -> None:
        self.pb, self.about, self.timeline = messages(), about, timeline
        self.memory = memory
        self.process = number + 1  # 0 is the idle process to Perfetto
        self.base = self.process * _TRACKS
        self._events: dict[int, Any] = {}

    def packets(self, streams: tuple[str, ...], nodes: Int64s) -> Iterator[Any]:
        """Descriptions of tracks, then memory, then two packets for each node."""
        yield self._process()
        row = self.timeline.work.nodes.row[nodes]
        names = [*streams, *(f"{name} copies" for name in streams)]
        stream = self._threads(len(streams))[row]
        for used in np.unique(stream).tolist():
            yield self._thread(used, names[used])
        yield from self._memory(nodes)
        starts = np.rint(self.timeline.start_ns[nodes]).astype(np.int64)
        ends = np.rint(self.timeline.end_ns[nodes]).astype(np.int64)
        columns = (row.tolist(), stream.tolist(), starts.tolist(), ends.tolist())
        for at, on, start, end in zip(*columns, strict=True):
            yield occurred(start, self._event(at, on))
            yield occurred(end, self._end(on))

    def _threads(self, streams: int) -> Int64s:
        """The thread of each row: its stream, or that of copies beside it."""
        work = self.timeline.work
        sends = work.program.kind >= Kind.COLLECTIVE
        shared = np.isin(work.stream, work.stream[sends]) & (work.stream > 0)
        return np.where(shared & ~sends, work.stream + streams, work.stream)

    def _process(self) -> Any:
        ranks = f"{self.about.ranks} rank{'s' if self.about.ranks != 1 else ''}"
        name = f"{self.about.name} ({ranks})"
        process = self.pb.ProcessDescriptor(pid=self.process, process_name=name)
        return described(uuid=self.base, process=process)

    def _thread(self, stream: int, name: str) -> Any:
        # Viewers take a thread whose number is its process's for the main one: compute.
        thread = self.pb.ThreadDescriptor(
            pid=self.process, tid=self.base + stream if stream else self.process, thread_name=name
        )
        return described(uuid=self._track(stream), parent_uuid=self.base, thread=thread)

    def _track(self, stream: int) -> int:
        return self.base + 1 + stream

    def _memory(self, nodes: Int64s) -> Iterator[Any]:
        """A counter of the bytes in use, while the nodes that are written run."""
        if not self.memory or not len(nodes):
            return
        uuid = self.base + _TRACKS - 1
        unit = self.pb.CounterDescriptor(unit=CounterUnit.SIZE_BYTES)
        yield described(uuid=uuid, parent_uuid=self.base, name="memory in use", counter=unit)
        start = float(self.timeline.start_ns[nodes].min())
        end = float(self.timeline.end_ns[nodes].max())
        before = [p.num_bytes for p in self.memory if p.start_ns <= start][-1:]
        inside = [(p.start_ns, p.num_bytes) for p in self.memory if start < p.start_ns < end]
        for moment, value in [*((start, size) for size in before), *inside]:
            event = self.pb.TrackEvent(type=EventType.COUNTER, track_uuid=uuid, counter_value=value)
            yield occurred(round(moment), event)

    def _event(self, row: int, stream: int) -> Any:
        """The beginning of a slice: the same for each node of a row."""
        if row not in self._events:
            program = self.timeline.work.program
            self._events[row] = self.pb.TrackEvent(
                type=EventType.SLICE_BEGIN,
                track_uuid=self._track(stream),
                name=_name(program, row),
                debug_annotations=[argument(*a) for a in _arguments(program, row)],
            )
        return self._events[row]

    def _end(self, stream: int) -> Any:
        return self.pb.TrackEvent(type=EventType.SLICE_END, track_uuid=self._track(stream))


def _name(program: Program, row: int) -> str:
    scope = short_scope(program.strings[program.scope[row]])
    return f"{program.opcodes[program.opcode[row]]} {scope}".strip()


def _arguments(program: Program, row: int) -> Iterator[tuple[str, str | int]]:
    """What a viewer shows of a slice, without what a row does not have."""
    phase = Phase(int(program.phase[row]))
    group, route = int(program.group[row]), int(program.route[row])
    found: dict[str, str | int] = {
        "scope": program.strings[program.scope[row]],
        "source": program.strings[program.location[row]],
        "phase": phase.name.lower() if phase else "",
        "flops": int(program.flops[row]),
        "bytes": int(program.result_bytes[row] + program.operand_bytes[row]),
        "comm_bytes": int(program.comm_bytes[row]),
        "group": str(program.groups[group]) if group >= 0 else "",
        "route": str(program.routes[route]) if route >= 0 else "",
        "cause": program.strings[program.cause[row]],
    }
    yield "row", row
    yield from ((name, value) for name, value in found.items() if value)


_MESSAGES = {
    "Trace": "packet 1 TracePacket*",
    "TracePacket": "timestamp 8 uint64, trusted_packet_sequence_id 10 uint32, "
    "track_event 11 TrackEvent, track_descriptor 60 TrackDescriptor",
    "TrackDescriptor": "uuid 1 uint64, name 2 string, process 3 ProcessDescriptor, "
    "thread 4 ThreadDescriptor, parent_uuid 5 uint64, counter 8 CounterDescriptor",
    "ProcessDescriptor": "pid 1 int32, process_name 6 string",
    "ThreadDescriptor": "pid 1 int32, tid 2 int64, thread_name 5 string",
    "CounterDescriptor": "unit 3 int32",
    "TrackEvent": "debug_annotations 4 DebugAnnotation*, type 9 int32, track_uuid 11 uint64, "
    "name 23 string, counter_value 30 int64",
    "DebugAnnotation": "int_value 4 int64, string_value 6 string, name 10 string",
}


class EventType(IntEnum):
    """Values of TrackEvent.type."""

    SLICE_BEGIN = 1
    SLICE_END = 2
    COUNTER = 4


class CounterUnit(IntEnum):
    """Values of CounterDescriptor.unit."""

    SIZE_BYTES = 3


@cache
def messages() -> SimpleNamespace:
    """The message classes of this process, made once: `messages().TracePacket(timestamp=7)`."""
    return SimpleNamespace(**message_classes("flint_perfetto", _MESSAGES, syntax="proto2"))
