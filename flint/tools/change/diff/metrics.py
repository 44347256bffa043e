"""The numbers of a capture that a budget may hold: step time, memory, FLOPs, communication."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from flint.text import format_bytes, format_count, format_duration, format_flops
from flint.tools.change.diff.rows import Cost
from flint.tools.change.diff.snapshot import Collectives, EstimateFacts, ProgramFacts, Snapshot


class Unit(StrEnum):
    """What a number counts."""

    NS = "ns"
    BYTES = "bytes"
    FLOPS = "flops"
    COUNT = "count"
    PERCENT = "percent"

    def text(self, value: float) -> str:
        """A number for people."""
        if self is Unit.NS:
            return format_duration(value) if value else "0 ns"
        if self is Unit.BYTES:
            return format_bytes(round(value))
        if self is Unit.FLOPS:
            return format_flops(round(value))
        if self is Unit.PERCENT:
            return f"{value:.1f} %"
        return format_count(round(value)) if value == round(value) else f"{value:,.1f}"


@dataclass(frozen=True, slots=True)
class Metric:
    """A number of a capture.

    `of` finds it, for some mesh axes if `by_axis`; it is None where it is not known. `part` is the
    part of it in the cost of a kernel, if kernels make it up.
    """

    name: str
    unit: Unit
    title: str
    of: Callable[[Snapshot, EstimateFacts | None, str], float | None]
    by_axis: bool = False
    part: Callable[[Cost], float] | None = None


def _program(find: Callable[[ProgramFacts], float]) -> Callable[..., float | None]:
    return lambda s, e, axis: None if s.program is None else find(s.program)


def _estimate(find: Callable[[EstimateFacts], float]) -> Callable[..., float | None]:
    return lambda s, e, axis: None if e is None else find(e)


def _peak(s: Snapshot, e: EstimateFacts | None, axis: str) -> float | None:
    """The peak, if there is one: profiles do not always say it."""
    return None if e is None or not e.peak_bytes else e.peak_bytes


def _exposed(s: Snapshot, e: EstimateFacts | None, axis: str) -> float | None:
    if e is None:
        return None
    return sum(ns for over, ns in e.exposed_ns.items() if not axis or axis in over.split(","))


def _sum(number: Callable[[Collectives], float]) -> Callable[..., float | None]:
    def find(s: Snapshot, e: EstimateFacts | None, axis: str) -> float | None:
        if s.program is None:
            return None
        mine = [c for c in s.program.collectives if not axis or axis in c.over.split(",")]
        return sum(number(c) for c in mine if c.kind != "recv")

    return find


#: All metrics by name, in the order in which they are shown.
METRICS: Mapping[str, Metric] = {
    m.name: m
    for m in (
        Metric(
            "step-time",
            Unit.NS,
            "step time",
            _estimate(lambda e: e.step_time_ns),
            False,
            lambda c: c.path_ns,
        ),
        Metric(
            "exposed-time", Unit.NS, "exposed communication", _exposed, True, lambda c: c.path_ns
        ),
        Metric("memory", Unit.BYTES, "peak memory", _peak),
        Metric(
            "mfu", Unit.PERCENT, "MFU", _estimate(lambda e: e.mfu * 100), False, lambda c: c.path_ns
        ),
        Metric("flops", Unit.FLOPS, "FLOPs", _program(lambda p: p.flops), False, lambda c: c.flops),
        Metric(
            "kernels",
            Unit.COUNT,
            "kernels and collectives",
            _program(lambda p: p.kernels),
            False,
            lambda c: c.executions,
        ),
        Metric(
            "traffic",
            Unit.BYTES,
            "memory traffic",
            _program(lambda p: p.bytes),
            False,
            lambda c: c.bytes,
        ),
        Metric("arguments", Unit.BYTES, "arguments", _program(lambda p: p.argument_bytes)),
        Metric(
            "collectives",
            Unit.COUNT,
            "collectives",
            _sum(lambda c: c.executions),
            True,
            lambda c: c.executions,
        ),
        Metric(
            "bytes",
            Unit.BYTES,
            "communication",
            _sum(lambda c: c.executions * c.comm_bytes),
            True,
            lambda c: c.comm_bytes,
        ),
    )
}


def axes_of(snapshot: Snapshot) -> tuple[str, ...]:
    """The mesh axes of a capture that is known."""
    return () if snapshot.program is None else tuple(snapshot.program.mesh)


@dataclass(frozen=True, slots=True)
class Number:
    """A metric on both sides; None on a side that does not know it."""

    metric: Metric
    axis: str
    before: float | None
    after: float | None

    @property
    def title(self) -> str:
        """What it is called, with its axis."""
        return f"{self.metric.title} over {self.axis}" if self.axis else self.metric.title

    def change_text(self) -> str:
        """`+3.0 %`, `new`, or "" where nothing changed."""
        if self.before is None or self.after is None or self.before == self.after:
            return ""
        if not self.before:
            return "new"
        if self.metric.unit is Unit.PERCENT:
            return f"{self.after - self.before:+.1f} points"
        percent = (self.after / self.before - 1) * 100
        if abs(percent) >= 1000:
            return f"x{self.after / self.before:.1f}"
        least = f"{'+' if percent > 0 else '-'}<0.1 %"
        return f"{percent:+.1f} %" if abs(percent) >= 0.05 else least


def numbers(
    before: Snapshot, after: Snapshot, estimated: tuple[EstimateFacts, EstimateFacts] | None
) -> Iterator[Number]:
    """All that at least one side knows; by axis where more than one axis has any."""
    one, other = estimated or (None, None)
    axes = tuple(dict.fromkeys((*axes_of(before), *axes_of(after))))
    for metric in METRICS.values():
        named = ("", *axes) if metric.by_axis and len(axes) > 1 else ("",)
        for axis in named:
            old, new = metric.of(before, one, axis), metric.of(after, other, axis)
            if (old, new) != (None, None) and (not axis or old or new):
                yield Number(metric, axis, old, new)
