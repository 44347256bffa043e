"""Totals of a real workload, and what estimates say of its step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flint.backends.cost.estimate import estimate
from flint.cluster.load import preset_names
from flint.cluster.named import load_cluster
from flint.errors import FlintError
from flint.ir.program import Kind, Program
from flint.ir.workload import Workload
from flint.passes.work.totals import total
from flint.requests.estimate import EstimateRequest
from flint.tools.share.totals import Change, comm_bytes_by_label

#: Machines that step times are kept on: of other makers, generations and networks.
MACHINES = ("h100-dgx", "a100-80-dgx", "b200-dgx", "v5p")


@dataclass(frozen=True)
class Measures:
    """Totals by name, of each program (`programs`) and of all of them, and of steps on machines."""

    programs: tuple[Mapping[str, int], ...]
    machines: Mapping[str, float]

    @property
    def whole(self) -> dict[str, float]:
        """Totals of all programs together, then those of machines."""
        found: dict[str, float] = {}
        for of_program in self.programs:
            for name, value in of_program.items():
                found[name] = found.get(name, 0) + value
        return {**found, **self.machines}

    def changes(self, after: Measures) -> tuple[Change, ...]:
        """What moved by how much."""
        other = after.whole
        return tuple(Change(n, v, other[n]) for n, v in self.whole.items())

    def furthest(self, after: Measures) -> float:
        """The largest share that any total of any program, or of any machine, moved by."""
        pairs: list[tuple[float, float]] = [
            (value, other[name])
            for one, other in zip(self.programs, after.programs, strict=True)
            for name, value in one.items()
        ]
        pairs += [(value, after.machines[name]) for name, value in self.machines.items()]
        return max((abs(Change("", a, b).share) for a, b in pairs), default=0.0)


def totals_of(workload: Workload) -> tuple[Mapping[str, int], ...]:
    """FLOPs, bytes of memory traffic, of parameters, and communicated over each label of axes, of one step."""
    return tuple(map(_totals, workload.programs))


def _totals(program: Program) -> dict[str, int]:
    works = program.kind >= Kind.COMPUTE
    moved = program.result_bytes + program.operand_bytes
    parameters = program.result_bytes[program.kind == Kind.PARAMETER]
    found = {
        "FLOPs": total(program, np.where(works, program.flops, 0)),
        "bytes moved": total(program, np.where(works, moved, 0)),
        "bytes of parameters": int(parameters.sum()),
    }
    for label, value in comm_bytes_by_label(program).items():
        found[f"bytes over {label}"] = value
    return found


def machines_for(workload: Workload) -> tuple[str, ...]:
    """Machines of `MACHINES` that take the mesh; others of the presets where none does."""
    found = tuple(name for name in MACHINES if step_on(workload, name))
    others = (name for name in preset_names() if name not in MACHINES)
    return found or next(((name,) for name in others if step_on(workload, name)), ())


def step_on(workload: Workload, machine: str) -> dict[str, float]:
    """Step time in ns and peak memory in bytes on a preset; nothing where it does not take the mesh."""
    try:
        found = estimate(workload, EstimateRequest(load_cluster(machine), unpriced_is_zero=True))
    except FlintError:
        return {}
    peak = max(c.memory.total_bytes for c in found.classes)
    return {
        f"step time on {machine}": float(found.step_time_ns),
        f"peak memory on {machine}": float(peak),
    }


def measures_of(workload: Workload, machines: Sequence[str]) -> Measures:
    """Totals, and steps on machines."""
    found: dict[str, float] = {}
    for machine in machines:
        found |= step_on(workload, machine)
    return Measures(totals_of(workload), found)


def is_systolic(machine: str) -> bool:
    """Whether the chips of a preset multiply in systolic arrays, as TPUs do."""
    return hasattr(load_cluster(machine).chip.family, "arrays")


def logs(before: Measures, after: Measures, names: Sequence[str]) -> list[float]:
    """log of how far what machines say moved."""
    return [math.log(after.machines[n] / before.machines[n]) for n in names]
