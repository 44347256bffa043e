"""`*.xplane.pb` as profiles: one for each device, with the launches that the host made for it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from flint.errors import FlintError
from flint.messages import decode_error, message_classes
from flint.tools.measure.profiles.builder import ProfileBuilder
from flint.tools.measure.profiles.kineto.calls import kind_of_call
from flint.tools.measure.profiles.profile import ActivityKind, CallKind, Profile, ProfiledComm
from flint.tools.measure.profiles.source import whole_profile
from flint.tools.measure.profiles.xplane.modules import Programs, collective_opcode, comm_name, stem
from flint.tools.measure.profiles.xplane.planes import (
    Plane,
    PlaneEvent,
    PlaneNames,
    Value,
    decoded,
    text,
    whole,
)
from flint.tools.measure.profiles.xplane.tpu import TpuReader

# A GPU's plane: streams of kernels and copies, launched by calls with the same correlation id.

# The host plane: launches by correlation id, steps, and what the allocators of devices held.

#: What events of the host need to be read: frames of Python have nothing.
NEEDED = frozenset(("step_num", "correlation_id", "allocator_name"))
_ALLOCATOR = re.compile(r"^[GT]PU_(\d+)_bfc$")


@dataclass(frozen=True, slots=True)
class Launch:
    """A call of the runtime on a thread."""

    thread: int
    event: PlaneEvent
    correlation: int


@dataclass(frozen=True)
class Host:
    """What the host plane says of all devices. `peak_bytes` is by device."""

    launches: tuple[Launch, ...] = ()
    steps: tuple[tuple[int, PlaneEvent], ...] = ()
    peak_bytes: dict[int, int] = field(default_factory=dict)

    def calls_of(self, correlations: set[int]) -> list[Launch]:
        """Calls that launched one of these, and those of the same threads that launched nothing."""
        own = [c for c in self.launches if c.correlation in correlations]
        threads = {c.thread for c in own}
        launched = {c.correlation for c in own}
        waits = [
            c
            for c in self.launches
            if c.thread in threads and c.correlation not in launched and _only_waits(c)
        ]
        return sorted(own + waits, key=lambda c: c.event.start_ns)


def _only_waits(launch: Launch) -> bool:
    kind = kind_of_call(launch.event.name)
    return kind.name.startswith(("WAIT", "STREAM", "RECORD"))


def host_of(planes: list[Plane]) -> Host:
    """The planes of the host, read."""
    launches: list[Launch] = []
    steps: list[tuple[int, PlaneEvent]] = []
    peaks: dict[int, int] = defaultdict(int)
    for plane in planes:
        for thread, line in enumerate(plane.lines):
            for event in line.events:
                if "step_num" in event.stats:
                    steps.append((thread, event))
                elif "correlation_id" in event.stats:
                    launches.append(Launch(thread, event, event.number("correlation_id")))
                elif found := _ALLOCATOR.match(event.word("allocator_name")):
                    device = int(found[1][:9])
                    peaks[device] = max(peaks[device], event.number("peak_bytes_in_use", 0))
    return Host(tuple(launches), tuple(steps), dict(peaks))


_STREAM = re.compile(r"^Stream #(\d{1,9})")
_SIZE = re.compile(r"\bsize:(\d{1,18})\b")
_COPY = re.compile(r"^Memcpy([HDAP])2([HDAP])$")
_PLACES = re.compile(r"kind_src:(\w+) kind_dst:(\w+)")
#: AMD's runtime copies by a kernel of its own.
_COPY_KERNEL = "__amd_rocclr_copyBuffer"


@dataclass(frozen=True)
class GpuReader:
    """Fills a profile with one GPU's plane."""

    _builder: ProfileBuilder
    _device: int
    _programs: Programs

    def read(self, plane: Plane, host: Host) -> int:
        """Add all of it; returns the number of activities."""
        correlations: Counter[int] = Counter()
        operators: dict[int, int] = {}
        streams = [(m, line) for line in plane.lines if (m := _STREAM.match(line.name))]
        for _, line in streams:
            correlations.update(e.number("correlation_id") for e in line.events)
        for number, run in enumerate(_gpu_runs(host.calls_of(set(correlations)))):
            self._add_calls(run, number, correlations)
            operators.update((c.correlation, number) for c in run)
        for found, line in streams:
            for event in line.events:
                self._add_activity(event, int(found[1]), operators)
        return sum(len(line.events) for _, line in streams)

    def _add_calls(self, run: list[Launch], number: int, correlations: Counter[int]) -> None:
        """Calls of one run of an operation, and the operation as an operator around them."""
        first, last = run[0], run[-1]
        for call in run:
            kind = kind_of_call(call.event.name)
            if kind in (CallKind.OTHER, CallKind.LAUNCH) and correlations[call.correlation]:
                many = correlations[call.correlation] > 1
                kind = CallKind.GRAPH if many else CallKind.LAUNCH
            self._builder.add_call(
                kind, call.event.name, call.event.start_ns, call.event.duration_ns,
                call.thread, correlation=call.correlation,
            )  # fmt: skip
        if operation := first.event.word("hlo_op"):
            known = self._programs.known(first.event.stats, operation)
            opcode = known.compiled.opcode.removeprefix("hlo.") if known else stem(operation)
            self._builder.add_operator(
                f"hlo::{opcode}", first.event.start_ns, last.event.end_ns - first.event.start_ns,
                first.thread, external=number,
            )  # fmt: skip

    def _add_activity(self, event: PlaneEvent, stream: int, operators: dict[int, int]) -> None:
        correlation = event.number("correlation_id")
        operation = event.word("hlo_op")
        known = self._programs.known(event.stats, operation) if operation else None
        copied = event.word("memcpy_details")
        kind = ActivityKind.COPY if copied else ActivityKind.KERNEL
        if event.word("memset_details"):
            kind = ActivityKind.FILL
        size = _SIZE.search(copied or event.word("memset_details"))
        comm = known.comm_of(self._device) if known else None
        sent = collective_opcode(operation)
        if comm is None and sent:
            comm = ProfiledComm(comm_name(sent), -1, -1, "")
        copies = "copy" if event.name.startswith(_COPY_KERNEL) else ""
        category = sent or event.word("hlo_category") or copies
        self._builder.add_activity(
            kind, _name(event.name, copied), event.start_ns, event.duration_ns, stream,
            num_bytes=int(size[1]) if size else 0,
            correlation=correlation,
            external=operators.get(correlation, -1),
            comm=-1 if comm is None else self._builder.comm(comm),
            flops=event.number("flops"),
            bytes_accessed=event.number("bytes_accessed"),
            category=category,
            compiled=self._builder.compiled(known.compiled) if known else -1,
        )  # fmt: skip


def _name(name: str, copied: str) -> str:
    """A kernel's name; a copy as Kineto calls it: `Memcpy HtoD (pageable -> device)`."""
    found, places = _COPY.match(name), _PLACES.search(copied)
    if found is None:
        return name
    between = f" ({places[1]} -> {places[2]})" if places else ""
    return f"Memcpy {found[1]}to{found[2]}{between}"


def _gpu_runs(calls: list[Launch]) -> list[list[Launch]]:
    """Calls of one thread that follow each other for one operation, in order of their starts."""
    found: list[list[Launch]] = []
    last: dict[int, tuple[str, list[Launch]]] = {}
    for call in calls:
        operation = f"{call.event.word('program_id')} {call.event.word('hlo_op')}"
        before = last.get(call.thread)
        if before is not None and before[0] == operation:
            before[1].append(call)
            continue
        run = [call]
        last[call.thread] = (operation, run)
        found.append(run)
    return found


# The messages of an XSpace, declared at run time, and its planes one by one.
#
# Field numbers are those of tsl/profiler/protobuf/xplane.proto. A plane at a time is decoded, so that
# the memory is that of the largest one.

_MESSAGES = {
    "Stat": "metadata_id 1 int64, double_value 2 double value, uint64_value 3 uint64 value, "
    "int64_value 4 int64 value, str_value 5 bytes value, bytes_value 6 bytes value, "
    "ref_value 7 uint64 value",
    "EventMetadata": "id 1 int64, name 2 bytes, display_name 4 bytes, stats 5 Stat*",
    "StatMetadata": "id 1 int64, name 2 bytes",
    "EventMetadataEntry": "key 1 int64, value 2 EventMetadata",
    "StatMetadataEntry": "key 1 int64, value 2 StatMetadata",
    "Event": "metadata_id 1 int64, offset_ps 2 int64 data, num_occurrences 5 int64 data, "
    "duration_ps 3 int64, stats 4 Stat*",
    "Line": "id 1 int64, name 2 bytes, timestamp_ns 3 int64, events 4 Event*",
    "Plane": "id 1 int64, name 2 bytes, lines 3 Line*, event_metadata 4 EventMetadataEntry*, "
    "stat_metadata 5 StatMetadataEntry*, stats 6 Stat*",
}
_PLANES, _BYTES = 1, 2
#: Bytes of the wire types that have a fixed size.
_FIXED = {1: 8, 5: 4}
#: Planes of one file: each device has one or two.
_MOST_PLANES = 1 << 14


@cache
def plane_class() -> Any:
    """The protobuf class of an XPlane."""
    return message_classes("flint_xplane", _MESSAGES)["Plane"]


def planes(data: bytes, source: str) -> Iterator[Any]:
    """The XPlanes of an XSpace. Raises FlintError FL824 where the bytes are no XSpace."""
    count = 0
    for number, start, stop in _fields(data, source):
        if number != _PLANES:
            continue
        count += 1
        if count > _MOST_PLANES:
            raise broken(source, f"it has more than {_MOST_PLANES:,} planes")
        try:
            yield plane_class().FromString(data[start:stop])
        except decode_error() as error:
            raise broken(source, f"the plane at byte {start} is damaged") from error


def broken(source: str, why: str) -> FlintError:
    """The FlintError FL824 for a file that is not a whole XSpace."""
    return FlintError(
        "FL824",
        f"{source} is not a whole XSpace: {why}",
        help="give the .xplane.pb that jax.profiler wrote; a killed profiler leaves an incomplete file",
    )


def _fields(data: bytes, source: str) -> Iterator[tuple[int, int, int]]:
    """Number, start and stop of each field of the outermost message."""
    at = 0
    while at < len(data):
        tag, start = _varint(data, at, source)
        wire = tag & 7
        if wire == 0:
            _, stop = _varint(data, start, source)
        elif wire == _BYTES:
            size, start = _varint(data, start, source)
            stop = start + size
        elif wire in _FIXED:
            stop = start + _FIXED[wire]
        else:
            raise broken(source, f"no field begins at byte {at}")
        if stop > len(data):
            raise broken(
                source, f"the field at byte {at} lacks its last {stop - len(data):,} bytes"
            )
        yield tag >> 3, start, stop
        at = stop


def _varint(data: bytes, at: int, source: str) -> tuple[int, int]:
    value = 0
    for i, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return value, at + i + 1
    raise broken(source, f"the number at byte {at} does not end")


def recognizes(head: bytes) -> bool:
    """Whether a file begins as an XSpace does: a plane, which begins with its id or its name."""
    if head[:1] != b"\x0a":
        return False
    try:
        size, at = _varint(head, 1, "")
        if head[at : at + 1] == b"\x08":
            _, at = _varint(head, at + 1, "")
        length, start = _varint(head, at + 1, "")
    except FlintError:
        return False
    name = head[start : start + length]
    return head[at : at + 1] == b"\x12" and length <= size and name.isascii() and name != b""


# Steps of XLA's profiles: annotations with a number, else runs of the program that takes longest.

_STEPS, _MODULES = "Steps", "XLA Modules"
_THREAD = "steps"
#: A program that runs but twice may be a warm-up and the rest.
_LEAST_RUNS = 3


def add_steps(builder: ProfileBuilder, plane: Plane, host: Host) -> None:
    """Marks `step#N`: the device's own, the host's, or runs of a program, the first that there are."""
    own = [e for line in plane.lines if line.name == _STEPS for e in line.events]
    if own:
        for place, step in enumerate(sorted(own, key=lambda e: e.start_ns)):
            digits = step.name.removeprefix("step").strip("# ")
            _add(builder, digits if digits.isdecimal() else str(place), step.start_ns, step.end_ns)
    elif host.steps:
        for thread, step in host.steps:
            builder.add_mark(
                f"step#{step.number('step_num', 0)}", step.start_ns, step.duration_ns, thread,
                on_device=False,
            )  # fmt: skip
    else:
        starts = _runs(plane)
        if starts:
            builder.warnings.append(
                "no annotation says what a step is: runs of one program are steps"
            )
        for number, (start, end) in enumerate(pairwise([*starts, float("inf")])):
            _add(builder, str(number), start, min(end, 1e18))


def _add(builder: ProfileBuilder, number: str, start_ns: float, end_ns: float) -> None:
    builder.add_mark(f"step#{number}", start_ns, end_ns - start_ns, _THREAD, on_device=True)


def _runs(plane: Plane) -> list[float]:
    """When each run of the program that takes longest begins on the device; [] for few runs."""
    modules = [e for line in plane.lines if line.name == _MODULES for e in line.events]
    if modules:
        longest = _longest((e.name, e) for e in modules)
        starts = [e.start_ns for e in modules if e.name == longest]
    else:
        starts = _runs_of_kernels(plane)
    return sorted(starts) if len(starts) >= _LEAST_RUNS else []


def _runs_of_kernels(plane: Plane) -> list[float]:
    """Where programs are told by their kernels alone: by the first of those that no loop repeats.

    Kernels get lost in recordings, so that those of one run are not equally many.
    """
    kernels = [e for line in plane.lines for e in line.events if e.word("hlo_op")]
    longest = _longest((e.word("hlo_module"), e) for e in kernels)
    found: dict[str, list[float]] = defaultdict(list)
    for event in kernels:
        if event.word("hlo_module") == longest:
            found[f"{event.word('hlo_op')} {event.name}"].append(event.start_ns)
    most = 1.5 * min(map(len, found.values()), default=0)
    return min((starts for starts in found.values() if len(starts) <= most), key=min, default=[])


def _longest(named: Iterable[tuple[str, PlaneEvent]]) -> str:
    total: Counter[str] = Counter()
    for name, event in named:
        total[name] += round(event.duration_ns)
    return max(sorted(total), key=total.__getitem__, default="")


#: An XSpace is one protobuf message, which has at most 2 GiB.
MOST_BYTES = 1 << 31
_DEVICE = re.compile(r"^/device:(TPU|GPU):(\d{1,6})$")
_METADATA, _HOST, _TASK = "/host:metadata", "/host:CPU", "Task Environment"
#: Below this a time is from the start of the profile, not of 1970 (a day in 1980).
_WALL_CLOCK_NS = 3.2e17


def read(path: Path) -> tuple[Profile, ...]:
    """Profiles of the devices of an XSpace, in order of their numbers.

    Raises FlintError FL824 (damaged), FL825 (nothing of a device), FL801, FL803, FL806.
    """
    programs, others, failed, zero_ns = Programs(), [], 0, 0
    for plane in planes(whole_profile(path, MOST_BYTES), str(path)):
        if plane.name == _METADATA.encode():
            failed += programs.add(PlaneNames(plane))
            continue
        name = plane.name.decode("utf-8", "replace")
        if name in (_HOST, _TASK) or _DEVICE.match(name):
            begins = (line.timestamp_ns for line in plane.lines)  # in ns since 1970, or smaller
            zero_ns = zero_ns or next((n for n in begins if n > _WALL_CLOCK_NS), 0)
            needed = NEEDED if plane.name == _HOST.encode() else frozenset()
            others.append(decoded(plane, zero_ns, needed))
    warnings = [f"{failed} programs of the profile cannot be read, so their shapes are unknown"]
    begun = max((whole(p.stats.get("profile_start_time"), 0) for p in others), default=0)
    return profiles_of(
        others, programs, str(path), "xplane", zero_ns or begun, warnings if failed else []
    )


def profiles_of(
    planes: list[Plane],
    programs: Programs,
    source: str,
    form: str,
    origin_ns: int,
    warnings: list[str],
) -> tuple[Profile, ...]:
    """Profiles of decoded planes. Raises FlintError FL825 where nothing ran on a device."""
    host = host_of([p for p in planes if p.name == _HOST])
    found = [(int(m[2]), m[1], p) for p in planes if (m := _DEVICE.match(p.name))]
    profiles = []
    for number, kind, plane in sorted(found, key=lambda f: (f[1], f[0])):
        builder = _builder(form, kind, number, plane, host)
        builder.warnings.extend(warnings)
        if _fill(builder, kind, number, plane, programs, host):
            profiles.append(builder.build(origin_ns))
    if not profiles:
        has = ", ".join(sorted({p.name for p in planes})[:8]) or "no planes"
        raise FlintError(
            "FL825",
            f"{source} has nothing that ran on a device: {has}",
            help="profile on a GPU or TPU; XLA's work on a CPU is not recorded as a device",
        )
    return tuple(profiles)


def _fill(
    builder: ProfileBuilder, kind: str, number: int, plane: Plane, programs: Programs, host: Host
) -> int:
    add_steps(builder, plane, host)
    if kind == "TPU":
        return TpuReader(builder, number, programs).read(plane)
    return GpuReader(builder, number, programs).read(plane, host)


def _builder(form: str, kind: str, number: int, plane: Plane, host: Host) -> ProfileBuilder:
    stats = plane.stats
    builder = ProfileBuilder(
        form,
        device=device_name(kind, stats),
        device_memory_bytes=max(0, whole(stats.get("memory_size"), 0)),
        processors=max(0, whole(stats.get("core_count"), 0)),
        peak_bytes=host.peak_bytes.get(number, 0),
    )
    if plane.left_out:
        builder.warnings.append(f"{plane.left_out:,} events have impossible times: omitted")
    return builder


#: Maker, version, processors, and gigabytes from and to, that one product alone has, by its maker's
#: datasheet. The A100's and L40S's are those of other products as well.
_PRODUCTS = (
    ("nvidia", "9.0", 132, 75, 86, "NVIDIA H100 80GB HBM3"),
    ("nvidia", "9.0", 132, 135, 152, "NVIDIA H200"),
    ("nvidia", "10.0", 148, 175, 200, "NVIDIA B200"),
    ("amd", "9.4", 304, 190, 210, "AMD Instinct MI300X"),
)


def device_name(kind: str, stats: dict[str, Value]) -> str:
    """The name of a device of a kind (GPU, TPU): the product's if it can be told."""
    named = text(stats, "device_type_string") or text(stats, "device_type")
    if named:
        return named
    maker = text(stats, "device_vendor") or kind
    version = ".".join(text(stats, f"compute_cap_{part}") for part in ("major", "minor"))
    cores, gigabytes = whole(stats.get("core_count"), 0), whole(stats.get("memory_size"), 0) / 1e9
    for of, has, processors, least, most, product in _PRODUCTS:
        same = maker.lower().startswith(of) and (version, cores) == (has, processors)
        if same and least <= gigabytes <= most:
            return product
    return f"{maker} {kind} {version}" if version != "." else maker
