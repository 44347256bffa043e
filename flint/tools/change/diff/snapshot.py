"""What is kept of a workload to tell later what changed: totals, without names of machines or lines.

It is what a lock file holds. Lines and scopes are omitted on purpose: a program whose lines moved,
or whose functions were renamed, has an equal snapshot except for names of its arguments.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import mul
from typing import TYPE_CHECKING, Any

import numpy as np

from flint.io.documents import Later
from flint.io.records import (
    Bytes,
    Count,
    Fraction,
    MeanCount,
    Nanoseconds,
    Positive,
    Utilisation,
    Whole,
)
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Flag, Int64s, Kind, Phase, Program
from flint.ir.workload import Workload
from flint.passes.profiles import nodes_of
from flint.passes.work.totals import total, totals
from flint.tools.change.diff.structure import structure_of

if TYPE_CHECKING:
    from flint.backends.cost.estimate import Estimate

#: Metadata that says how a program was captured, beside what it is; and that of its pipeline.
OPTIONS = ("partitioner", "profile", "granularity")
PIPELINE = ("schedule", "microbatches", "chunks")
#: A number in a name: which of several layers.
_NUMBER = re.compile(r"(?<![A-Za-z0-9_])\d+(?![A-Za-z0-9_])")
_DIMENSION = re.compile(r"\{([^{}]*)\}")
#: By how much sums of a step may miss it, as numbers are rounded.
_ROUNDED = 1e-6
_AXIS = re.compile(r'"([^"]+)"(?::\(\d+\)(\d+))?')


@dataclass(frozen=True, slots=True)
class Argument:
    """Arguments of the step whose names differ in numbers only.

    `params['layers'][*]['wq']` is the name of one for each layer.
    """

    name: str  #: Their path, with * for numbers.
    dtype: str  #: Element type.
    shape: tuple[Count, ...]
    """Shape of the whole array where the sharding is known, else of one device's part."""
    sharding: str  #: How its dimensions lie on the mesh; "" where that is not known.
    count: Positive  #: How many there are.
    device_bytes: MeanCount  #: What one device holds of all of them, in bytes.
    is_donated: Later[bool | None] = None
    """Whether results of the step take their place; null or omitted where it is not known."""


@dataclass(frozen=True, slots=True)
class Operations:
    """Operations of one class, phase and type, in one step of a device: the mean over devices.

    See `flint.ir.product_types` for `product`, and `Program` for `mask`.
    """

    op: str  #: Class of the operations.
    phase: str  #: forward, backward, remat, optimizer, prefill, decode or unknown.
    dtype: str  #: Element type of their results.
    product: str  #: What they multiply, where that is not `dtype`.
    mask: Whole  #: Mask of attention (docs/program.md).
    rows: Positive  #: How many the program holds.
    executions: MeanCount  #: How often they run.
    flops: MeanCount  #: Floating point operations.
    bytes: MeanCount  #: Bytes read and written.


@dataclass(frozen=True, slots=True)
class Collectives:
    """Collectives of one kind over the same axes with one payload, in one step of a device."""

    kind: str  #: Kind of collective, or message.
    over: str  #: Mesh axes, or the route of a message.
    phase: str  #: forward, backward, remat, optimizer, prefill, decode or unknown.
    dtype: str  #: Element type.
    comm_bytes: Bytes  #: Bytes that a device puts in, each time.
    executions: MeanCount  #: How often they run: the mean over devices.
    source: str  #: partitioner for what it inserted, program for what the program itself says.


@dataclass(frozen=True, slots=True)
class ProgramFacts:
    """What a workload is, whatever it runs on: means over devices, of one step."""

    structure: str
    """Equal for programs with the same operations and dependencies, whatever their names."""
    mesh: Mapping[str, Positive]  #: Devices along each axis.
    options: Mapping[str, str]  #: How it was captured.
    kernels: MeanCount  #: Kernels and collectives.
    flops: MeanCount  #: Floating point operations.
    bytes: MeanCount  #: Bytes that kernels read and write.
    comm_bytes: MeanCount  #: Bytes put into collectives and messages.
    argument_bytes: MeanCount  #: Bytes of all that the step is given.
    trip_counts: tuple[Count, ...]  #: Of the loops of all programs, in order.
    arguments: tuple[Argument, ...]  #: What the step is given, in the order of the program.
    operations: tuple[Operations, ...]  #: What it does.
    collectives: tuple[Collectives, ...]  #: What it sends.


@dataclass(frozen=True, slots=True)
class EstimateFacts:
    """What is kept of an estimate on one cluster. Times are of the class that ends last."""

    chip: str  #: Name of the chip.
    profile: str  #: Whose kernels.
    policy: str  #: When communication begins.
    mapping: tuple[str, ...]  #: Where mesh axes lie.
    derate: Fraction  #: What the speed of every kernel was multiplied by.
    step_time_ns: Nanoseconds  #: When the last rank ends its step, in ns.
    mfu: Utilisation  #: Model flops utilization, 0 to 1.
    is_lower_bound: bool  #: Whether operations without a price counted nothing.
    exposed_ns: Mapping[str, Nanoseconds]
    """Time in which nothing is computed while communication runs, by mesh axes, in ns."""
    busy_ns: Mapping[str, Nanoseconds]  #: How long kernels run, by kind, in ns.
    peak_bytes: Bytes  #: Most bytes in use on a device.
    capacity_bytes: Bytes  #: Bytes that the chip has; 0 if that is not known.
    memory_bytes: Mapping[str, Bytes]  #: Bytes at the peak by what they are for.

    def contradiction(self) -> str:
        """What of its numbers cannot all be true; "" where they can."""
        parts = max((*self.exposed_ns.values(), *self.busy_ns.values()), default=0.0)
        if parts > self.step_time_ns * (1 + _ROUNDED) + 1:
            return f"a part of the step takes {parts:g} ns, all of it {self.step_time_ns:g} ns"
        kind = max(self.memory_bytes.values(), default=0)
        if kind > self.peak_bytes:
            return f"a kind of memory is {kind:,} bytes, the peak {self.peak_bytes:,}"
        return ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One capture."""

    name: str  #: Name of the program.
    program: ProgramFacts | None  #: What it is; null for a saved estimate.
    estimates: Mapping[str, EstimateFacts] = field(default_factory=dict)
    """Estimates by the cluster's name."""


def snapshot(workload: Workload, estimates: Mapping[str, Estimate] | None = None) -> Snapshot:
    """What is kept of a workload, and of its estimates by cluster."""
    found = {name: estimate_facts(e) for name, e in (estimates or {}).items()}
    return Snapshot(str(workload.metadata.get("name") or "program"), facts(workload), found)


def facts(workload: Workload) -> ProgramFacts:
    """The facts of a workload."""
    sizes = np.bincount(workload.class_of_ranks(), minlength=len(workload.classes)).tolist()
    add = _Added(workload.mesh.size)
    kernels = nodes_of(workload, "kernel").programs
    for c, ranks in zip(workload.classes, sizes, strict=True):
        add.program(workload.programs[c.program], ranks)
        add.kernels(kernels[c.program], ranks)
    return ProgramFacts(
        structure=structure_of(workload),
        mesh=dict(workload.mesh.shape),
        options=dict(_options(workload.metadata)),
        kernels=add.mean(add.totals["kernels"]),
        flops=add.mean(add.totals["flops"]),
        bytes=add.mean(add.totals["bytes"]),
        comm_bytes=add.mean(add.totals["comm_bytes"]),
        argument_bytes=add.mean(add.totals["argument_bytes"]),
        trip_counts=tuple(r.trip_count for p in workload.programs for r in p.regions),
        arguments=tuple(add.arguments()),
        operations=tuple(add.operations()),
        collectives=tuple(add.collectives()),
    )


def _options(metadata: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """How the workload was captured: by name, as text."""
    yield from ((name, str(metadata[name])) for name in OPTIONS if name in metadata)
    compiler = metadata.get("compiler")
    if isinstance(compiler, Mapping):
        yield "compiler", f"{compiler['name']} for {compiler['chip']}"
    pipeline = metadata.get("pipeline")
    if isinstance(pipeline, Mapping):
        yield from ((name, str(pipeline[name])) for name in PIPELINE if name in pipeline)
        places = pipeline.get("positions", ())
        yield "stages", " | ".join("; ".join(str(s["label"]) for s in place) for place in places)
    pools = metadata.get("pools")
    if isinstance(pools, Mapping):
        yield from ((f"{n} pool", str(len(pools[n]))) for n in ("prefill", "decode") if n in pools)


class _Added:
    """Numbers of rank classes, times their ranks, by what they are of."""

    def __init__(self, devices: int) -> None:
        self.devices = devices
        self.totals: Counter[str] = Counter()
        self._arguments: dict[tuple[Any, ...], list[int]] = {}
        self._operations: dict[tuple[Any, ...], list[int]] = {}
        self._collectives: Counter[tuple[Any, ...]] = Counter()

    def mean(self, total: int) -> MeanCount:
        """A total over ranks as a mean over devices."""
        whole, rest = divmod(total, self.devices)
        return round(total / self.devices, 3) if rest else whole

    def program(self, program: Program, ranks: int) -> None:
        """Add arguments, operations and collectives of one class."""
        for row in np.flatnonzero(program.kind == Kind.PARAMETER).tolist():
            entry = self._arguments.setdefault(_argument(program, row), [0, 0])
            entry[0] += 1
            entry[1] += int(program.result_bytes[row]) * ranks
        for key, rows, numbers in _operations(program):
            entry = self._operations.setdefault(key, [0, 0, 0, 0])
            entry[0] += rows
            for at, number in enumerate(numbers, 1):
                entry[at] += number * ranks
        found = totals(program)
        self.totals["flops"] += found.flops * ranks
        self.totals["argument_bytes"] += found.parameter_bytes * ranks

    def kernels(self, program: Program, ranks: int) -> None:
        """Add kernels and communication, as in traces, of one class."""
        found, trips = totals(program), program.trips
        self.totals["kernels"] += found.executed_op_count * ranks
        self.totals["comm_bytes"] += found.comm_bytes * ranks
        moved = program.result_bytes + program.operand_bytes
        self.totals["bytes"] += total(program, moved * (program.kind == Kind.COMPUTE)) * ranks
        for row in np.flatnonzero(program.kind > Kind.COMPUTE).tolist():
            self._collectives[_collective(program, row)] += int(trips[row]) * ranks

    def arguments(self) -> Iterator[Argument]:
        """In the order of the program."""
        for (name, dtype, shape, sharding, donated), (count, size) in self._arguments.items():
            yield Argument(name, dtype, shape, sharding, count, self.mean(size), donated)

    def operations(self) -> Iterator[Operations]:
        """By class, phase and type."""
        for (op, phase, dtype, product, mask), numbers in sorted(self._operations.items()):
            executions, flops, size = map(self.mean, numbers[1:])
            yield Operations(op, phase, dtype, product, mask, numbers[0], executions, flops, size)

    def collectives(self) -> Iterator[Collectives]:
        """By kind, axes, phase, type and payload."""
        for (kind, over, phase, dtype, size, made), count in sorted(self._collectives.items()):
            yield Collectives(kind, over, phase, dtype, size, self.mean(count), made)


def family(name: str) -> str:
    """A name with `*` for each number that stands alone: the layers of a model have one family."""
    return _NUMBER.sub("*", name)


def numbers_in(name: str) -> list[str]:
    """The numbers for which `family` writes `*`."""
    return _NUMBER.findall(name)


def _argument(program: Program, row: int) -> tuple[str, str, tuple[int, ...], str, bool]:
    sharding = program.strings[program.cause[row]]
    local = program.shapes[program.shape[row]]
    whole = whole_shape(local, sharding, program.mesh.shape)
    dtype = program.dtypes[program.dtype[row]]
    is_donated = bool(program.flags[row] & Flag.DONATED)
    return family(program.strings[program.name[row]]), dtype, whole, sharding, is_donated


def whole_shape(local: tuple[int, ...], sharding: str, mesh: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of the whole array of which `local` is a part; `local` if the sharding says nothing.

    A dimension that its axes do not divide is a little larger here than in the program.
    """
    dimensions = _DIMENSION.findall(sharding)
    if len(dimensions) != len(local):
        return local
    return tuple(n * _parts(d, mesh) for n, d in zip(local, dimensions, strict=True))


def _parts(dimension: str, mesh: Mapping[str, int]) -> int:
    parts = 1
    for axis, size in _AXIS.findall(dimension):
        parts *= int(size) if size else mesh.get(axis, 1)
    return parts


def _operations(program: Program) -> Iterator[tuple[tuple[Any, ...], int, list[int]]]:
    """For each class, phase and type: rows, and (executions, flops, bytes) of a step."""
    works = np.flatnonzero((program.kind == Kind.COMPUTE) & (program.op != OpClass.HOST))
    of = (program.op, program.phase, program.dtype, program.product, program.mask)
    key = np.stack([column[works].astype(np.int64) for column in of], axis=1)
    found, which = np.unique(key, axis=0, return_inverse=True)
    moved = (program.operand_bytes + program.result_bytes)[works]
    columns: list[Int64s] = [np.ones_like(moved), program.flops[works], moved]
    trips = program.trips[works]
    for number, (op, phase, dtype, product, mask) in enumerate(found.tolist()):
        mine = which.reshape(-1) == number
        often = trips[mine].tolist()
        what = (OpClass(op).name.lower(), phase_name(phase), program.dtypes[dtype])
        names = (*what, program.products[product], mask)
        # of Python's numbers: products of large steps leave the range of int64
        yield names, int(mine.sum()), [sum(map(mul, c[mine].tolist(), often)) for c in columns]


def phase_name(phase: int) -> str:
    """`forward`, ...; "" for a phase that is not known."""
    return "" if phase == Phase.UNKNOWN else Phase(phase).name.lower()


def _collective(program: Program, row: int) -> tuple[str, str, str, str, int, str]:
    made = bool(program.flags[row] & Flag.PARTITIONED)
    return (
        collective_name(program, row),
        over_of(program, row),
        phase_name(int(program.phase[row])),
        program.dtypes[program.dtype[row]],
        int(program.comm_bytes[row]),
        "partitioner" if made else "program",
    )


def collective_name(program: Program, row: int) -> str:
    """`all_reduce`, ...; `send` and `recv` of messages."""
    kind = Kind(int(program.kind[row]))
    if kind != Kind.COLLECTIVE:
        return kind.name.lower()
    return Collective(int(program.collective[row])).name.lower()


def over_of(program: Program, row: int) -> str:
    """The mesh axes of a collective or message."""
    group, route = int(program.group[row]), int(program.route[row])
    axes = program.groups[group] if group >= 0 else program.routes[route]
    return ",".join(a.name for a in axes.axes) or str(axes)


def estimate_facts(estimate: Estimate) -> EstimateFacts:
    """The facts of an estimate."""
    slowest = max(estimate.classes, key=lambda c: c.end_ns)
    fullest = max(estimate.classes, key=lambda c: c.memory.peak_bytes).memory
    shares = [(s.kind, s.over, s.exposed_ns) for s in slowest.shares]
    return EstimateFacts(
        chip=estimate.cluster.chip.name,
        profile=estimate.profile,
        policy=estimate.policy.name,
        mapping=mapping_text(estimate.mapping),
        derate=estimate.cluster.derate.value,
        step_time_ns=round(estimate.step_time_ns, 3),
        mfu=round(estimate.mfu, 6),
        is_lower_bound=estimate.is_lower_bound,
        exposed_ns=share_totals(shares, exposed=True),
        busy_ns=share_totals(shares, exposed=False),
        peak_bytes=fullest.peak_bytes,
        capacity_bytes=fullest.capacity_bytes,
        memory_bytes={str(kind): size for kind, size in fullest.breakdown.items()},
    )


def mapping_text(rows: Iterable[Sequence[object]]) -> tuple[str, ...]:
    """`model=nvlink` of each row of a mapping: axis, size and network."""
    return tuple(f"{axis}={network}" for axis, *_, network in rows)


def share_totals(shares: Iterable[tuple[str, str, float]], *, exposed: bool) -> dict[str, float]:
    """Exposed time by axes, or time of kernels by kind, sorted; of (kind, axes, exposed ns)."""
    found: dict[str, float] = {}
    for kind, over, ns in shares:
        if exposed == bool(over):
            found[over or kind] = found.get(over or kind, 0.0) + ns
    return {name: round(ns, 3) for name, ns in sorted(found.items())}
