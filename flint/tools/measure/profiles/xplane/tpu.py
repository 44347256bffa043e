"""A TPU's plane: operations one after another, asynchronous ones beside them, modules that hold them.

The line `XLA Ops` nests: what holds others (loops, branches, calls) is omitted, its parts count.
Operations of a module run without the host, so a module has one launch, at its start.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass

from flint.tools.measure.profiles.builder import ProfileBuilder
from flint.tools.measure.profiles.profile import ActivityKind, CallKind, ProfiledComm
from flint.tools.measure.profiles.xplane.modules import (
    CONTAINERS,
    Programs,
    collective_opcode,
    comm_name,
    stem,
)
from flint.tools.measure.profiles.xplane.planes import Plane, PlaneEvent, PlaneLine

_OPS, _ASYNC, _MODULES = "XLA Ops", "Async XLA Ops", "XLA Modules"
#: The operand of a done, as its HLO writes it: `all-gather-done(bf16[8]{0} %all-gather-start.3)`.
_OPERAND = re.compile(r"-done\(.*?%([\w.\-]+)")
_THREAD = "modules"
#: Times of one plane are rounded to picoseconds, and those of JSON to nanoseconds.
_CLOSE_NS = 1.0


@dataclass(frozen=True)
class TpuReader:
    """Fills a profile with one TPU's plane."""

    _builder: ProfileBuilder
    _device: int
    _programs: Programs

    def read(self, plane: Plane) -> int:
        """Add all of it; returns the number of activities."""
        lines = {name: _events(plane.lines, name) for name in (_OPS, _ASYNC, _MODULES)}
        modules = lines[_MODULES]
        for number, module in enumerate(modules):
            self._builder.add_call(
                CallKind.GRAPH, "module", module.start_ns, 0.0, _THREAD,
                correlation=number,
            )  # fmt: skip
        ops = leaves(lines[_OPS])
        self._add(ops, lines[_ASYNC], _Modules(modules))
        return len(ops)

    def _add(self, ops: list[PlaneEvent], beside: list[PlaneEvent], modules: _Modules) -> None:
        """Operations and those beside them, which wait for their starts, and which dones wait for."""
        running = _Running(beside)
        issued = {running.begun_by(e): e.end_ns for e in ops if not _is_done(e)}
        numbers = []
        for number, (lane, event) in enumerate(_lanes(beside)):
            start_ns = min(max(event.start_ns, issued.get(number, event.start_ns)), event.end_ns)
            numbers.append(self._add_activity(
                event, 1 + lane, start_ns, event.end_ns - start_ns, modules.of(event), comm=True
            ))  # fmt: skip
        for event in ops:
            start_ns, ended = event.start_ns, -1
            begun = -1 if _is_done(event) else running.begun_by(event)
            if _is_done(event):
                ended = running.ended_by(event, _operand(event, self._programs))
            if ended >= 0:  # waiting is the other's time
                start_ns = min(max(start_ns, beside[ended].end_ns), event.end_ns)
            row = self._add_activity(
                event, 0, start_ns, event.end_ns - start_ns, modules.of(event),
                comm=begun < 0 and ended < 0,
            )  # fmt: skip
            if ended >= 0:
                self._builder.add_wait(row, numbers[ended])
            if begun >= 0:
                self._builder.add_wait(numbers[begun], row)

    def _add_activity(
        self,
        event: PlaneEvent,
        stream: int,
        start_ns: float,
        duration_ns: float,
        module: int,
        *,
        comm: bool,
    ) -> int:
        known = self._programs.known(event.stats, event.name)
        category = event.word("hlo_category")
        found = known.comm_of(self._device) if known else None
        sent = collective_opcode(category, event.name) if comm else ""
        if found is None and sent:
            found = ProfiledComm(comm_name(sent), -1, -1, "")
        return self._builder.add_activity(
            ActivityKind.KERNEL, event.name, start_ns, duration_ns, stream,
            correlation=module,
            comm=self._builder.comm(found) if found and comm else -1,
            flops=event.number("model_flops", event.number("flops")),
            bytes_accessed=event.number("bytes_accessed"),
            category=sent or category or stem(event.name),
            compiled=self._builder.compiled(known.compiled) if known else -1,
        )  # fmt: skip


class _Running:
    """Asynchronous operations by name: a loop runs one of a name many times."""

    def __init__(self, beside: list[PlaneEvent]) -> None:
        self._rows: dict[str, list[int]] = defaultdict(list)
        self._starts: dict[str, list[float]] = defaultdict(list)
        for row, event in enumerate(beside):
            self._rows[event.name].append(row)
            self._starts[event.name].append(event.start_ns)

    def begun_by(self, start: PlaneEvent) -> int:
        """The one that begins while its start runs, or right after; -1 if there is none."""
        at = bisect_left(self._starts.get(start.name, []), start.start_ns - _CLOSE_NS)
        rows = self._rows.get(start.name, [])
        if at == len(rows) or self._starts[start.name][at] > start.end_ns + _CLOSE_NS:
            return -1
        return rows[at]

    def ended_by(self, done: PlaneEvent, name: str) -> int:
        """The last of this name that began before its done ended; -1 if there is none."""
        at = bisect_right(self._starts.get(name, []), done.end_ns) - 1
        return self._rows[name][at] if at >= 0 else -1


class _Modules:
    """Which run of a module an event is in: the last that began before it."""

    def __init__(self, modules: list[PlaneEvent]) -> None:
        self._starts = [m.start_ns for m in modules]

    def of(self, event: PlaneEvent) -> int:
        """Number of the run, -1 before the first."""
        return bisect_right(self._starts, event.start_ns + _CLOSE_NS) - 1


def leaves(events: list[PlaneEvent]) -> list[PlaneEvent]:
    """Events that hold no others. In order of time, longer ones first where they start together.

    An event holds others if its category says so, or if they take more than half of it.
    """
    inside = [0.0] * len(events)
    open_: list[int] = []
    for row, event in enumerate(events):
        while open_ and events[open_[-1]].end_ns < event.end_ns - _CLOSE_NS:
            open_.pop()
        if open_ and events[open_[-1]].start_ns <= event.start_ns < events[open_[-1]].end_ns:
            inside[open_[-1]] += event.duration_ns
        open_.append(row)
    return [
        e
        for e, held in zip(events, inside, strict=True)
        if not held
        or not (CONTAINERS & {e.word("hlo_category"), stem(e.name)} or held > e.duration_ns / 2)
    ]


def _events(lines: list[PlaneLine], name: str) -> list[PlaneEvent]:
    found = [e for line in lines if line.name == name for e in line.events]
    return sorted(found, key=lambda e: (e.start_ns, -e.duration_ns))


def _lanes(events: list[PlaneEvent]) -> list[tuple[int, PlaneEvent]]:
    """Events with a number each, so that those of one number do not overlap."""
    ends: list[float] = []
    found = []
    for event in events:
        lane = next((i for i, end in enumerate(ends) if end <= event.start_ns), len(ends))
        ends[lane : lane + 1] = [event.end_ns]
        found.append((lane, event))
    return found


def _is_done(event: PlaneEvent) -> bool:
    return stem(event.name).endswith("-done") or event.word("hlo_category").endswith("-done")


def _operand(event: PlaneEvent, programs: Programs) -> str:
    known = programs.known(event.stats, event.name)
    if known is not None and known.reads:
        return known.reads[0]
    found = _OPERAND.search(event.text) or _OPERAND.search(event.word("long_name"))
    return found[1] if found else ""
