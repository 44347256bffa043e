"""Which programs the memory of an estimate is laid out for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flint.backends.cost.memory.memory import (
    MemoryUse,
    PeakPlace,
    memory_use,
    stored_programs,
)
from flint.backends.cost.simulate.timeline import Policy
from flint.ir.measured_by import MeasuredBy
from flint.ir.program import Program
from flint.ir.workload import Workload
from flint.passes.fusion.attention import has_fused_attention


@dataclass(frozen=True, eq=False)
class Stored:
    """The workload whose memory is asked for, and whether parameters are gathered ahead.

    With `as_kernels` its rows are kernels already.
    """

    workload: Workload
    ahead: bool
    as_kernels: bool

    @property
    def programs(self) -> Sequence[Program]:
        """The program that buffers are made for, of each program of the workload."""
        return self.workload.programs if self.as_kernels else stored_programs(self.workload)

    def memory(self) -> Sequence[MemoryUse]:
        """The memory of each program. It is kept until another policy asks."""
        return self.workload.kept.get(
            "memory", self.ahead, lambda: [memory_use(p, ahead=self.ahead) for p in self.programs]
        )


def stored(workload: Workload, kernels: Workload, policy: Policy) -> Stored:
    """What memory is laid out for: kernels with one result each, which compare best with XLA.

    Where a profile turned attention into flash kernels, its scores are never stored, and only the
    profile's kernels say so; and those of `xla-cpu` are made to say what XLA for CPUs stores, which
    gathers nothing ahead.
    """
    profile = str(kernels.metadata.get("profile", ""))
    ahead = policy.prepares_ahead and profile != "xla-cpu"
    if profile == "xla-cpu" or any(map(has_fused_attention, kernels.programs)):
        return Stored(kernels, ahead, as_kernels=True)
    return Stored(workload, ahead, as_kernels=False)


def recorded_memory(by: MeasuredBy, capacity_bytes: int) -> Sequence[MemoryUse]:
    """For each rank class the peak that its profile says, 0 where it says none.

    What lives when is not in a profile, so nothing else is known.
    """
    nowhere = PeakPlace(0, "", "", "")
    return [MemoryUse(c.peak_bytes, nowhere, {}, capacity_bytes, recorded=True) for c in by.classes]
