"""Kernels as points of a roofline plot: work against bytes moved, and what the chip could do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from flint.backends.cost.chips.kernel_table import kernels_of
from flint.backends.cost.chips.kernels import KernelKind
from flint.backends.cost.chips.model import tf32_kinds
from flint.backends.cost.simulate.exposure import labels_of
from flint.ir.program import Int64s

if TYPE_CHECKING:
    from flint.backends.cost.estimate import Estimate
    from flint.backends.cost.simulate.timeline import ClassTimeline


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """Kernels that are alike.

    Of masked attention `flops` and `moved_bytes` are only what a kernel calculates.
    """

    kind: str  #: Kind of kernel: gemm, elementwise, ...
    dtype: str  #: Element type that it calculates with.
    scope: str  #: Its scope in the source.
    location: str  #: File and line of the user's source.
    phase: str  #: forward, backward, remat, optimizer, prefill, decode or unknown.
    flops: int  #: Floating point operations of one execution.
    moved_bytes: int  #: Bytes read and written by one execution.
    count: int  #: Executions in a step.
    total_ns: float  #: How long these take together, in ns.

    @property
    def flops_per_byte(self) -> float:
        """Arithmetic intensity; infinite for what moves nothing."""
        return self.flops / self.moved_bytes if self.moved_bytes else float("inf")

    @property
    def flops_per_s(self) -> float:
        """What the kernel reaches."""
        return self.flops * self.count / self.total_ns * 1e9 if self.total_ns else 0.0

    @property
    def bytes_per_s(self) -> float:
        """The bandwidth that the kernel reaches; above the memory's where caches help."""
        return self.moved_bytes * self.count / self.total_ns * 1e9 if self.total_ns else 0.0


@dataclass(frozen=True)
class RooflineView:
    """Kernels of a rank class, most time first, and the chip's roofs."""

    name: str  #: Name of the class.
    chip: str  #: Name of the chip.
    peak_flops_per_s: Mapping[str, float]  #: Dense peak by element type, in FLOP/s.
    bandwidth_bytes_per_s: float  #: Bandwidth of its memory, in bytes/s.
    points: tuple[RooflinePoint, ...]  #: The kernels.


def roofline(estimate: Estimate, number: int) -> RooflineView:
    """The kernels that the rank class `number` launches in a step."""
    chip = estimate.cluster.chip
    return RooflineView(
        name=estimate.classes[number].name,
        chip=chip.name,
        peak_flops_per_s={k: v.value for k, v in chip.peak_flops_per_s.items()},
        bandwidth_bytes_per_s=chip.memory_bandwidth_bytes_per_s.value,
        points=_points(estimate, estimate.timeline.classes[number]),
    )


def _points(estimate: Estimate, timeline: ClassTimeline) -> tuple[RooflinePoint, ...]:
    program = timeline.work.program
    tf32 = tf32_kinds(estimate.profile, estimate.cluster.chip)
    kernels, rows = kernels_of(program, tf32=tf32)
    labels, counts = labels_of(program), _counts(timeline)
    found: dict[tuple[str, str, str, str, str, int, int], list[float]] = {}
    moved = kernels.moved_bytes
    on_chip = kernels.kind != KernelKind.HOST_COPY  # copies to the host are under another roof
    for at in np.flatnonzero(on_chip).tolist():
        row = int(rows[at])
        if not counts[row]:
            continue
        key = (
            labels[row][0],
            kernels.dtypes[kernels.dtype[at]],
            program.strings[program.scope[row]],
            program.strings[program.location[row]],
            labels[row][2],
            int(kernels.flops[at]),
            int(moved[at]),
        )
        entry = found.setdefault(key, [0, 0.0])
        entry[0] += int(counts[row])
        entry[1] += int(counts[row]) * float(timeline.work.duration_ns[row])
    points = (RooflinePoint(*key, int(n), round(ns, 3)) for key, (n, ns) in found.items())
    return tuple(sorted(points, key=lambda p: (-p.total_ns, p.kind, p.scope, p.location, p.flops)))


def _counts(timeline: ClassTimeline) -> Int64s:
    work = timeline.work
    return np.bincount(work.nodes.row, minlength=len(work.program))
