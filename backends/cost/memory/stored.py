"""Which programs the memory of an estimate is laid out for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from flint.backends.cost.memory.liveness import Buffers
from flint.backends.cost.memory.memory import (
    MemoryUse,
    PeakPlace,
    layouts,
    memory_use,
    stored_programs,
)
from flint.backends.cost.simulate.timeline import Policy
from flint.cluster.stack import Stack
from flint.ir.made_by import MeasuredBy
from flint.ir.program import Program
from flint.ir.workload import Workload
from flint.passes.base import Pass, run_passes
from flint.passes.fusion.attention import has_fused_attention
from flint.passes.pass_list import parse_passes
from flint.passes.profiles import profile
from flint.passes.rewrites.delay_past_loops import DelayPastLoops

#: Profiles whose kernels XLA stores in a heap, for GPUs in another order.
_XLA = frozenset({"xla-gpu", "xla-gpu+flash", "xla-tpu"})
#: Kernels of XLA for TPUs as it stores them: slices of stacks are copies.
_TPU_KERNELS = (
    'expand-ragged{rows=false},fuse-chains{blocks="" prologue=any epilogue=any},fuse-tpu-products,'
    "write-slices"
)


@dataclass(frozen=True, eq=False)
class Stored:
    """The workload whose memory is asked for, and whether parameters are gathered ahead.

    With `as_kernels` its rows are kernels already. With `passes` these make the rows of those of the
    workload. With `packed` buffers have places in a heap, `heap_share` times as large as they make it.
    The peak of a program that a compiler made is the compiler's.
    """

    workload: Workload
    ahead: bool
    as_kernels: bool
    passes: tuple[Pass, ...] = ()
    packed: bool = False
    heap_share: float = 1.0

    @property
    def programs(self) -> Sequence[Program]:
        """The program that buffers are made for, of each program of the workload."""
        if self.passes:
            return self.workload.kept.get("laid out", self.passes, self._laid_out)
        return self.workload.programs if self.as_kernels else stored_programs(self.workload)

    def _laid_out(self) -> Sequence[Program]:
        return [run_passes(p, self.passes) for p in self.workload.programs]

    def memory(self) -> Sequence[MemoryUse]:
        """The memory of each program. It is kept until another policy asks."""
        return self.workload.kept.get("memory", (self.ahead, self.heap_share), self._memory)

    def _memory(self) -> Sequence[MemoryUse]:
        return [memory_use(p, **self._options) for p in self.programs]

    def layouts(self, number: int) -> tuple[Buffers, Buffers]:
        """The buffers of a program on its device, and on the host."""
        return layouts(self.programs[number], **self._options)

    @property
    def _options(self) -> dict[str, Any]:
        by = self.workload.compiled_by
        return {
            "ahead": self.ahead,
            "packed": self.packed,
            "heap_share": self.heap_share,
            "compiled": by.memory if by else None,
        }


def stored(workload: Workload, kernels: Workload, policy: Policy, stack: Stack) -> Stored:
    """What memory is laid out for.

    Of programs that XLA compiles its kernels, which store what it stores: they calculate again what
    others read. It gathers nothing for the next iteration of a loop. Of others kernels with one
    result each; but where a profile turned attention into flash kernels, its scores are never
    stored, and only the profile's kernels say so.
    """
    name = str(kernels.metadata.get("profile", ""))
    if name in _XLA and not kernels.compiled_by:
        share = stack.heap_share.value if stack.heap_share else 1.0
        return replace(_by_xla(workload, kernels, name), packed=True, heap_share=share)
    ahead = policy.prepares_ahead and not workload.is_launched
    if any(map(has_fused_attention, kernels.programs)):
        return Stored(kernels, ahead, as_kernels=True)
    return Stored(workload, ahead, as_kernels=False)


def _by_xla(workload: Workload, kernels: Workload, name: str) -> Stored:
    """What XLA stores, for TPUs or GPUs."""
    if name == "xla-tpu":
        passes = (*profile(name).passes, *parse_passes(_TPU_KERNELS))
        return Stored(workload, ahead=False, as_kernels=True, passes=passes)
    return Stored(kernels, ahead=False, as_kernels=True, passes=(DelayPastLoops(),))


def recorded_memory(by: MeasuredBy, capacity_bytes: int) -> Sequence[MemoryUse]:
    """For each rank class the peak that its profile says, 0 where it says none.

    What lives when is not in a profile, so nothing else is known.
    """
    nowhere = PeakPlace(0, "", "", "")
    return [MemoryUse(c.peak_bytes, nowhere, {}, capacity_bytes, recorded=True) for c in by.classes]
