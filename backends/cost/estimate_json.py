"""An Estimate as a JSON document."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, cast

from flint.backends.cost.estimate_numbers import EstimateNumbers
from flint.backends.cost.memory.over_time import memory_over_time

if TYPE_CHECKING:
    from flint.backends.cost.uncertainty.interval import Interval
    from flint.schemas.documents.estimate import (
        ClassEstimateDocument,
        EstimateDocument,
        MemoryDocument,
        SegmentDocument,
        ShareDocument,
    )

#: Version of the JSON form.
SCHEMA: Final = "flint.estimate/1"


def estimate_json(e: EstimateNumbers, interval: Interval | None) -> EstimateDocument:
    """Exact numbers, JSON-able; `interval` is that of the estimate."""
    found: EstimateDocument = {
        "schema": SCHEMA,
        "name": e.name,
        "cluster": e.cluster.name,
        "derate": e.cluster.derate.value,
        "host_launch_ns": e.cluster.host_launch_ns.value if e.cluster.host_launch_ns else 0.0,
        "mapping": [(axis, size, tier) for axis, size, tier in e.mapping],
        "stack": e.stack.name,
        "profile": e.profile,
        "policy": e.policy.name,
        "routing": e.routing,
        "step_time_ns": round(e.step_time_ns, 3),
        "mfu": round(e.mfu, 6),
        "hfu": round(e.hfu, 6),
        "dtype": e.dtype,
        "lower_bound": e.is_lower_bound,
        "unpriced": dict(e.unpriced),
        "classes": [_class_json(e, n) for n in range(len(e.classes))],
        "critical_path": [cast("SegmentDocument", asdict(s)) for s in e.critical_path],
        "notes": list(e.notes),
    }
    if e.workload.warnings:
        found["warnings"] = list(e.workload.warnings)
    if interval:
        found["interval"] = interval.to_json()
    if e.kernel_times:
        found["kernel_times"] = e.kernel_times.to_json()
    if e.measured:
        found["measured"] = e.measured.to_json()
    return found


def _class_json(e: EstimateNumbers, number: int) -> ClassEstimateDocument:
    c = e.classes[number]
    return {
        "name": c.name,
        "ranks": c.ranks,
        "end_ns": round(c.end_ns, 3),
        "shares": [cast("ShareDocument", asdict(s)) for s in c.shares],
        "memory": _memory_json(e, number),
    }


def _memory_json(e: EstimateNumbers, number: int) -> MemoryDocument:
    """The fields of a MemoryUse, those of the host only where something is there; its course."""
    memory = e.classes[number].memory
    found = cast("MemoryDocument", {**asdict(memory), **_course(e, number)})
    if not memory.host_bytes:
        del found["host_bytes"], found["host_breakdown"]
    if not memory.recorded:
        del found["recorded"]
    if not memory.runtime:
        del found["runtime"]
    return found


def _course(e: EstimateNumbers, number: int) -> dict[str, Any]:
    """The memory of a rank class over time, and what is there at its peak."""
    found = memory_over_time(e, number)
    return {
        "peak_ns": found.peak_ns,
        "over_time": [list(point) for point in found.points],
        "buffers": [asdict(b) for b in found.buffers],
        "buffers_left_out": found.buffers_left_out,
        "left_out_bytes": found.left_out_bytes,
    }
