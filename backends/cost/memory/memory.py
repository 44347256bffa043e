"""Memory of a device over a step: how much at most, where, for what, and whether it fits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from flint.backends.cost.memory.heap import placed
from flint.backends.cost.memory.liveness import Buffers, buffers, donated
from flint.backends.cost.simulate.layers import (
    Preparation,
    follows_the_layers,
    loop_of_rows,
    preparation,
    runs_of_rows,
    turns_of_rows,
)
from flint.cluster.models import Chip
from flint.cluster.stack import Stack
from flint.ir.made_by import CompilerMemory
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Flag, Kind, Phase, Program, RegionKind
from flint.ir.workload import Workload
from flint.passes.base import run_passes
from flint.passes.pass_list import parse_passes

# What the memory of a device is used for.


class MemoryKind(StrEnum):
    """Why a buffer is there."""

    PARAMETERS = "parameters"  #: weights: arguments that are no other kind
    OPTIMIZER_STATE = "optimizer_state"  #: arguments that only the optimizer reads
    STATE = "state"  #: donated arguments of a step without an optimizer: caches
    INPUTS = "inputs"  #: arguments of integers, and those that training does not change
    GRADIENTS = "gradients"  #: what backward passes leave for the optimizer, or return
    SAVED_ACTIVATIONS = "saved_activations"  #: what a forward pass leaves for the backward pass
    PIPELINE_STASH = "pipeline_stash"  #: saved activations of other microbatches in flight
    GATHERED = "gathered"  #: parameters and activations gathered from other devices
    OUTPUTS = "outputs"  #: results of the step that take the place of no argument
    TEMPORARIES = "temporaries"  #: everything else
    FRAGMENTATION = "fragmentation"  #: what the allocator loses between buffers


def kinds(program: Program, buffers: Buffers) -> NDArray[np.object_]:
    """The `MemoryKind` of each buffer."""
    found = np.full(len(buffers.num_bytes), MemoryKind.TEMPORARIES, dtype=object)
    reads = _Reads(program, buffers)
    first, phase = buffers.first, program.phase
    backward = np.isin(phase[first], (Phase.BACKWARD, Phase.REMAT))
    forward = np.isin(phase[first], (Phase.FORWARD, Phase.UNKNOWN))
    launched = bool(((program.flags & Flag.LAUNCHED) != 0).any())  # then nothing else is returned
    found[reads.returned] = MemoryKind.GRADIENTS if launched else MemoryKind.OUTPUTS
    found[forward & (reads.by[Phase.BACKWARD] | reads.by[Phase.REMAT])] = (
        MemoryKind.SAVED_ACTIVATIONS
    )
    found[backward & (reads.by[Phase.OPTIMIZER] | reads.returned)] = MemoryKind.GRADIENTS
    gathers = program.collective == Collective.ALL_GATHER
    found[np.setdiff1d(buffers.of_row[gathers], np.flatnonzero(reads.returned))] = (
        MemoryKind.GATHERED
    )
    found[gathers[first] & ~reads.returned] = MemoryKind.GATHERED  # those for the next layer too
    for op, kind in _OF_CLASSES.items():
        found[program.op[first] == op] = kind
    arguments = program.kind[first] == Kind.PARAMETER
    found[arguments] = _arguments(program, first[arguments], reads)
    return found


_OF_CLASSES = {
    OpClass.STASH: MemoryKind.PIPELINE_STASH,
    OpClass.SAVED: MemoryKind.SAVED_ACTIVATIONS,
    OpClass.NEIGHBOUR: MemoryKind.SAVED_ACTIVATIONS,
    OpClass.ACCUMULATOR: MemoryKind.GRADIENTS,
}


class _Reads:
    """In which phases each buffer is read, and whether the step returns it."""

    def __init__(self, program: Program, buffers: Buffers) -> None:
        owner, target = program.dep_owner[buffers.reads], program.deps[buffers.reads]
        buffer, count = buffers.of_row[target], len(buffers.num_bytes)
        uses = buffers.of_row[owner] != buffer
        uses |= program.kind[owner] == Kind.COMPUTE
        results = program.op[owner] == OpClass.RESULT
        self.by = {}
        for phase in Phase:
            self.by[phase] = np.zeros(count, dtype=np.bool_)
            self.by[phase][buffer[uses & ~results & (program.phase[owner] == phase)]] = True
        self.returned = np.zeros(count, dtype=np.bool_)
        self.returned[buffer[results]] = True
        #: For each row, the phases of its direct readers, as bits.
        self.phases = np.zeros(len(program), dtype=np.int64)
        np.bitwise_or.at(
            self.phases, target[~results], 1 << program.phase[owner[~results]].astype(np.int64)
        )


def _arguments(program: Program, rows: NDArray[np.int64], reads: _Reads) -> list[MemoryKind]:
    """What each argument is. Those with one name before the first bracket are of one kind."""
    trains = bool((program.phase == Phase.OPTIMIZER).any())
    updated = donated(program)
    own = {
        row: _argument(program, row, int(reads.phases[row]), bool(updated[row]), trains)
        for row in rows.tolist()
    }
    weights: dict[str, int] = {}
    for row, kind in own.items():
        if kind is MemoryKind.PARAMETERS:
            weights[_family(program, row)] = 1
    return [
        MemoryKind.PARAMETERS
        if own[row] is MemoryKind.INPUTS
        and _is_float(program, row)
        and _family(program, row) in weights
        else own[row]
        for row in rows.tolist()
    ]


def _argument(
    program: Program, row: int, phases: int, is_donated: bool, trains: bool
) -> MemoryKind:
    updated = is_donated or bool(phases & (1 << Phase.OPTIMIZER))
    if trains and phases == 1 << Phase.OPTIMIZER:
        return MemoryKind.OPTIMIZER_STATE
    if not phases and program.op[row] == OpClass.HOST_VALUE:
        return MemoryKind.OPTIMIZER_STATE  # the host updates what only it reads
    if not _is_float(program, row) and not is_donated:
        return MemoryKind.INPUTS
    if trains:
        return MemoryKind.PARAMETERS if updated else MemoryKind.INPUTS
    return MemoryKind.STATE if is_donated else MemoryKind.PARAMETERS


def _is_float(program: Program, row: int) -> bool:
    dtype = program.dtypes[program.dtype[row]]  # "" for what has none
    return "float" in dtype or dtype.startswith("f")


def _family(program: Program, row: int) -> str:
    name: str = program.strings[program.name[row]]
    return name.split("[")[0].split(".")[0]


# Memory of what is gathered ahead: parameters of the next layer are there while one runs.


def gathered_ahead(program: Program, layout: Buffers) -> Buffers:
    """The buffers, with those of gathered parameters where `one_layer_ahead` issues the gathers.

    A loop of layers gathers for its next iteration: what it gathers is there twice, for this
    iteration from where it begins, and for the next one all the while. Elsewhere a gather begins
    with the layer before its own, or with its own where that is the first of an iteration. What a
    loop brings from the host is there twice too.
    """
    early = preparation(program)
    gathers = np.flatnonzero(early.gathers)
    gathers = gathers[layout.first[layout.of_row[gathers]] == gathers]
    born, extra = layout.born.copy(), []
    follows, loops = follows_the_layers(program, early), loop_of_rows(program)
    begins = _begins(program, early)
    for row, number in zip(gathers.tolist(), layout.of_row[gathers].tolist(), strict=True):
        if not follows[row]:
            born[number] = min(born[number], 2 * begins[row])
            continue
        region = program.regions[loops[row]]
        born[number] = min(born[number], 2 * region.start)
        if region.trip_count > 1:
            extra.append((number, 2 * region.start, 2 * region.stop - 1))
    for row in _loads(program):
        region = program.regions[program.region[row]]
        if region.trip_count > 1:
            extra.append((int(layout.of_row[row]), 2 * region.start, 2 * region.stop - 1))
    found = replace(layout, born=born)
    if not extra:
        return found
    numbers, starts, ends = np.array(extra, dtype=np.int64).T
    return replace(
        found,
        first=np.append(found.first, found.first[numbers]),
        num_bytes=np.append(found.num_bytes, found.num_bytes[numbers]),
        born=np.append(found.born, starts),
        dies=np.append(found.dies, ends),
        on_host=np.append(found.on_host, found.on_host[numbers]),
    )


def _loads(program: Program) -> list[int]:
    """Copies from the host in loops, which bring what the next iteration needs."""
    rows = (program.op == OpClass.FROM_HOST) & (program.region >= 0)
    loops = np.array([r.kind is RegionKind.LOOP for r in program.regions] or [False])
    return np.flatnonzero(rows & loops[program.region]).tolist()


def _begins(program: Program, early: Preparation) -> list[int]:
    """For each row where the layer before its own begins, or its own if the one before is of
    another loop."""
    rows = np.arange(len(program), dtype=np.int64)
    layer, turn = runs_of_rows(program, rows, early), turns_of_rows(program, rows)
    own, before = np.searchsorted(layer, layer), np.searchsorted(layer, layer - 1)
    return np.where(turn[before] == turn, before, own).tolist()  # type: ignore[no-any-return]


#: Points of a curve at most: enough for a picture.
CURVE_POINTS = 512
#: What is less probable is not said.
UNLIKELY = 0.05


@dataclass(frozen=True)
class PeakPlace:
    """The operation during which most memory is in use."""

    row: int  #: Its row in the program whose memory was counted.
    opcode: str  #: What it is called.
    scope: str  #: Its scope in the source: names of modules or of jax.named_scope.
    location: str  #: File and line of the user's source.


@dataclass(frozen=True)
class MemoryUse:
    """What one device of a rank class needs, in bytes.

    `breakdown` says what the memory is used for at the peak, largest first. `curve` are (row, most
    bytes in use from there to the next point), the body of a loop once. `capacity_bytes` is the
    chip's memory, 0 if none was given; all of it is taken to be free for the step. `host_bytes`
    are the most that lie in the memory of the host for this device, and are in no other number. If
    `recorded`, a profile says the peak (0: it does not), and nothing says what it is made of.
    `runtime` is what the software keeps of the device beside `peak_bytes`, by what for. The logarithm
    of what its allocator holds over `peak_bytes` has the standard deviation `spread` over programs.
    """

    peak_bytes: int
    at: PeakPlace
    breakdown: Mapping[str, int]
    capacity_bytes: int = 0
    curve: tuple[tuple[int, int], ...] = field(default=(), repr=False)
    host_bytes: int = 0
    host_breakdown: Mapping[str, int] = field(default_factory=dict)
    recorded: bool = False
    runtime: Mapping[str, int] = field(default_factory=dict)
    spread: float = 0.0

    @property
    def runtime_bytes(self) -> int:
        """What the software keeps beside the program."""
        return sum(self.runtime.values())

    @property
    def total_bytes(self) -> int:
        """The peak of the program, and what the software keeps beside it."""
        return self.peak_bytes + self.runtime_bytes

    @property
    def fits(self) -> bool:
        """Whether all of it fits into the chip's memory; so it does where none is known."""
        return not self.capacity_bytes or self.total_bytes <= self.capacity_bytes

    @property
    def too_much(self) -> float:
        """The probability that it needs more than the chip has, as far as the allocator decides it."""
        beside = self.runtime_bytes - self.runtime.get(RuntimeKind.ALLOCATOR, 0)
        room = self.capacity_bytes - beside
        if not self.capacity_bytes or not self.peak_bytes:
            return 0.0
        if not self.spread or room <= 0:
            return float(not self.fits)
        margin = math.log(room / (self.total_bytes - beside)) / self.spread
        return 0.5 * math.erfc(margin / math.sqrt(2))

    @property
    def verdict(self) -> str:
        """Whether it fits, in words.

        What the allocator reserves and what groups of devices hold was fitted on few programs: where
        that alone is too much, a step may run with less of it.
        """
        sure = self.peak_bytes + self.runtime.get(RuntimeKind.CONTEXT, 0)
        if self.capacity_bytes and sure > self.capacity_bytes:
            return "DOES NOT FIT"
        if self.too_much < UNLIKELY:
            return "fits"
        share = min(max(round(100 * self.too_much), 1), 99)
        return f"may not fit ({share} %)" if self.spread else "may not fit"


def memory_use(
    program: Program,
    chip: Chip | None = None,
    *,
    ahead: bool = False,
    packed: bool = False,
    heap_share: float = 1.0,
    compiled: CompilerMemory | None = None,
) -> MemoryUse:
    """The memory that a program needs at each row, from when values are made and read.

    With `ahead`, parameters are gathered one layer ahead (see `gathered_ahead`). With `packed`,
    buffers have places before the step begins, and gaps between them (see `heap.py`);
    the heap is `heap_share` times as large. With what the compiler of the program says (`compiled`) the
    peak is that (see `as_compiled`).

    What shares memory is said in `liveness.buffers`. Of a program of kernels only what crosses
    their edges takes memory, as on a device; of one of operations, every intermediate value.
    """
    layout, host = layouts(
        program, ahead=ahead, packed=packed, heap_share=heap_share, compiled=compiled
    )
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


def layouts(
    program: Program,
    *,
    ahead: bool = False,
    packed: bool = False,
    heap_share: float = 1.0,
    compiled: CompilerMemory | None = None,
) -> tuple[Buffers, Buffers]:
    """The buffers of a program in the memory of its device, and those in that of the host.

    The options are those of `memory_use`.
    """
    layout = buffers(program)
    if ahead:
        layout = gathered_ahead(program, layout)
    host = layout.of(layout.on_host)
    device = layout.of(~layout.on_host) if layout.on_host.any() else layout
    if packed:
        device = placed(program, device, heap_share)
    return (device if compiled is None else as_compiled(program, device, compiled)), host


def as_compiled(program: Program, layout: Buffers, memory: CompilerMemory) -> Buffers:
    """The layout in as many bytes as the compiler's own assignment of buffers has at its peak.

    Arguments keep their size. Where the other buffers would take more than the compiler has for
    them, each is smaller in proportion (it orders and shares better than this layout does); where
    they take less, the rest is between them.
    """
    arguments = program.kind[layout.first] == Kind.PARAMETER
    room = memory.peak_bytes - int(layout.of(arguments).live_bytes.max(initial=0))
    most = int(layout.of(~arguments).live_bytes.max(initial=0))
    if 0 <= room < most:
        smaller = (layout.num_bytes * (room / most)).astype(np.int64)
        layout = replace(layout, num_bytes=np.where(arguments, layout.num_bytes, smaller))
    gaps = memory.peak_bytes - int(layout.live_bytes.max(initial=0))
    return replace(layout, gap_bytes=max(gaps, 0))


def step_memory(
    workload: Workload, chip: Chip | None = None, *, ahead: bool = False
) -> tuple[MemoryUse, ...]:
    """The memory of each program of a workload whose rows are operations, not kernels.

    That is of the programs that `stored_programs` makes of them.
    """
    return tuple(memory_use(k, chip, ahead=ahead) for k in stored_programs(workload))


def stored_programs(workload: Workload) -> tuple[Program, ...]:
    """The programs of a workload as memory is laid out for them: kernels with one result each.

    Rows are merged by rules that compilers share. Kernels of a target
    profile can have several results, and a row does not say which of them a reader still needs: all would
    stay until the last one is read. What repeats a constant is not an array that waits outside the
    loops that read it. What a framework launched is as it launched it, and says what it freed when.
    """
    if workload.is_launched:
        return workload.programs
    passes = parse_passes("sink-fills,drop-dead-code,fuse-kernels")
    return workload.kept.get(
        "stored", None, lambda: tuple(run_passes(p, passes) for p in workload.programs)
    )


def _place(program: Program, number: int) -> PeakPlace:
    if not len(program):
        return PeakPlace(0, "", "", "")
    row = program.row(number)
    return PeakPlace(number, row.opcode, row.scope, row.location)


def _breakdown(program: Program, layout: Buffers, moment: int) -> Mapping[str, int]:
    kind = kinds(program, layout)
    held = layout.at(moment)
    found = {str(k): int(layout.num_bytes[held[kind[held] == k]].sum()) for k in MemoryKind}
    found[MemoryKind.FRAGMENTATION] = layout.gap_bytes
    return dict(sorted(((k, v) for k, v in found.items() if v), key=lambda item: -item[1]))


def _curve(layout: Buffers) -> tuple[tuple[int, int], ...]:
    """Most bytes in use in each of at most CURVE_POINTS equal pieces of the program."""
    rows = layout.live_bytes.reshape(-1, 2).max(axis=1)
    if not len(rows):
        return ()
    starts = np.unique(np.linspace(0, len(rows), CURVE_POINTS, endpoint=False).astype(np.int64))
    most = np.maximum.reduceat(rows, starts)
    return tuple(zip(starts.tolist(), most.tolist(), strict=True))


# What software keeps of a device's memory beside what the program needs: a stack says it.


class RuntimeKind(StrEnum):
    """What the runtime's memory is for."""

    ALLOCATOR = "allocator"  #: reserved and not in use: pieces of other sizes and streams
    CONTEXT = "context"  #: the driver's context, and code of libraries
    COMMUNICATORS = "communicators"  #: buffers of each group of devices that communicate


def runtime_memory(program: Program, stack: Stack, peak_bytes: int) -> Mapping[str, int]:
    """Bytes by `RuntimeKind`, largest first, of a step whose own peak is `peak_bytes`."""
    share = stack.reserved_share.value if stack.reserved_share else 1.0
    context = stack.context_bytes.value if stack.context_bytes else 0.0
    each = stack.communicator_bytes.value if stack.communicator_bytes else 0.0
    found = {
        RuntimeKind.ALLOCATOR: round((share - 1) * peak_bytes),
        RuntimeKind.CONTEXT: round(context),
        RuntimeKind.COMMUNICATORS: round(each * communicators(program)),
    }
    return {str(k): v for k, v in sorted(found.items(), key=lambda kv: -kv[1]) if v}


def communicators(program: Program) -> int:
    """Groups of devices that run collectives together, as a device meets them."""
    runs = (program.kind == Kind.COLLECTIVE) & (program.trips > 0) & (program.group >= 0)
    used = np.unique(program.group[runs]).tolist()
    return len({str(program.groups[number]) for number in used})
