"""From what an estimate says to a Result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from flint.backends.cost.memory.memory import MemoryKind
from flint.backends.cost.simulate.exposure import IDLE, Share, labels_of, shares
from flint.text import format_bytes
from flint.tools.explore.result import ClassResult, PoolRole, Result, Status

if TYPE_CHECKING:
    from flint.backends.cost.estimate import Estimate
    from flint.backends.cost.estimate_numbers import ClassEstimate
    from flint.backends.cost.memory.memory import MemoryUse
    from flint.backends.cost.setting import Setting, Timed
    from flint.cluster.models import Cluster
    from flint.cluster.tables import Quantity
    from flint.ir.workload import Workload
    from flint.tools.explore.evaluation.bounds import Bound
    from flint.tools.explore.point import Point


def result_of(point: Point, e: Estimate, tokens: int = 0) -> Result:
    """What came of a point that was estimated; `tokens` are those of a step."""
    last = e.classes[int(np.argmax([c.end_ns for c in e.classes]))]
    large = max(e.classes, key=lambda c: c.memory.total_bytes)
    fits = all(c.memory.fits for c in e.classes)
    return Result(
        point=point,
        status=Status.FITS if fits else Status.TOO_LARGE,
        devices=e.workload.mesh.size,
        reason="" if fits else _needs(large.memory, e.cluster.chip.name),
        place="" if fits else large.memory.at.location or large.memory.at.scope,
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
        taken=_taken(e.stack.name, e.policy.name, e.profile),
        price_per_hour=_value(e.cluster.price_per_hour),
        power_w=_value(e.cluster.chip.power_w),
        notes=e.notes,
    )


def parts_of(setting: Setting, timed: Timed) -> list[Sequence[Share]]:
    """Shares of the rank class that ends last, and of all where they are of different pools."""
    kernels, classes = setting.kernels, timed.timeline.classes
    labels = kernels.kept.get("labels", None, lambda: list(map(labels_of, kernels.programs)))
    last = int(np.argmax([c.total_ns for c in classes]))
    every = "pools" in setting.workload.metadata
    return [
        shares(c, labels[of.program]) if every or number == last else ()
        for number, (c, of) in enumerate(zip(classes, kernels.classes, strict=True))
    ]


def too_large(point: Point, setting: Setting, memory: Sequence[MemoryUse]) -> Result:
    """A point whose memory does not fit: it is not placed in time."""
    chip = setting.cluster.chip
    large = max(memory, key=lambda m: m.total_bytes)
    kinds = {**large.breakdown, **large.runtime}
    classes = [
        ClassResult(
            c.name,
            int(ranks),
            0.0,
            m.total_bytes,
            cache_bytes=m.breakdown.get(MemoryKind.STATE, 0),
            role=role,
        )
        for c, ranks, m, role in zip(
            setting.workload.classes,
            setting.ranks_of_classes(),
            memory,
            roles(setting.workload),
            strict=True,
        )
    ]
    return Result(
        point=point,
        status=Status.TOO_LARGE,
        devices=setting.workload.mesh.size,
        reason=_needs(large, chip.name),
        place=large.at.location or large.at.scope,
        memory_bytes=large.total_bytes,
        capacity_bytes=large.capacity_bytes,
        memory=kinds,
        classes=tuple(classes),
        taken=_taken(setting.stack.name, setting.policy.name, setting.profile),
        price_per_hour=_value(setting.cluster.price_per_hour),
        power_w=_value(chip.power_w),
    )


def too_large_by(point: Point, bound: Bound, cluster: Cluster, devices: int) -> Result:
    """A point whose arguments alone do not fit: it was not captured."""
    capacity = int(cluster.chip.memory_bytes.value)
    return Result(
        point=point,
        status=Status.TOO_LARGE,
        devices=devices,
        reason=f"its arguments alone take {format_bytes(bound.num_bytes)} of the "
        f"{format_bytes(capacity)} of {cluster.chip.name}",
        place=bound.largest,
        memory_bytes=bound.num_bytes,
        capacity_bytes=capacity,
        is_bound=True,
        price_per_hour=_value(cluster.price_per_hour),
        power_w=_value(cluster.chip.power_w),
    )


def _needs(use: MemoryUse, chip: str) -> str:
    kinds = {**use.breakdown, **use.runtime}
    most = max(kinds, key=lambda kind: kinds[kind], default="")
    return (
        f"it needs {format_bytes(use.total_bytes)} of the {format_bytes(use.capacity_bytes)} of "
        f"{chip}" + (f", most of it for {most.replace('_', ' ')}" if most else "")
    )


def _taken(stack: str, policy: str, profile: str) -> dict[str, str]:
    return {"stack": stack, "policy": policy, "profile": profile}


def _value(quantity: Quantity | None) -> float:
    return quantity.value if quantity else 0.0


def _class_result(c: ClassEstimate, role: PoolRole) -> ClassResult:
    return ClassResult(
        c.name,
        c.ranks,
        c.end_ns,
        c.memory.total_bytes,
        waiting_ns=_idle(c, "wait"),
        cache_bytes=c.memory.breakdown.get(MemoryKind.STATE, 0),
        role=role,
    )


def roles(workload: Workload) -> list[PoolRole]:
    """What each rank class of a workload serves."""
    pools = workload.metadata.get("pools")
    if pools is None:
        return [PoolRole.STEP] * len(workload.classes)
    where = [c.where[pools["axis"]] for c in workload.classes]
    return [PoolRole.PREFILL if w == tuple(pools["prefill"]) else PoolRole.DECODE for w in where]


def _exposed(c: ClassEstimate) -> dict[str, float]:
    found: dict[str, float] = {}
    for share in c.shares:
        if share.over and share.exposed_ns:
            found[share.over] = found.get(share.over, 0.0) + share.exposed_ns
    return found


def _idle(c: ClassEstimate, kind: str) -> float:
    assert kind in IDLE, f"{kind} is not a kind of idle time"
    return float(sum(s.exposed_ns for s in c.shares if s.kind == kind))
