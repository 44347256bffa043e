"""The host's side of an export: calls of CUDA, what they wait for, and NVTX ranges."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from flint.tools.measure.profiles.builder import ProfileBuilder
from flint.tools.measure.profiles.kineto.calls import is_synchronous_copy, kind_of_call
from flint.tools.measure.profiles.nsight.database import Database
from flint.tools.measure.profiles.nsight.ranges import comm_of, mark_of, operator_of
from flint.tools.measure.profiles.profile import CallKind

_PROCESS_SHIFT = 24
#: Values of NVTX_EVENTS.eventType: ranges of one thread, and those that end anywhere.
_PUSH_POP, _START_END = 59, 60
#: CUpti_ActivitySynchronizationType.
_STREAM_WAIT_EVENT = 2
_YEARS_NS = 1 << 60


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of the runtime or the driver."""

    name: str
    start_ns: int
    duration_ns: int
    thread: int
    correlation: int


@dataclass(frozen=True, slots=True)
class Range:
    """An NVTX range. `payload` is JSON, "" without one."""

    text: str
    start_ns: int
    duration_ns: int
    thread: int
    payload: str


@dataclass(frozen=True, slots=True)
class _Sync:
    """What a synchronization is about."""

    kind: int
    stream: int
    event: int


@dataclass
class HostActivity:
    """Calls, ranges and synchronizations, by process. `records` are calls that recorded an event."""

    calls: dict[int, list[_Call]] = field(default_factory=lambda: defaultdict(list))
    ranges: dict[int, list[Range]] = field(default_factory=lambda: defaultdict(list))
    syncs: dict[tuple[int, int], _Sync] = field(default_factory=dict)
    records: dict[tuple[int, int], list[tuple[int, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )


def read_host(database: Database) -> HostActivity:
    """Everything of the host, of all processes."""
    host = HostActivity()
    for table in ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER"):
        for start, end, thread, correlation, name in database.rows(
            table, "start", "end", "globalTid", "correlationId", "nameId"
        ):
            if _are_times(start, end) and isinstance(thread, int):
                host.calls[thread >> _PROCESS_SHIFT].append(
                    _Call(database.string(name), start, end - start, thread, _id(correlation))
                )
    _read_ranges(database, host)
    _read_syncs(database, host)
    return host


def _read_ranges(database: Database, host: HostActivity) -> None:
    for start, end, kind, thread, text, number, payload, json_number in database.rows(
        "NVTX_EVENTS", "start", "end", "eventType", "globalTid", "text", "textId", "jsonText",
        "jsonTextId",
    ):  # fmt: skip
        if kind not in (_PUSH_POP, _START_END) or not _are_times(start, end):
            continue
        name = database.string(text) or database.string(number)
        if isinstance(thread, int) and name:
            said = database.string(payload) or database.string(json_number)
            host.ranges[thread >> _PROCESS_SHIFT].append(
                Range(name, start, end - start, thread, said)
            )


def _read_syncs(database: Database, host: HostActivity) -> None:
    """Which stream and event a call is about. Events are recorded again and again."""
    for correlation, process, kind, stream, event in database.rows(
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "correlationId", "globalPid", "syncType", "streamId",
        "eventId",
    ):  # fmt: skip
        if isinstance(correlation, int):
            key = (_id(process) >> _PROCESS_SHIFT, correlation)
            host.syncs[key] = _Sync(_id(kind), _stream(stream), _id(event))
    for correlation, process, stream, event in database.rows(
        "CUPTI_ACTIVITY_KIND_CUDA_EVENT", "correlationId", "globalPid", "streamId", "eventId"
    ):
        if isinstance(correlation, int):
            key = (_id(process) >> _PROCESS_SHIFT, _id(event))
            host.records[key].append((correlation, _stream(stream)))


def add_host(
    builder: ProfileBuilder, host: HostActivity, process: int, launched: Counter[int], zero_ns: int
) -> None:
    """Calls, synchronizations and ranges of a process; of launches those of `launched` alone."""
    for call in host.calls.get(process, ()):
        kind = kind_of_call(call.name)
        if kind in (CallKind.LAUNCH, CallKind.GRAPH, CallKind.OTHER):
            if not launched[call.correlation]:
                continue  # of another device, or of nothing that was recorded
            kind = CallKind.GRAPH if launched[call.correlation] > 1 else CallKind.LAUNCH
        builder.add_call(
            kind, call.name, float(call.start_ns - zero_ns), float(call.duration_ns), call.thread,
            correlation=call.correlation,
            waits_for=call.correlation if is_synchronous_copy(call.name) else -1,
        )  # fmt: skip
        _add_sync(builder, host, process, call)
    for found in host.ranges.get(process, ()):
        _add_range(builder, found, zero_ns)


def _add_sync(builder: ProfileBuilder, host: HostActivity, process: int, call: _Call) -> None:
    sync = host.syncs.get((process, call.correlation))
    if sync is None:
        return
    # The last record of the event before the call.
    before = [r for r in host.records.get((process, sync.event), ()) if r[0] < call.correlation]
    record, waited = before[-1] if before else (-1, -1)
    stream = sync.stream if sync.kind == _STREAM_WAIT_EVENT or waited < 0 else waited
    builder.add_sync(call.correlation, stream=stream, waited_stream=waited, record=record)


def _add_range(builder: ProfileBuilder, found: Range, zero_ns: int) -> None:
    start, duration = float(found.start_ns - zero_ns), float(found.duration_ns)
    operator = operator_of(found.text)
    comm = comm_of(found.text, found.payload)
    if operator is None and comm is None:
        builder.add_mark(mark_of(found.text), start, duration, found.thread, on_device=False)
        return
    signature = operator.signature if operator else None
    builder.add_operator(
        operator.name if operator else found.text, start, duration, found.thread,
        signature=-1 if signature is None else builder.signature(signature),
        sequence=operator.sequence if operator else -1,
        is_backward=operator is not None and operator.is_backward,
        comm=-1 if comm is None else builder.comm(comm),
    )  # fmt: skip


def _are_times(start: object, end: object) -> bool:
    if not isinstance(start, int) or not isinstance(end, int):
        return False
    return abs(start) < _YEARS_NS and 0 <= end - start < _YEARS_NS


def _id(value: object) -> int:
    return value if isinstance(value, int) else -1


def _stream(value: object) -> int:
    """A stream's number; the exporter writes none as the highest number of 32 bits."""
    return value if isinstance(value, int) and 0 <= value < (1 << 31) - 1 else -1
