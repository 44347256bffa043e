"""A GPU's plane: streams of kernels and copies, launched by calls with the same correlation id."""

from __future__ import annotations

import re
from collections import Counter

from flint.tools.measure.profiles.builder import ProfileBuilder
from flint.tools.measure.profiles.kineto.calls import kind_of_call
from flint.tools.measure.profiles.profile import ActivityKind, CallKind, ProfiledComm
from flint.tools.measure.profiles.xplane.categories import collective_opcode, comm_name, stem
from flint.tools.measure.profiles.xplane.host import Host, Launch
from flint.tools.measure.profiles.xplane.modules import Programs
from flint.tools.measure.profiles.xplane.planes import Plane, PlaneEvent

_STREAM = re.compile(r"^Stream #(\d{1,9})")
_SIZE = re.compile(r"\bsize:(\d{1,18})\b")
_COPY = re.compile(r"^Memcpy([HDAP])2([HDAP])$")
_PLACES = re.compile(r"kind_src:(\w+) kind_dst:(\w+)")
#: AMD's runtime copies by a kernel of its own.
_COPY_KERNEL = "__amd_rocclr_copyBuffer"


class GpuReader:
    """Fills a profile with one GPU's plane."""

    def __init__(self, builder: ProfileBuilder, device: int, programs: Programs) -> None:
        self._builder = builder
        self._device = device
        self._programs = programs

    def read(self, plane: Plane, host: Host) -> int:
        """Add all of it; returns the number of activities."""
        correlations: Counter[int] = Counter()
        operators: dict[int, int] = {}
        streams = [(m, line) for line in plane.lines if (m := _STREAM.match(line.name))]
        for _, line in streams:
            correlations.update(e.number("correlation_id") for e in line.events)
        for number, run in enumerate(_runs(host.calls_of(set(correlations)))):
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


def _runs(calls: list[Launch]) -> list[list[Launch]]:
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
