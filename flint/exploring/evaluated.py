"""From what an estimate says to a Result."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flint.backends.cost.memory.memory import MemoryKind
from flint.backends.cost.simulate.exposure import IDLE
from flint.exploring.result import ClassResult, Result, Role, Status

if TYPE_CHECKING:
    from flint.backends.cost.estimate import ClassEstimate, Estimate
    from flint.exploring.point import Point
    from flint.ir.workload import Workload


def result_of(point: Point, e: Estimate, tokens: int = 0) -> Result:
    """What came of a point that was estimated; `tokens` are those of a step."""
    last = e.classes[int(np.argmax([c.end_ns for c in e.classes]))]
    large = max(e.classes, key=lambda c: c.memory.total_bytes)
    fits = all(c.memory.fits for c in e.classes)
    return Result(
        point=point,
        status=Status.FITS if fits else Status.TOO_LARGE,
        devices=e.workload.mesh.size,
        step_time_ns=e.step_time_ns,
        low_ns=e.interval.low_ns if e.interval else 0.0,
        high_ns=e.interval.high_ns if e.interval else 0.0,
        mfu=e.mfu,
        tokens=tokens,
        memory_bytes=large.memory.total_bytes,
        capacity_bytes=large.memory.capacity_bytes,
        compute_ns=last.compute_ns,
        exposed_ns=_exposed(last),
        waiting_ns=_idle(last, "wait"),
        host_ns=_idle(last, "host"),
        memory={**large.memory.breakdown, **large.memory.runtime},
        classes=tuple(map(_class_result, e.classes, roles(e.workload))),
        taken={"stack": e.stack.name, "policy": e.policy.name, "profile": e.profile},
        price_per_hour=e.cluster.price_per_hour.value if e.cluster.price_per_hour else 0.0,
        power_w=e.cluster.chip.power_w.value if e.cluster.chip.power_w else 0.0,
        notes=e.notes,
    )


def _class_result(c: ClassEstimate, role: Role) -> ClassResult:
    return ClassResult(
        c.name,
        c.ranks,
        c.end_ns,
        c.memory.total_bytes,
        waiting_ns=_idle(c, "wait"),
        cache_bytes=c.memory.breakdown.get(MemoryKind.STATE, 0),
        role=role,
    )


def roles(workload: Workload) -> list[Role]:
    """What each rank class of a workload serves."""
    pools = workload.metadata.get("pools")
    if pools is None:
        return [Role.STEP] * len(workload.classes)
    where = [c.where[pools["axis"]] for c in workload.classes]
    return [Role.PREFILL if w == tuple(pools["prefill"]) else Role.DECODE for w in where]


def _exposed(c: ClassEstimate) -> dict[str, float]:
    found: dict[str, float] = {}
    for share in c.shares:
        if share.over and share.exposed_ns:
            found[share.over] = found.get(share.over, 0.0) + share.exposed_ns
    return found


def _idle(c: ClassEstimate, kind: str) -> float:
    assert kind in IDLE, f"{kind} is no kind of idle time"
    return float(sum(s.exposed_ns for s in c.shares if s.kind == kind))
