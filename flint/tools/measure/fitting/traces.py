"""Measured kernels and collectives of a workload that was made of profiles.

The time of an operator is that of all kernels that one call of it launched: its price is the
operator's. Kernels of which nothing but their time is known, and copies to and from the host, have no
constants.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from flint.backends.cost.chips.kernel_table import KINDS, kernels_of
from flint.backends.cost.chips.kernels import KernelKind
from flint.backends.cost.chips.model import tf32_kinds
from flint.cluster.models import Chip
from flint.ir.arrays import Float64s
from flint.ir.op_class import Collective, OpClass
from flint.ir.program import Flag, Kind, Program
from flint.ir.workload import Workload
from flint.tools.measure.measurements.rows import CollectiveTime, KernelTime

#: A class for each kind: what a kernel of it is read back as.
CLASS_OF = {kind: op for op, kind in reversed(KINDS.items())} | {
    KernelKind.ELEMENTWISE: OpClass.ARITHMETIC,
    KernelKind.COPY: OpClass.COPY,
    KernelKind.NORM: OpClass.NORM,
    KernelKind.ATTENTION: OpClass.ATTENTION,
    KernelKind.SOFTMAX: OpClass.SOFTMAX,
    KernelKind.REDUCTION: OpClass.REDUCE,
}
#: Kinds of which no constant can be fitted.
_WITHOUT = (KernelKind.UNPRICED, KernelKind.HOST_COPY)
#: Launches that say how long one takes, at least.
LEAST_LAUNCHES = 50
#: A host that waits longer than so many launches did something else.
LONGEST_LAUNCH = 20


@dataclass
class TraceRows:
    """What a measured workload holds; `unknown_ns` is the time of kernels of unknown work."""

    kernels: list[KernelTime] = field(default_factory=list)
    collectives: list[CollectiveTime] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    known_ns: float = 0.0
    unknown_ns: float = 0.0
    launches_ns: list[float] = field(default_factory=list)

    @property
    def host_launch_ns(self) -> float | None:
        """Mean time that the host took for a launch, without its pauses; None for too few."""
        if len(self.launches_ns) < LEAST_LAUNCHES:
            return None
        times = np.array(self.launches_ns)
        return float(times[times <= LONGEST_LAUNCH * np.median(times)].mean())


def trace_rows(workload: Workload, chip: Chip) -> TraceRows:
    """The measured rows of all its programs. `chip` says in what f32 is multiplied."""
    found = TraceRows()
    for program in workload.programs:
        _take_kernels(program, chip, found)
        _take_collectives(program, workload, found)
        host = (program.op == OpClass.HOST) & ((program.flags & Flag.WAITS) == 0)
        found.launches_ns += program.measured_ns[host & (program.measured_ns > 0)].tolist()
    return found


def _take_kernels(program: Program, chip: Chip, found: TraceRows) -> None:
    kernels, rows = kernels_of(program, tf32=tf32_kinds("eager", chip))
    times = operator_ns(program)
    on_device = (program.kind == Kind.COMPUTE) & (program.op != OpClass.HOST)
    total = float(program.measured_ns[on_device].sum())
    usable = ~np.isin(kernels.kind, _WITHOUT) & (times[rows] > 0)
    for at in np.flatnonzero(usable).tolist():
        kind = KernelKind(int(kernels.kind[at]))
        found.kernels.append(KernelTime(
            CLASS_OF[kind], tuple(kernels.dims[at].tolist()), kernels.dtypes[kernels.dtype[at]],
            float(times[rows[at]]), int(kernels.flops[at]), int(kernels.read_bytes[at]),
            int(kernels.written_bytes[at]), int(kernels.elements[at]), int(kernels.arrays[at]),
            bool(kernels.causal[at]), indexed=bool(kernels.indexed_elements[at]),
        ))  # fmt: skip
    known = float(times[rows[usable]].sum())
    found.known_ns += known
    found.unknown_ns += max(total - known, 0.0)
    unknown = int(on_device.sum()) - int(
        np.isin(program.launcher, program.launcher[rows[usable]]).sum()
    )
    if unknown > 0:
        found.left_out["kernels of unknown work, or copies of the host"] += unknown


def operator_ns(program: Program) -> Float64s:
    """Of each row, its time and that of the other kernels which the same call launched."""
    times = program.measured_ns.astype(np.float64)
    launched = (program.launcher > 0) & (program.kind == Kind.COMPUTE)
    launched &= program.op != OpClass.HOST
    sums = np.bincount(program.launcher[launched], weights=times[launched])
    found: Float64s = times.copy()
    found[launched] = sums[program.launcher[launched]]
    return found


def _take_collectives(program: Program, workload: Workload, found: TraceRows) -> None:
    alone = len(workload.programs) < 2
    known: dict[int, tuple[int, ...]] = {}
    for row in np.flatnonzero(program.kind == Kind.COLLECTIVE).tolist():
        group = int(program.group[row])
        if group < 0 or program.measured_ns[row] <= 0:
            continue
        if alone:
            found.left_out["collectives of one rank's profile: their times hold waiting"] += 1
            continue
        if group not in known:
            known[group] = tuple(program.groups[group].members(program.mesh)[0].tolist())
        found.collectives.append(CollectiveTime(
            Collective(int(program.collective[row])), int(program.comm_bytes[row]), len(known[group]), 0,
            program.dtypes[int(program.dtype[row])], float(program.measured_ns[row]), known[group],
        ))  # fmt: skip
