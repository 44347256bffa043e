"""The few messages of a Perfetto trace that Flint writes.

Numbers are those of protos/perfetto/trace of google/perfetto: `trace_packet.proto` and
`track_event/*.proto`, whose fields keep their meaning for good.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from types import SimpleNamespace

from flint.messages import message_classes

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
