"""A SQLite export of Nsight Systems as profiles: one for each device that a process launched on.

Ids of correlation are unique in a process alone, so that processes are read apart. A process is the
upper bits of `globalPid` and `globalTid`, a thread the lower ones.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from flint.errors import FlintError, Malformed
from flint.io.sqlite import MAGIC
from flint.tools.measure.profiles.builder import ProfileBuilder
from flint.tools.measure.profiles.kineto.calls import is_synchronous_copy, kind_of_call
from flint.tools.measure.profiles.kineto.collectives import with_comms_of_operators
from flint.tools.measure.profiles.kineto.fields import without_paths
from flint.tools.measure.profiles.nsight.database import Database, open_export
from flint.tools.measure.profiles.nsight.ranges import (
    comm_of,
    operator_of,
    with_comms_of_kernels,
)
from flint.tools.measure.profiles.profile import (
    ActivityKind,
    CallKind,
    Profile,
    Signature,
    element_of_kernel,
)
from flint.tools.measure.profiles.source import no_rocprof

# The host's side of an export: calls of CUDA, what they wait for, and NVTX ranges.

#: Values of NVTX_EVENTS.eventType: ranges of one thread, and those that end anywhere.
_PUSH_POP, _START_END = 59, 60
#: CUpti_ActivitySynchronizationType.
_STREAM_WAIT_EVENT = 2


@dataclass(frozen=True, slots=True)
class _Call:
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
        builder.add_mark(without_paths(found.text), start, duration, found.thread, on_device=False)
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


#: The version of the schema that this was written for; older ones lack columns, newer ones have more.
_KNOWN_MAJOR = 3
_ACTIVITY = "CUPTI_ACTIVITY_KIND_"
_TABLES = (
    (f"{_ACTIVITY}KERNEL", ActivityKind.KERNEL),
    (f"{_ACTIVITY}MEMCPY", ActivityKind.COPY),
    (f"{_ACTIVITY}MEMSET", ActivityKind.FILL),
    (f"{_ACTIVITY}GRAPH_TRACE", ActivityKind.KERNEL),
)
#: CUpti_ActivityMemcpyKind.
_COPIES = {
    1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD",
    9: "HtoH", 10: "PtoP",
}  # fmt: skip
#: CUpti_ActivityMemoryKind.
_MEMORIES = {1: "Pageable", 2: "Pinned", 3: "Device", 4: "Array", 5: "Managed"}
_PROCESS_SHIFT = 24
_MOST_PID = (1 << 24) - 1
_YEARS_NS = 1 << 60


@dataclass(frozen=True, slots=True)
class Ran:
    """A row of what ran on a device."""

    kind: ActivityKind
    name: str
    start_ns: int
    duration_ns: int
    stream: int
    correlation: int
    num_bytes: int


@dataclass
class _Exported:
    """What is read of an export: by process and device, what ran there."""

    ran: dict[tuple[int, int], list[Ran]] = field(default_factory=dict)
    misunderstood: int = 0


def recognizes(head: bytes) -> bool:
    """Whether a file is a SQLite database."""
    return head.startswith(MAGIC)


def read(path: Path) -> tuple[Profile, ...]:
    """Profiles of the devices of an export, in order of processes and devices.

    Raises FlintError FL801 (cannot be opened), FL826 (no export, damaged), FL827 (nothing of a device).
    """
    with open_export(path) as database:
        warnings = _check(database)
        exported = _activities(database)
        if not exported.ran:
            raise FlintError(
                "FL827",
                f"{path} has nothing that ran on a device: no rows in {_TABLES[0][0]}",
                help="record with: nsys profile --trace cuda,nvtx PROGRAM",
            )
        if exported.misunderstood:
            warnings.append(f"{exported.misunderstood:,} rows have impossible times: omitted")
        host = read_host(database)
        zero_ns = min(r.start_ns for rows in exported.ran.values() for r in rows)
        begun = _session_start(database)
        return tuple(
            _profile(database, key, rows, host, zero_ns, begun + zero_ns if begun else 0, warnings)
            for key, rows in sorted(exported.ran.items())
        )


def _check(database: Database) -> list[str]:
    """Warnings. Raises FlintError FL826 where it is another program's database, FL828 for rocprofv3's."""
    found = dict(database.rows("META_DATA_EXPORT", "name", "value"))
    if any(table.startswith("rocpd_") for table in database.tables):
        raise no_rocprof(database.path)
    if not found and not any(database.has(table) for table, _ in _TABLES):
        raise Malformed("it has none of the tables of an export")
    version = str(found.get("EXPORT_SCHEMA_VERSION", ""))
    major = version.partition(".")[0]
    if major.isdecimal() and int(major[:9]) > _KNOWN_MAJOR:
        return [
            f"the export's schema is {version[:20]}, newer than {_KNOWN_MAJOR}: it may contain more"
        ]
    return []


def _activities(database: Database) -> _Exported:
    exported = _Exported()
    for table, kind in _TABLES:
        for row in database.rows(
            table, "start", "end", "deviceId", "streamId", "correlationId", "globalPid",
            "demangledName", "shortName", "bytes", "copyKind", "srcKind", "dstKind",
        ):  # fmt: skip
            start, end, device, stream, correlation, process, *named = row
            numbers = (start, end, device, stream)
            if not _are_numbers(*numbers):
                exported.misunderstood += 1
                continue
            key = (_whole(process) >> _PROCESS_SHIFT, device)
            exported.ran.setdefault(key, []).append(
                Ran(kind, _name(database, table, *named), start, end - start, stream,
                    _whole(correlation, -1), max(0, _whole(named[2])))
            )  # fmt: skip
    return exported


def _are_numbers(start: Any, end: Any, device: Any, stream: Any) -> bool:
    if not all(isinstance(n, int) for n in (start, end, device, stream)):
        return False
    inside: bool = abs(start) < _YEARS_NS and 0 <= end - start < _YEARS_NS
    return inside and 0 <= int(stream) < 1 << 31


def _name(
    database: Database, table: str, demangled: Any, short: Any, _bytes: Any, copy_kind: Any,
    source: Any, target: Any,
) -> str:  # fmt: skip
    if table.endswith("MEMCPY"):
        places = [_MEMORIES.get(kind, "Unknown") for kind in (source, target)]
        return f"Memcpy {_COPIES.get(copy_kind, 'Unknown')} ({' -> '.join(places)})"
    if table.endswith("MEMSET"):
        return "Memset"
    if table.endswith("GRAPH_TRACE"):
        return "CUDA graph"
    return database.string(demangled) or database.string(short) or "kernel"


def _profile(
    database: Database,
    key: tuple[int, int],
    rows: list[Ran],
    host: HostActivity,
    zero_ns: int,
    origin_ns: int,
    warnings: list[str],
) -> Profile:
    process, device = key
    builder = ProfileBuilder("nsight", warnings=list(warnings))
    _set_device(builder, database, process, device)
    launched = Counter(r.correlation for r in rows)
    add_host(builder, host, process, launched, zero_ns)
    for row in rows:
        builder.add_activity(
            row.kind, row.name, float(row.start_ns - zero_ns), float(row.duration_ns), row.stream,
            num_bytes=row.num_bytes,
            correlation=row.correlation,
        )  # fmt: skip
    profile = with_types_of_kernels(builder.build(origin_ns))
    return with_comms_of_kernels(with_comms_of_operators(profile))


def _set_device(builder: ProfileBuilder, database: Database, process: int, device: int) -> None:
    """The name of a device, which a process numbers as CUDA_VISIBLE_DEVICES says."""
    gpu = device
    for number, cuda, of in database.rows("TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId", "pid"):
        if cuda == device and isinstance(number, int) and of in (None, process & _MOST_PID):
            gpu = number
    for number, name, memory, processors in database.rows(
        "TARGET_INFO_GPU", "id", "name", "totalMemory", "smCount"
    ):
        if number == gpu:
            builder.device = str(name or "")[:200]
            builder.device_memory_bytes = max(0, _whole(memory))
            builder.processors = max(0, _whole(processors))
            return


def _session_start(database: Database) -> int:
    """When the recording began, in ns since 1970; 0 if it is not there."""
    for (utc,) in database.rows("TARGET_INFO_SESSION_START_TIME", "utcEpochNs"):
        return max(0, _whole(utc))
    return 0


def _whole(value: object, default: int = 0) -> int:
    return value if isinstance(value, int) else default


#: StableHLO's names, as PyTorch's profiler has them.
_TYPES = {
    "f32": "float", "bf16": "c10::BFloat16", "f16": "c10::Half", "i64": "long int",
    "ui8": "unsigned char",
}  # fmt: skip


def with_types_of_kernels(profile: Profile) -> Profile:
    """Signatures of operators with the type that the longest kernel they launched names.

    All tensors of an operator have one type then: of indices that is wrong. An operator around others
    has that of their longest kernel. A shape without dimensions is a number and has none.
    """
    longest = _longest(profile)
    signatures = dict.fromkeys(profile.signatures)
    rows = profile.operators.signature.tolist()
    typed: dict[int, Signature] = {}
    for operator, activity in longest.items():
        if rows[operator] >= 0:
            name = profile.strings[profile.activities.name[activity]]
            named = _TYPES.get(element_of_kernel(name), "float")
            said = profile.signatures[rows[operator]]
            types = tuple(named if shape else "" for shape in said.shapes)
            typed[operator] = replace(said, types=types)
            signatures.setdefault(typed[operator])
    numbers = {s: i for i, s in enumerate(signatures)}
    signature = np.array(
        [numbers[typed[i]] if i in typed else n for i, n in enumerate(rows)], dtype=np.int32
    )
    operators = replace(profile.operators, signature=signature)
    return replace(profile, operators=operators, signatures=tuple(signatures))


def _longest(profile: Profile) -> dict[int, int]:
    """For each operator the longest activity that it, or one inside it, launched."""
    found: dict[int, int] = {}
    duration = profile.activities.duration_ns
    for activity, innermost in enumerate(profile.activities.operator.tolist()):
        for at in profile.operators.around(innermost):
            if at not in found or duration[activity] > duration[found[at]]:
                found[at] = activity
    return found
