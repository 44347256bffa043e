"""Memory of a device over a step: how much at most, where, for what, and whether it fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from flint.backends.cost.memory.ahead import gathered_ahead
from flint.backends.cost.memory.kinds import MemoryKind, kinds
from flint.backends.cost.memory.liveness import Buffers, buffers
from flint.cluster.models import Chip
from flint.ir.program import Program
from flint.ir.workload import Workload
from flint.passes.base import run_passes
from flint.passes.fusion.kernels import FuseKernels
from flint.passes.rewrites.dead_code import DropDeadCode
from flint.passes.rewrites.sink_fills import SinkFills

#: Points of a curve at most: enough for a picture.
CURVE_POINTS = 512


@dataclass(frozen=True)
class PeakPlace:
    """The row during which most memory is in use."""

    row: int
    opcode: str
    scope: str
    location: str


@dataclass(frozen=True)
class MemoryUse:
    """What one device of a rank class needs, in bytes.

    `breakdown` says what the memory is used for at the peak, largest first. `curve` are (row, most
    bytes in use from there to the next point), the body of a loop once. `capacity_bytes` is the
    chip's memory, 0 if none was given; all of it is taken to be free for the step. What an
    allocator loses between buffers, and what libraries keep for themselves, is not in it. `host_bytes`
    are the most that lie in the memory of the host for this device, and are in no other number.
    """

    peak_bytes: int
    at: PeakPlace
    breakdown: Mapping[str, int]
    capacity_bytes: int = 0
    curve: tuple[tuple[int, int], ...] = field(default=(), repr=False)
    host_bytes: int = 0
    host_breakdown: Mapping[str, int] = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """Whether the peak fits into the chip's memory; so it does where none is known."""
        return not self.capacity_bytes or self.peak_bytes <= self.capacity_bytes


def memory_use(program: Program, chip: Chip | None = None, *, ahead: bool = False) -> MemoryUse:
    """The memory that a program needs at each row, from when values are made and read.

    With `ahead`, parameters are gathered one layer ahead (see `gathered_ahead`).

    What shares memory is said in `liveness.buffers`. Of a program of kernels only what crosses
    their edges takes memory, as on a device; of one of operations, every intermediate value.
    """
    layout = buffers(program)
    if ahead:
        layout = gathered_ahead(program, layout)
    host = layout.of(layout.on_host)
    layout = layout.of(~layout.on_host) if layout.on_host.any() else layout
    live, away = layout.live_bytes, host.live_bytes
    moment = int(live.argmax()) if len(live) else 0
    return MemoryUse(
        peak_bytes=int(live.max(initial=0)),
        at=_place(program, moment // 2),
        breakdown=_breakdown(program, layout, moment),
        capacity_bytes=int(chip.memory_bytes.value) if chip is not None else 0,
        curve=_curve(layout),
        host_bytes=int(away.max(initial=0)),
        host_breakdown=_breakdown(program, host, int(away.argmax())) if len(away) else {},
    )


def step_memory(
    workload: Workload, chip: Chip | None = None, *, ahead: bool = False
) -> tuple[MemoryUse, ...]:
    """The memory of each program of a workload whose rows are operations, not kernels.

    Rows become kernels with one result each, by rules that compilers share. Kernels of a target
    profile can have several, and a row does not say which of them a reader still needs: all would
    stay until the last one is read. What repeats a constant is no array that waits outside of the
    loops that read it.
    """
    passes = (SinkFills(), DropDeadCode(), FuseKernels())
    kernels = (run_passes(p, passes) for p in workload.programs)
    return tuple(memory_use(k, chip, ahead=ahead) for k in kernels)


def saved_activation_bytes(program: Program) -> int:
    """Most bytes of activations that wait for a backward pass at one time.

    Those of microbatches in flight count, and so do activations that were gathered and are kept.
    """
    layout = buffers(program)
    kind = kinds(program, layout)
    saved = (kind == MemoryKind.SAVED_ACTIVATIONS) | (kind == MemoryKind.PIPELINE_STASH)
    return int(layout.of(saved).live_bytes.max(initial=0))


def _place(program: Program, number: int) -> PeakPlace:
    if not len(program):
        return PeakPlace(0, "", "", "")
    row = program.row(number)
    return PeakPlace(number, row.opcode, row.scope, row.location)


def _breakdown(program: Program, layout: Buffers, moment: int) -> Mapping[str, int]:
    kind = kinds(program, layout)
    held = layout.at(moment)
    found = {str(k): int(layout.num_bytes[held[kind[held] == k]].sum()) for k in MemoryKind}
    return dict(sorted(((k, v) for k, v in found.items() if v), key=lambda item: -item[1]))


def _curve(layout: Buffers) -> tuple[tuple[int, int], ...]:
    """Most bytes in use in each of at most CURVE_POINTS equal pieces of the program."""
    rows = layout.live_bytes.reshape(-1, 2).max(axis=1)
    if not len(rows):
        return ()
    starts = np.unique(np.linspace(0, len(rows), CURVE_POINTS, endpoint=False).astype(np.int64))
    most = np.maximum.reduceat(rows, starts)
    return tuple(zip(starts.tolist(), most.tolist(), strict=True))
