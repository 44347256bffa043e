"""What a step does before and after it was grown."""

from __future__ import annotations

from flint.backends.cost.memory.memory import step_memory
from flint.ir.workload import Workload
from flint.passes.work.totals import totals
from flint.tools.share.change import Change


def changes_of(before: Workload, after: Workload) -> tuple[Change, ...]:
    """Totals of one device in one step: work, memory and communication, those of collectives by kind and axes."""
    one, other = _values(before), _values(after)
    names = [*one, *(name for name in other if name not in one)]
    return tuple(Change(name, one.get(name, 0), other.get(name, 0)) for name in names)


def _values(workload: Workload) -> dict[str, float]:
    found = totals(workload.programs[0])
    values: dict[str, float] = {
        "devices": workload.mesh.size,
        "rows": len(workload.programs[0]),
        "FLOPs": found.flops,
        "parameter bytes": found.parameter_bytes,
        "peak memory bytes": max(use.peak_bytes for use in step_memory(workload)),
        "communication bytes": found.comm_bytes,
    }
    for part in found.communication:
        values[f"{part.kind} over {part.axes}, bytes"] = part.comm_bytes
    return values
